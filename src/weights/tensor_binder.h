// TensorBinder: logical weights of a model -> storage in a checkpoint. Collects every problem into
// one error.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "quant/stored_matrix.h"
#include "weights/checkpoint.h"
#include "weights/quant_config.h"

namespace carpool {

/// What was loaded: printed by `info` and logged at load.
struct LoadReport {
  std::map<std::string, size_t>
      tensor_bytes;  // storage name -> bytes (scales counted with their weight)
  std::map<std::string, size_t> tensor_counts;  // storage name -> matrices and vectors
  size_t tensors_bound = 0;                     // tensors of the files that are used
  size_t parameters = 0;                        // logical weights, dequantised count
  std::vector<std::string> missing_optional;    // e.g. "MTP layer"
  std::vector<std::string> unused;              // tensor names nobody asked for
  std::vector<std::string> warnings;            // config says one storage, tensors say another
};

/// One slice [rows, cols] of a fused expert tensor [experts, fused_rows, cols]: rows row_begin,
/// row_begin + row_step, …
struct ExpertSlice {
  size_t expert = 0;
  size_t num_experts = 0;
  size_t fused_rows = 0;
  size_t row_begin = 0;
  size_t rows = 0;
  size_t cols = 0;
  size_t row_step = 1;
  bool transposed = false;  // floats lie as [experts, cols, fused_rows]
};

class TensorBinder {
 public:
  explicit TensorBinder(const Checkpoint& checkpoint) : TensorBinder(checkpoint, QuantConfig()) {}
  /// With what the checkpoint says of itself, to warn where its tensors disagree.
  TensorBinder(const Checkpoint& checkpoint, QuantConfig config)
      : checkpoint_(checkpoint), config_(std::move(config)), used_(checkpoint.tensors().size()) {}

  /// `module` without ".weight": resolves NVFP4 (ModelOpt, compressed-tensors), MXFP4, INT4, FP8
  /// (block, row, scalar), floats, in that order, from the tensors that are there. On a problem
  /// records it and returns an empty matrix (rows == 0). Block scales are not read here (they are a
  /// ninth of the file): PackedMatrix::Pack refuses NaN ones.
  StoredMatrix Linear(std::string_view module, size_t rows, size_t cols);
  /// Like Linear, but absent is fine: rows == 0 and no error.
  StoredMatrix OptionalLinear(std::string_view module, size_t rows, size_t cols);
  /// A slice of a fused 3-D tensor (full name): floats, or NAME_blocks and NAME_scales in MXFP4
  /// ([experts, fused_rows, cols / 32, 16] and [experts, fused_rows, cols / 32]).
  StoredMatrix Slice(std::string_view name, const ExpertSlice& slice);
  /// A float tensor (F32, BF16, F16) of n finite elements, converted to fp32. Full tensor name.
  std::vector<float> Vector(std::string_view name, size_t n) { return Floats(name, {n}); }
  /// The same of any shape, row-major.
  std::vector<float> Floats(std::string_view name, std::initializer_list<uint64_t> shape);
  std::vector<float> OptionalVector(std::string_view name, size_t n);
  bool Has(std::string_view name) const { return checkpoint_.Find(name) != nullptr; }
  /// True if any tensor name starts with `prefix`.
  bool HasPrefix(std::string_view prefix) const;
  /// Tensors with this prefix are known and not needed: they are not reported as unused.
  void IgnorePrefix(std::string_view prefix);
  void NoteMissingOptional(std::string what);
  size_t num_problems() const { return num_problems_; }

  /// One error listing every missing, misshaped or unreadable tensor asked for so far (the first 20
  /// by name, then a count), or success.
  Status Finish();
  /// Valid after Finish(). Unused tensors and totals filled in.
  const LoadReport& report() const { return report_; }

 private:
  struct Siblings;  // the tensors of one module
  using Resolved = Result<StoredMatrix>;

  Siblings FindSiblings(std::string_view module) const;
  std::optional<StoredMatrix> Bind(std::string_view module, size_t rows, size_t cols);
  Resolved Resolve(const Siblings& s, size_t rows, size_t cols) const;
  Resolved ResolveFp4(const Siblings& s, size_t rows, size_t cols) const;
  Resolved ResolveInt4(const Siblings& s, size_t rows, size_t cols) const;
  Resolved ResolveFp8(const Siblings& s, size_t rows, size_t cols) const;
  StoredMatrix Mxfp4Slice(const TensorInfo& blocks, const ExpertSlice& slice);
  Resolved ResolveInt8(const Siblings& s, size_t rows, size_t cols) const;
  void Use(const TensorInfo* tensor);
  void Count(std::string_view storage, size_t bytes, size_t parameters);
  void CompareWithConfig(std::string_view module, const StoredMatrix& matrix);
  void Problem(std::string_view name, std::string text);

  const Checkpoint& checkpoint_;
  QuantConfig config_;
  LoadReport report_;
  std::vector<bool> used_;                       // like checkpoint_.tensors()
  std::map<std::string, std::string> problems_;  // the first by name -> what is wrong
  size_t num_problems_ = 0;
  /// Modules whose tensors contradict the config, and one example each.
  size_t packed_though_excluded_ = 0;
  size_t float_though_quantized_ = 0;
  std::string packed_example_;
  std::string float_example_;
};

}  // namespace carpool
