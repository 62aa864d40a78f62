// Conversion between Hugging Face folders and GGUF files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/thread_pool.h"
#include "quant/stored_matrix.h"

namespace carpool {

struct ConvertOptions {
  /// What matrices become. Null: they stay as they are where the other format can say it, else
  /// bf16. kF32, kF16, kBF16 and kQ8_0 mean all of them but routers; kNVFP4 and kMXFP4 mean experts
  /// and MLPs.
  std::optional<Storage> type;
  std::function<void(size_t done, size_t total)> progress;
};

struct ConvertReport {
  size_t tensors = 0;  // written
  uint64_t bytes = 0;  // of the model file
};

/// A checkpoint directory -> one GGUF file. Prediction (MTP) layers are left out. Errors:
/// Unsupported (what GGUF cannot say), InvalidArgument (cannot be written), and those of loading.
Result<ConvertReport> ConvertToGguf(const std::string& dir, const std::string& path,
                                    const ConvertOptions& options, ThreadPool& pool);

/// A GGUF file -> a new directory with model.safetensors, config.json, tokenizer.json and
/// tokenizer_config.json. Types of GGUF that safetensors has no layout for become bf16.
Result<ConvertReport> ConvertToHuggingFace(const std::string& path, const std::string& dir,
                                           const ConvertOptions& options, ThreadPool& pool);

/// How far two checkpoints of one model are from each other on some tokens.
struct LogitsDifference {
  size_t tokens = 0;
  double max_difference = 0.0;  // relative to the largest |logit| of the first
  double mean_kl = 0.0;         // KL(first || second), nats
  double same_top = 0.0;        // share of tokens with the same likeliest next one
};
Result<LogitsDifference> CompareLogits(const std::string& first, const std::string& second,
                                       ThreadPool& pool);

}  // namespace carpool
