// Model: a loaded checkpoint and the one decoder loop that every architecture shares.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "layers/attention.h"
#include "layers/mlp.h"
#include "models/model_config.h"
#include "weights/checkpoint.h"
#include "weights/tensor_binder.h"

namespace carpool {

struct LoadOptions {
  /// Called with (layers done, layers in all) while layers are packed; may be empty.
  std::function<void(size_t, size_t)> progress;
};

/// One transformer layer: x += attention(norm(x)); x += mlp(norm(x)).
struct DecoderLayer {
  std::vector<float> input_norm;
  std::unique_ptr<Attention> attention;
  std::vector<float> post_attention_norm;
  std::unique_ptr<Mlp> mlp;
};

/// What models/model_builder.h makes of a checkpoint.
struct ModelParts {
  ModelConfig config;
  StoredMatrix embedding;  // [vocab, hidden], read row by row from the checkpoint
  std::vector<DecoderLayer> layers;
  std::vector<float> final_norm;
  PackedMatrix head;  // [vocab, hidden]
  KvLayout kv_layout;
  size_t bytes_per_expert = 0;  // packed, one layer
  LoadReport report;
};

class Model {
 public:
  /// Loads the checkpoint in `dir`, or the GGUF file of that name. Errors: everything config, files and tensors can get wrong, in
  /// one line each.
  static Result<std::unique_ptr<Model>> Load(const std::string& dir, ThreadPool& pool,
                                             const LoadOptions& options = {});

  const ModelConfig& config() const { return parts_.config; }
  const KvLayout& kv_layout() const { return parts_.kv_layout; }
  const LoadReport& report() const { return parts_.report; }
  size_t bytes_per_expert() const { return parts_.bytes_per_expert; }

  /// One step. logits: [rows that want them, vocab], in row order. Every table has room for its
  /// rows' positions. Exact mode (policy vanilla): a row's logits depend on its own sequence only,
  /// bit for bit, per ISA and activation mode. No allocation once the arena has warmed up.
  /// `observer` may be null.
  void Forward(const StepBatch& batch, KvCache& kv, Router& router, OpContext& ops,
               StepStats& stats, RoutingObserver* observer, MatView<float> logits) const;

  Model(Checkpoint checkpoint, ModelParts parts);

 private:
  Checkpoint checkpoint_;  // keeps the embedding mapped
  ModelParts parts_;
  std::vector<float> inv_freq_;  // [rope dim / 2]
};

}  // namespace carpool
