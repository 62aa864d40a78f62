// ModelSummary: what a checkpoint is, from its config and the headers of its files. No weight is
// read but vectors.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"
#include "models/model_config.h"
#include "weights/tensor_binder.h"

namespace carpool {

struct ModelSummary {
  ModelConfig config;
  LoadReport report;
  std::string
      quantization;      // what the checkpoint says of itself: "NVFP4", "fp8", …; empty: nothing
  size_t num_files = 0;  // safetensors files
  size_t total_bytes = 0;                     // of all weights
  size_t parameters = 0;                      // MTP layers left out
  size_t mtp_layers = 0, mtp_parameters = 0;  // those the checkpoint has
  size_t active_parameters = 0;  // that one token row meets: experts outside its top k left out
  size_t expert_bytes = 0;       // one routed expert: gate, up and down with their scales
};

/// Opens, checks and binds everything in `dir`. Errors as in LoadModelConfig, Checkpoint and
/// BindModel.
Result<ModelSummary> SummarizeModel(const std::string& dir);

}  // namespace carpool
