// A few layers of a real model's size with random weights: what end-to-end speed is measured on
// where the real checkpoint does not fit.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "quant/random_matrix.h"

namespace carpool {

/// The sizes of the real model that a stack of few layers is extrapolated to.
struct SyntheticShape {
  std::string_view name;
  size_t dense_layers = 0, moe_layers = 0;
  size_t vocab = 0;
};
/// glm-5. Errors list the known names.
Result<SyntheticShape> FindSyntheticShape(std::string_view name);

struct SyntheticOptions {
  std::string_view shape = "glm-5";
  size_t moe_layers = 1;  // after one dense layer
  size_t experts = 0;     // 0: as many as the real one
  WeightFormat expert_format = WeightFormat::kNVFP4;
  LoadOptions load;
  uint64_t seed = 0;
};

/// One dense layer, then `moe_layers` MoE layers, a vocabulary of kSyntheticVocab: the ordinary
/// loader on tensors in memory. Layers share their random source tensors and own their packed
/// copies, which are what a step reads.
inline constexpr size_t kSyntheticVocab = 8192;
class SyntheticModel {
 public:
  static Result<std::unique_ptr<SyntheticModel>> Make(const SyntheticOptions& options,
                                                      ThreadPool& pool);
  const Model& model() const { return *model_; }

  /// Packed bytes of one MoE layer; of everything else. For choosing how many layers fit.
  static Result<size_t> LayerBytes(const SyntheticOptions& options);
  static Result<size_t> OtherBytes(const SyntheticOptions& options);
  /// Of the cache, in one layer.
  static size_t CacheBytesPerToken();

 private:
  void AddVector(const std::string& name, size_t n);
  void AddLinear(const std::string& module, size_t rows, size_t cols, WeightFormat format);
  void AddTensor(const std::string& name, Dtype dtype, std::initializer_list<uint64_t> shape,
                 const std::byte* data, size_t bytes);
  void AddLayer(const ModelConfig& config, size_t layer, const SyntheticOptions& options);

  uint64_t seed_ = 0;
  std::deque<OwnedMatrix> matrices_;  // one per size and format, shared by all modules that have it
  std::vector<float> ones_;
  std::deque<std::string> names_;
  std::vector<TensorInfo> tensors_;
  std::unique_ptr<Model> model_;  // views all of the above
};

}  // namespace carpool
