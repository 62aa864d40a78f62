#include "weights/shard_index.h"

#include <simdjson.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>

#include "base/mapped_file.h"
#include "base/printable.h"
#include "weights/safetensors.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;
namespace ondemand = simdjson::ondemand;

constexpr size_t kMaxIndexBytes = size_t{512} << 20;
constexpr size_t kMaxShards = 10'000;

Status CheckShardName(const std::string& where, std::string_view shard) {
  const bool plain = !shard.empty() && shard != "." && shard != ".." &&
                     shard.find('/') == shard.npos && shard.find('\\') == shard.npos &&
                     shard.find('\0') == shard.npos;
  if (plain && shard.ends_with(".safetensors")) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "{}: shard '{}': wanted the name of a .safetensors file in the same folder",
                   where, Printable(shard));
}

class IndexParser {
 public:
  IndexParser(std::string where, const simdjson::padded_string& text)
      : where_(std::move(where)), text_(text) {}

  Result<ShardIndex> Parse() {
    ondemand::parser parser(kMaxIndexBytes);
    ondemand::document doc;
    if (auto e = parser.iterate(text_).get(doc)) return Json(e);
    ondemand::object root;
    if (auto e = doc.get_object().get(root)) return Json(e);
    bool found = false;
    for (auto item : root) {
      ondemand::field field;
      if (auto e = std::move(item).get(field)) return Json(e);
      std::string_view key;
      if (auto e = field.unescaped_key().get(key)) return Json(e);
      if (key != "weight_map") continue;
      if (std::exchange(found, true))
        return MakeError(ErrorCode::kCorrupt, "{}: 'weight_map' is there twice", where_);
      ondemand::object map;
      if (auto e = field.value().get_object().get(map)) return Json(e);
      RETURN_IF_ERROR(ReadMap(map));
    }
    if (doc.current_location().error() != simdjson::OUT_OF_BOUNDS)
      return MakeError(ErrorCode::kCorrupt, "{}: there is text after the JSON document", where_);
    if (!found || index_.entries.empty()) {
      return MakeError(ErrorCode::kCorrupt, "{}: wanted a 'weight_map' of tensor names to shards",
                       where_);
    }
    return Sorted();
  }

 private:
  Error Json(simdjson::error_code code) const {
    return MakeError(ErrorCode::kCorrupt, "{}: not valid JSON of the expected form: {}", where_,
                     simdjson::error_message(code));
  }

  Status ReadMap(ondemand::object& map) {
    for (auto item : map) {
      ondemand::field field;
      if (auto e = std::move(item).get(field)) return Json(e);
      std::string_view name;
      if (auto e = field.unescaped_key().get(name)) return Json(e);
      std::string_view shard;
      if (auto e = field.value().get_string().get(shard)) return Json(e);
      auto it = numbers_.find(shard);
      if (it == numbers_.end()) {
        RETURN_IF_ERROR(CheckShardName(where_, shard));
        if (numbers_.size() == kMaxShards) {
          return MakeError(ErrorCode::kUnsupported, "{}: more than {} shards", where_, kMaxShards);
        }
        it = numbers_.emplace(std::string(shard), static_cast<uint32_t>(numbers_.size())).first;
      }
      const PlainName plain = StripWrapper(name);
      index_.entries.push_back({std::string(plain.head) + std::string(plain.tail), it->second});
    }
    return {};
  }

  Result<ShardIndex> Sorted() {
    std::vector<uint32_t> place(numbers_.size());
    for (const auto& [shard, number] : numbers_) {
      place[number] = static_cast<uint32_t>(index_.shards.size());
      index_.shards.push_back(shard);
    }
    for (auto& entry : index_.entries) entry.shard = place[entry.shard];
    const auto by_name = [](const auto& a, const auto& b) { return a.name < b.name; };
    std::sort(index_.entries.begin(), index_.entries.end(), by_name);
    const auto twin =
        std::adjacent_find(index_.entries.begin(), index_.entries.end(),
                           [](const auto& a, const auto& b) { return a.name == b.name; });
    if (twin != index_.entries.end()) {
      return MakeError(ErrorCode::kCorrupt, "{}: tensor '{}' is there twice", where_,
                       Printable(twin->name));
    }
    return std::move(index_);
  }

  std::string where_;
  const simdjson::padded_string& text_;
  ShardIndex index_;
  std::map<std::string, uint32_t, std::less<>> numbers_;
};

}  // namespace

Status CheckInsideFolder(const std::string& dir, const std::string& path) {
  std::error_code ec;
  const fs::path folder = fs::canonical(dir, ec);
  if (ec) return MakeError(ErrorCode::kNotFound, "{}: no such directory", Printable(dir, 4096));
  const fs::path target = fs::canonical(path, ec);
  if (ec) return MakeError(ErrorCode::kNotFound, "{}: no such file", Printable(path, 4096));
  const fs::path home = target.parent_path();
  if (home == folder) return {};
  const fs::path snapshots = folder.parent_path();
  if (snapshots.filename() == "snapshots" && home == snapshots.parent_path() / "blobs") return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "{}: is a link to {}, outside the model's folder; copy the file instead",
                   Printable(path, 4096), Printable(target.string(), 4096));
}

Result<ShardIndex> LoadShardIndex(const std::string& dir) {
  const std::string where = dir + "/model.safetensors.index.json";
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(where, kMaxIndexBytes));
  const simdjson::padded_string padded(text);
  ASSIGN_OR_RETURN(ShardIndex index, IndexParser(where, padded).Parse());
  for (const auto& shard : index.shards) {
    const std::string path = dir + "/" + shard;
    std::error_code ec;
    if (!fs::exists(path, ec)) {
      return MakeError(ErrorCode::kNotFound,
                       "{}: shard {} is not in the folder; incomplete download?", where,
                       Printable(shard));
    }
    RETURN_IF_ERROR(CheckInsideFolder(dir, path));
  }
  return index;
}

}  // namespace carpool
