// The logits of given tokens, for comparisons with other programs and between checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "models/model.h"
#include "quant/packed_matrix.h"

namespace carpool {

using TokenWindow = std::vector<int32_t>;

/// A JSON list of lists of token ids, each with 1 to `max_tokens` ids below `vocab`. Errors:
/// InvalidArgument (with the place).
Result<std::vector<TokenWindow>> ReadTokenWindows(const std::string& path, size_t vocab,
                                                  size_t max_tokens);

/// Runs every window from an empty context, several in step, by the model's own routing, and calls
/// `row(window, position, logits)` for each of its tokens; a window's positions come in order.
Status WindowLogits(const Model& model, ThreadPool& pool, Activations activations,
                    std::span<const TokenWindow> windows,
                    const std::function<Status(size_t window, size_t position,
                                               std::span<const float> logits)>& row);

/// Writes the logits of all windows, one after the other, as float32 rows of the vocabulary's size.
Status WriteLogits(const Model& model, ThreadPool& pool, Activations activations,
                   std::span<const TokenWindow> windows, const std::string& path);

}  // namespace carpool
