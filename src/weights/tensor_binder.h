// TensorBinder: logical weights of a model -> storage in a checkpoint. Collects every problem into one error.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "quant/stored_matrix.h"
#include "weights/checkpoint.h"

namespace carpool {

/// What was loaded: printed by `info` and logged at load.
struct LoadReport {
  std::map<std::string, size_t> tensor_bytes;  // storage name -> bytes (scales counted with their weight)
  size_t tensors_bound = 0;
  size_t parameters = 0;                       // logical weights, dequantised count
  std::vector<std::string> missing_optional;   // e.g. "MTP layer"
  std::vector<std::string> unused;             // tensor names nobody asked for
  std::vector<std::string> warnings;           // config says one storage, tensors say another
};

class TensorBinder {
 public:
  explicit TensorBinder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  /// `module` without ".weight": resolves NVFP4 (ModelOpt, compressed-tensors), MXFP4, FP8 (block, row, scalar), floats, in
  /// that order (models.md section 8). On a problem records it and returns an empty matrix (rows == 0).
  StoredMatrix Linear(std::string_view module, size_t rows, size_t cols);
  /// Like Linear, but absent is fine: rows == 0 and no error.
  StoredMatrix OptionalLinear(std::string_view module, size_t rows, size_t cols);
  /// A float tensor (F32, BF16, F16) of n elements, converted to fp32. Full tensor name.
  std::vector<float> Vector(std::string_view name, size_t n);
  std::vector<float> OptionalVector(std::string_view name, size_t n);
  /// True if any tensor name starts with `prefix`.
  bool HasPrefix(std::string_view prefix) const;
  void NoteMissingOptional(std::string what);

  /// One error listing every missing, misshaped or unreadable tensor asked for so far (the first 20 by name, then a
  /// count), or success.
  Status Finish();
  /// Valid after Finish(). Unused tensors and totals filled in.
  const LoadReport& report() const { return report_; }

 private:
  const Checkpoint& checkpoint_;
  LoadReport report_;
  std::vector<std::string> problems_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace carpool
