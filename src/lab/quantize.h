// Rewriting a checkpoint with smaller weights, tensor by tensor: memory for one tensor, whatever
// the model's size.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "quant/stored_matrix.h"

namespace carpool {

struct QuantizeOptions {
  // Routed experts' projections: kNVFP4, kMXFP4, kInt8 or kF8E4M3.
  Storage experts = Storage::kNVFP4;
  // Attention, shared experts, dense MLPs: one of those or kBF16.
  Storage dense = Storage::kBF16;
  std::string keep;  // regular expression; modules it finds stay as they are
  uint64_t shard_bytes = uint64_t{2} << 30;
  std::function<void(size_t done, size_t total)> progress;
};

/// One line per (part, from, to). `rmse` is relative to the root mean square of the source.
struct QuantizeKind {
  std::string part;  // "experts" or "dense"
  std::string from, to;
  size_t tensors = 0;
  uint64_t bytes_before = 0, bytes_after = 0;
  double rmse = 0.0;
};

struct QuantizeReport {
  std::vector<QuantizeKind>
      kinds;  // of what this run wrote: finished shards of an interrupted one are not read again
  uint64_t bytes_before = 0, bytes_after = 0;
  size_t shards = 0, shards_kept = 0;
};

/// `from` and `to` are checkpoint directories; `to` is made, or is empty, or holds an interrupted
/// run of the same `from` and options, which is resumed shard by shard. The index, without which
/// nothing loads, is written last. NVFP4 in the ModelOpt layout, MXFP4 and
/// int8 (groups of 32) as compressed-tensors, FP8 in 128 x 128 blocks. Router, embeddings, head,
/// norms, kv_b and indexer weights stay as they are. Errors: InvalidArgument (`to` is in use,
/// cannot be written), and those of loading `from`.
Result<QuantizeReport> QuantizeCheckpoint(const std::string& from, const std::string& to,
                                          const QuantizeOptions& options, ThreadPool& pool);

}  // namespace carpool
