// model.safetensors.index.json: which shard holds which tensor. Untrusted: a shard must lie in the
// model's folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace carpool {

struct ShardIndex {
  struct Entry {
    std::string name;    // without the prefix of a wrapper, like TensorInfo::name
    uint32_t shard = 0;  // into `shards`
  };
  std::vector<std::string> shards;  // file names, sorted
  std::vector<Entry> entries;       // sorted by name
};

/// Reads DIR/model.safetensors.index.json. Errors: Corrupt (not JSON, names twice), InvalidArgument
/// (a shard that is not a plain file name, or leads out of the folder), NotFound (a shard that is
/// not there).
Result<ShardIndex> LoadShardIndex(const std::string& dir);

/// Success when `path` (a file of `dir`) still lies in `dir` after symbolic links, or in the blob
/// store next to it that the Hugging Face download cache links to (…/snapshots/REVISION ->
/// …/blobs).
Status CheckInsideFolder(const std::string& dir, const std::string& path);

}  // namespace carpool
