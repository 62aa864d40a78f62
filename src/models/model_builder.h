// Bound weights -> packed layers: the same for every architecture.
#pragma once

#include "models/model.h"

namespace carpool {

/// Binds, checks and packs every weight of `config`'s architecture, layer by layer.
Result<ModelParts> BuildModel(const ModelConfig& config, const Checkpoint& checkpoint,
                              ThreadPool& pool, const LoadOptions& options);

}  // namespace carpool
