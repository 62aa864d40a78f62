#include "weights/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/mapped_file.h"
#include "base/printable.h"
#include "weights/gguf.h"
#include "weights/safetensors.h"
#include "weights/shard_index.h"

namespace carpool {

struct Checkpoint::State {
  std::vector<MappedFile> files;
  std::vector<std::unique_ptr<std::string>> renamed;
  std::vector<TensorInfo> tensors;          // by name
  std::shared_ptr<const void> owner;        // of tensors that are in none of `files`
  std::span<const MappedFile> owned_files;  // by `owner`

  std::span<const MappedFile> Files() const {
    return owned_files.empty() ? std::span(files) : owned_files;
  }
  Status Add(const std::string& path);
  Status SortByName(const std::string& where);
};

namespace {

/// The names of one shard against what the index says of it; both are sorted here.
Status CompareWithIndex(const std::string& path, std::vector<std::string_view> in_file,
                        const std::vector<std::string_view>& in_index) {
  std::sort(in_file.begin(), in_file.end());
  const auto [file, index] =
      std::mismatch(in_file.begin(), in_file.end(), in_index.begin(), in_index.end());
  if (file == in_file.end() && index == in_index.end()) return {};
  const bool extra = index == in_index.end() || (file != in_file.end() && *file < *index);
  return MakeError(ErrorCode::kCorrupt, "{}: tensor '{}' is {}", path,
                   Printable(extra ? *file : *index),
                   extra ? "in this shard, but model.safetensors.index.json does not say so"
                         : "not in this shard, where model.safetensors.index.json says it is");
}

}  // namespace

Status Checkpoint::State::Add(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(file.bytes(), path));
  if (tensors.empty()) {
    tensors = std::move(header.tensors);
  } else {
    tensors.insert(tensors.end(), header.tensors.begin(), header.tensors.end());
  }
  std::move(header.renamed.begin(), header.renamed.end(), std::back_inserter(renamed));
  files.push_back(std::move(file));
  return {};
}

Status Checkpoint::State::SortByName(const std::string& where) {
  const auto by_name = [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; };
  if (!std::is_sorted(tensors.begin(), tensors.end(), by_name))
    std::sort(tensors.begin(), tensors.end(), by_name);
  const auto twin =
      std::adjacent_find(tensors.begin(), tensors.end(),
                         [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (twin == tensors.end()) return {};
  return MakeError(ErrorCode::kCorrupt, "{}: tensor '{}' is there twice", where,
                   Printable(twin->name));
}

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::FromTensors(std::vector<TensorInfo> tensors,
                                           std::shared_ptr<const void> owner,
                                           std::span<const MappedFile> files,
                                           const std::string& where) {
  auto state = std::make_unique<State>();
  state->tensors = std::move(tensors);
  state->owner = std::move(owner);
  state->owned_files = files;
  RETURN_IF_ERROR(state->SortByName(where));
  return Checkpoint(std::move(state));
}

Result<Checkpoint> Checkpoint::Open(const std::string& path) {
  return IsGgufFile(path) ? OpenGguf(path) : OpenDirectory(path);
}

Result<Checkpoint> Checkpoint::OpenDirectory(const std::string& dir) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (!fs::exists(dir, ec))
    return MakeError(ErrorCode::kNotFound, "{}: no such directory", Printable(dir, 4096));
  if (!fs::is_directory(dir, ec)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: wanted a checkpoint directory, got a file that is not GGUF",
                     Printable(dir, 4096));
  }
  auto state = std::make_unique<State>();
  const std::string single = dir + "/model.safetensors";
  if (fs::exists(single, ec)) {
    RETURN_IF_ERROR(CheckInsideFolder(dir, single));
    RETURN_IF_ERROR(state->Add(single));
    RETURN_IF_ERROR(state->SortByName(single));
    return Checkpoint(std::move(state));
  }
  const std::string where = dir + "/model.safetensors.index.json";
  if (!fs::exists(where, ec)) {
    return MakeError(ErrorCode::kNotFound,
                     "{}: neither model.safetensors nor model.safetensors.index.json is there",
                     dir);
  }
  ASSIGN_OR_RETURN(const ShardIndex index, LoadShardIndex(dir));
  std::vector<std::vector<std::string_view>> names(index.shards.size());
  for (const auto& entry : index.entries) names[entry.shard].push_back(entry.name);
  for (size_t i = 0; i < index.shards.size(); ++i) {
    const std::string path = dir + "/" + index.shards[i];
    const size_t before = state->tensors.size();
    RETURN_IF_ERROR(state->Add(path));
    std::vector<std::string_view> in_file;
    for (size_t t = before; t < state->tensors.size(); ++t)
      in_file.push_back(state->tensors[t].name);
    RETURN_IF_ERROR(CompareWithIndex(path, std::move(in_file), names[i]));
  }
  RETURN_IF_ERROR(state->SortByName(where));
  return Checkpoint(std::move(state));
}

Result<Checkpoint> Checkpoint::FromTensors(std::vector<TensorInfo> tensors) {
  auto state = std::make_unique<State>();
  state->tensors = std::move(tensors);
  RETURN_IF_ERROR(state->SortByName("tensors in memory"));
  return Checkpoint(std::move(state));
}

const TensorInfo* Checkpoint::Find(std::string_view name) const {
  const auto& all = state_->tensors;
  const auto it =
      std::lower_bound(all.begin(), all.end(), name,
                       [](const TensorInfo& t, std::string_view n) { return t.name < n; });
  return it != all.end() && it->name == name ? &*it : nullptr;
}

const std::vector<TensorInfo>& Checkpoint::tensors() const { return state_->tensors; }
size_t Checkpoint::num_files() const { return state_->Files().size(); }

std::span<const TensorInfo> Checkpoint::WithPrefix(std::string_view prefix) const {
  const auto& all = state_->tensors;
  const auto first =
      std::lower_bound(all.begin(), all.end(), prefix,
                       [](const TensorInfo& t, std::string_view n) { return t.name < n; });
  const auto last = std::find_if_not(
      first, all.end(), [&](const TensorInfo& t) { return t.name.starts_with(prefix); });
  return {first, last};
}

void Checkpoint::Prefetch(std::string_view prefix) const {
  for (const TensorInfo& tensor : WithPrefix(prefix)) {
    for (const MappedFile& file : state_->Files()) file.Prefetch(tensor.data, tensor.bytes);
  }
}

void Checkpoint::ReleasePages() const {
  for (const MappedFile& file : state_->Files()) file.Release();
}

}  // namespace carpool
