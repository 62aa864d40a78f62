// The lightning indexer of DeepSeek sparse attention: which positions a row's attention may see
// (models.md 1.6).
#pragma once

#include <vector>

#include "layers/step.h"
#include "ops/matmul.h"

namespace carpool {

struct PackedIndexerWeights {
  PackedMatrix wq_b;          // [heads * dim, q_lora]
  PackedMatrix wk;            // [dim, hidden]
  PackedMatrix weights_proj;  // [heads, hidden]
  std::vector<float> k_norm;
  std::vector<float> k_norm_bias;
};

/// Scratch of one call, filled by the attention's shared matmuls.
struct IndexerInputs {
  MatView<float> q;             // [rows, heads * dim]
  MatView<float> k;             // [rows, dim]
  MatView<float> head_weights;  // [rows, heads]
};

class DsaIndexer {
 public:
  DsaIndexer(size_t layer, size_t heads, size_t dim, size_t top_k, bool rope_interleaved,
             PackedIndexerWeights weights)
      : layer_(layer),
        heads_(heads),
        dim_(dim),
        top_k_(top_k),
        rope_interleaved_(rope_interleaved),
        weights_(std::move(weights)) {}

  const PackedIndexerWeights& weights() const { return weights_; }
  IndexerInputs Allocate(size_t rows, Arena& arena) const;

  /// Writes the rows' index keys to the cache, then sets step.selected[t] for every row: the top_k
  /// positions with the largest scores, ascending (in step.selection_storage), or empty when the
  /// row sees no more than top_k keys.
  void Select(IndexerInputs inputs, StepContext& step) const;

 private:
  size_t layer_, heads_, dim_, top_k_;
  bool rope_interleaved_;
  PackedIndexerWeights weights_;
};

}  // namespace carpool
