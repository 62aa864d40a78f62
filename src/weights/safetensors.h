// The safetensors container: u64 header size, JSON header, tensor bytes.
// https://github.com/huggingface/safetensors
//
// A header is untrusted input, and may be large (250,000 tensors). It is read in one pass, without
// a tree; names stay views into the file.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "weights/checkpoint.h"

namespace carpool {

inline constexpr size_t kMaxHeaderBytes = 100'000'000;

/// A tensor name without the prefix of a multimodal wrapper ("model.language_model.",
/// "language_model.") is head + tail; `head` is empty or "model.".
struct PlainName {
  std::string_view head;
  std::string_view tail;
};
PlainName StripWrapper(std::string_view name);

/// The tensors of one file, in file order of their data. Views into the bytes that were parsed and
/// into `renamed`.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;
  size_t header_bytes = 0;
  /// Names that are not literally in the file: escaped ones, and those that lost an inner prefix.
  std::vector<std::unique_ptr<std::string>> renamed;
};

/// `file` is the whole file. Checks every rule: sizes, UTF-8, JSON, dtypes, overflow of shape
/// products, offsets that are contiguous from 0 and cover the rest of the file exactly. Unique
/// names are the caller's to check (shards). Errors: Corrupt, or Unsupported (dtype, number of
/// dimensions); `where` names the file.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                 const std::string& where);

}  // namespace carpool
