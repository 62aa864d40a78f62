// Writing GGUF version 3: metadata and tensor descriptions first, then the tensors' bytes one after
// the other.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "weights/gguf.h"
#include "weights/output_file.h"

namespace carpool {

class GgufWriter {
 public:
  /// Metadata, in the order of the calls; keys must be unique. An array of integers is i32.
  void SetU32(std::string_view key, uint32_t value);
  void SetF32(std::string_view key, float value);
  void SetBool(std::string_view key, bool value);
  void SetString(std::string_view key, std::string_view value);
  void SetStrings(std::string_view key, std::span<const std::string> values);
  void SetInts(std::string_view key, std::span<const int32_t> values);
  void SetFloats(std::string_view key, std::span<const float> values);
  void SetBools(std::string_view key, const std::vector<bool>& values);
  /// A value as it was read.
  void SetEntry(const GgufEntry& entry);

  /// A tensor to be written; dims as in the file, the inputs first.
  void AddTensor(std::string name, const GgmlType& type, std::vector<uint64_t> dims);
  /// Of tensor i, in the order added.
  uint64_t TensorBytes(size_t i) const;

  /// Everything before the data, padded.
  std::string Header() const;
  /// Writes the file by way of `path`.tmp. `write` hands over every tensor's bytes, in order, whole
  /// tensors or pieces of them; padding is added here. Errors: InvalidArgument (cannot be written).
  Status Write(const std::string& path,
               const std::function<Status(const ByteSink& sink)>& write) const;

 private:
  struct Planned {
    std::string name;
    const GgmlType* type;
    std::vector<uint64_t> dims;
    uint64_t bytes;
    uint64_t offset;
  };
  void Key(std::string_view key, GgufType type);
  void ArrayKey(std::string_view key, GgufType element, size_t count);

  std::string metadata_;
  uint64_t num_entries_ = 0;
  std::vector<Planned> tensors_;
  uint64_t data_bytes_ = 0;
};

}  // namespace carpool
