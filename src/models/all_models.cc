#include "models/all_models.h"

namespace carpool {
namespace {

struct Builder {
  std::string_view model_type;
  Result<ModelParts> (*build)(const ModelConfig&, const Checkpoint&, ThreadPool&,
                              const LoadOptions&);
};

constexpr Builder kBuilders[] = {
    {"glm_moe_dsa", BuildGlmMoeDsa},
};

}  // namespace

Result<ModelParts> BuildModel(const ModelConfig& config, const Checkpoint& checkpoint,
                              ThreadPool& pool, const LoadOptions& options) {
  for (const Builder& builder : kBuilders) {
    if (builder.model_type == config.model_type)
      return builder.build(config, checkpoint, pool, options);
  }
  return MakeError(ErrorCode::kUnsupported, "model_type '{}' can be read but not run",
                   config.model_type);
}

Result<std::unique_ptr<Model>> Model::Load(const std::string& dir, ThreadPool& pool,
                                           const LoadOptions& options) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(dir));
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::OpenDirectory(dir));
  ASSIGN_OR_RETURN(ModelParts parts, BuildModel(config, checkpoint, pool, options));
  return std::make_unique<Model>(std::move(checkpoint), std::move(parts));
}

}  // namespace carpool
