// THE LIST of architectures that can be built; one file each.
#pragma once

#include "models/model.h"

namespace carpool {

/// Binds, checks and packs every weight of `config`'s architecture.
Result<ModelParts> BuildModel(const ModelConfig& config, const Checkpoint& checkpoint,
                              ThreadPool& pool, const LoadOptions& options);

Result<ModelParts> BuildGlmMoeDsa(const ModelConfig& config, const Checkpoint& checkpoint,
                                  ThreadPool& pool, const LoadOptions& options);

}  // namespace carpool
