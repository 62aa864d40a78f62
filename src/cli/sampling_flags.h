// Flags that choose how tokens are sampled; defaults come from the checkpoint's
// generation_config.json.
#pragma once

#include <optional>

#include "cli/command.h"
#include "engine/sampler.h"
#include "models/model_config.h"

namespace carpool::cli {

struct SamplingFlags {
  std::optional<float> temperature;
  std::optional<float> top_p;
  SamplingParams rest;  // the others have fixed defaults
};

/// --temperature, --top-p, --top-k, --min-p, --repetition-penalty, --presence-penalty,
/// --frequency-penalty, --seed.
void AddSamplingFlags(CLI::App& command, SamplingFlags& flags);
Result<SamplingParams> ResolveSampling(const SamplingFlags& flags, const ModelConfig& config);

}  // namespace carpool::cli
