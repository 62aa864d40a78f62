// The GGUF container, versions 2 and 3: typed metadata, tensor descriptions, aligned tensor data,
// in one file or split over several. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
//
// A file is untrusted input: every count, length and offset is checked against the bytes that are
// there before it is used, in arithmetic that cannot wrap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "quant/gguf_blocks.h"

namespace carpool {

/// Types of metadata values; the numbers are the file's.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
std::string_view GgufTypeName(GgufType type);

struct GgufArray;
/// Integers are widened by sign, floats to double. Views into the file.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view,
                               std::shared_ptr<const GgufArray>>;
struct GgufArray {
  GgufType element = GgufType::kU8;
  size_t count = 0;
  const std::byte* data = nullptr;        // `count` numbers or bools, unaligned
  std::vector<std::string_view> strings;  // of kString
  std::vector<GgufValue> arrays;          // of kArray

  GgufValue At(size_t i) const;
};

struct GgufEntry {
  std::string_view key;
  GgufType type = GgufType::kU8;
  GgufValue value;
};

struct GgufTensor {
  std::string_view name;
  const GgmlType* type = nullptr;  // one with a decoder
  uint32_t ndim = 0;
  uint64_t dims[4] = {1, 1, 1, 1};  // dims[0] is contiguous: the inputs of a matrix
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
};

/// What one file's header says. Views into the bytes.
struct GgufHeader {
  uint32_t version = 0;
  std::vector<GgufEntry> entries;   // sorted by key
  std::vector<GgufTensor> tensors;  // in file order
  size_t alignment = 32;

  const GgufEntry* Find(std::string_view key) const;
};

/// `file` is the whole file. Errors: Corrupt, or Unsupported (version, byte order, tensor type);
/// `where` names the file.
Result<GgufHeader> ParseGguf(std::span<const std::byte> file, const std::string& where);

/// True if `path` is a regular file that begins with GGUF's magic or is named *.gguf.
bool IsGgufFile(const std::string& path);

/// A model in GGUF: the mapped files and all their tensors.
class GgufModel {
 public:
  /// Opens a file and, when it is one part of a split, the others, which stand beside it and are
  /// named NAME-00001-of-0000N.gguf. Metadata is that of the first part. Errors: NotFound (a part),
  /// and those of ParseGguf.
  static Result<GgufModel> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<GgufEntry>& metadata() const { return header_.entries; }
  const std::vector<GgufTensor>& tensors() const { return header_.tensors; }  // sorted by name
  const std::vector<MappedFile>& files() const { return files_; }
  const GgufEntry* Find(std::string_view key) const { return header_.Find(key); }
  const GgufTensor* FindTensor(std::string_view name) const;

 private:
  std::string path_;
  std::vector<MappedFile> files_;
  GgufHeader header_;
};

}  // namespace carpool
