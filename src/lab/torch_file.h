// Reads what torch.save wrote, as far as recorded routing needs: dicts, lists, numbers, strings and
// integer tensors. Nothing in the file is ever called: the pickle's program builds plain values,
// and of all functions it may name only two are understood (rebuild a tensor, make an ordered
// dict).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace carpool {

/// One value of a file; children are indices into TorchFile::values.
struct TorchValue {
  enum class Kind : uint8_t {
    kNone,
    kInt,
    kFloat,
    kString,
    kList,
    kDict,
    kTensor,
    kName,
    kStorage
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;  // kInt; kStorage: elements
  double real = 0.0;    // kFloat
  std::string text;     // kString, kName ("module name"); kStorage and kTensor: key of the bytes
  std::string type;     // kStorage, kTensor: "IntStorage", …
  std::vector<size_t> items;                       // kList (tuples too)
  std::vector<std::pair<size_t, size_t>> entries;  // kDict
  int64_t offset = 0;                              // kTensor, in elements
  std::vector<int64_t> shape, strides;             // kTensor
};

class TorchFile {
 public:
  /// `bytes` outlive this. Errors: not such a file, or a pickle that wants to call anything else.
  static Result<TorchFile> Parse(std::string_view bytes, const std::string& name);

  const TorchValue& root() const { return values_[root_]; }
  const TorchValue& at(size_t index) const { return values_[index]; }
  /// The value of `key` in a dict, or null.
  const TorchValue* Find(const TorchValue& dict, std::string_view key) const;
  /// All elements of an integer tensor, row-major. Errors: another type, outside its storage.
  Result<std::vector<int64_t>> Integers(const TorchValue& tensor) const;

 private:
  friend class PickleProgram;
  std::string name_;
  std::vector<std::pair<std::string, std::string_view>> members_;  // path behind the first folder
  std::vector<TorchValue> values_;
  size_t root_ = 0;
};

/// Members of a ZIP archive that are stored as they are. Errors: compressed or damaged ones.
Result<std::vector<std::pair<std::string, std::string_view>>> ReadStoredZip(
    std::string_view bytes, const std::string& name);

}  // namespace carpool
