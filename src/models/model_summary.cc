#include "models/model_summary.h"

#include <utility>

#include "models/model_weights.h"

namespace carpool {
namespace {

size_t FirstExpertBytes(const ModelWeights& weights) {
  for (const auto& layer : weights.layers) {
    if (!layer.moe) continue;
    const auto& e = layer.moe->experts.front();
    return e.gate.TotalBytes() + e.up.TotalBytes() + e.down.TotalBytes();
  }
  return 0;
}

}  // namespace

Result<ModelSummary> SummarizeModel(const std::string& dir) {
  ModelSummary s;
  ASSIGN_OR_RETURN(s.config, LoadModelConfig(dir));
  ASSIGN_OR_RETURN(QuantConfig quant, QuantConfig::Load(dir));
  s.quantization = quant.method();
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  s.num_files = checkpoint.num_files();
  TensorBinder binder(checkpoint, std::move(quant));
  ASSIGN_OR_RETURN(const ModelWeights weights, BindModel(s.config, binder));
  s.report = binder.report();
  for (const auto& [storage, bytes] : s.report.tensor_bytes) s.total_bytes += bytes;
  const auto& c = s.config;
  s.mtp_layers = weights.mtp.size();
  s.mtp_parameters = weights.mtp_parameters;
  s.parameters = s.report.parameters - s.mtp_parameters;
  s.active_parameters = s.parameters - c.NumMoeLayers() * (c.gate.num_experts - c.gate.top_k) * 3 *
                                           c.hidden * c.expert_width;
  s.expert_bytes = FirstExpertBytes(weights);
  return s;
}

}  // namespace carpool
