// SGLang writes one record per forward pass: topk_ids_of_layer [layers, tokens, k] of physical
// expert ids, with positions and the kind of pass. Decode passes are steps. Records do not name
// requests; a row continues the request whose last position was one less.
#include <algorithm>

#include "lab/torch_file.h"
#include "lab/trace_formats.h"

namespace carpool {
namespace {

using Kind = TorchValue::Kind;
constexpr int64_t kDecode = 2;  // ForwardMode.DECODE

/// Physical to logical expert ids per layer; empty: they are the same.
struct ExpertMap {
  std::vector<int64_t> logical;  // [layers, physical]
  size_t physical = 0;

  int64_t Logical(size_t layer, int64_t id) const {
    const auto i = static_cast<size_t>(id);
    if (id < 0 || i >= physical || layer * physical + i >= logical.size()) return id;
    return logical[layer * physical + i];
  }
};

/// Follows requests from pass to pass by their positions.
class RequestNumbers {
 public:
  std::vector<size_t> Next(const std::vector<int64_t>& positions) {
    std::vector<std::pair<int64_t, size_t>> now;  // position, request
    std::vector<uint8_t> taken(last_.size(), 0);
    std::vector<size_t> requests;
    for (const int64_t position : positions) {
      size_t request = count_;
      for (size_t i = 0; i < last_.size(); ++i) {
        if (taken[i] != 0 || last_[i].first + 1 != position) continue;
        taken[i] = 1;
        request = last_[i].second;
        break;
      }
      count_ += request == count_;
      now.emplace_back(position, request);
      requests.push_back(request);
    }
    last_ = std::move(now);
    return requests;
  }

 private:
  std::vector<std::pair<int64_t, size_t>> last_;
  size_t count_ = 0;
};

Status AddPass(const TorchFile& file, const TorchValue& record, uint64_t step,
               const ExpertMap& experts, RequestNumbers& requests, const std::string& where,
               TraceSteps& steps) {
  const TorchValue* ids = file.Find(record, "topk_ids_of_layer");
  const TorchValue* positions = file.Find(record, "positions");
  if (ids == nullptr || ids->shape.size() != 3)
    return BadTrace(
        "{}: wanted topk_ids_of_layer [layers, tokens, k]; record with "
        "--expert-distribution-recorder-mode per_token",
        where);
  ASSIGN_OR_RETURN(std::vector<int64_t> values, file.Integers(*ids));
  const auto layers = static_cast<size_t>(ids->shape[0]),
             tokens = static_cast<size_t>(ids->shape[1]), k = static_cast<size_t>(ids->shape[2]);
  std::vector<int64_t> at;
  if (positions != nullptr)
    for (const size_t i : positions->items) at.push_back(file.at(i).integer);
  at.resize(tokens, -1);
  const std::vector<size_t> numbers = requests.Next(at);
  for (size_t l = 0; l < layers; ++l) {
    for (size_t t = 0; t < tokens; ++t) {
      int64_t* row = values.data() + (l * tokens + t) * k;
      for (size_t i = 0; i < k; ++i) row[i] = experts.Logical(l, row[i]);
      RETURN_IF_ERROR(AddTracedRow(steps, step, l, numbers[t], row, k, where));
    }
  }
  return {};
}

}  // namespace

Result<TraceSteps> ReadSglangRecord(std::string_view bytes, const std::string& path) {
  ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Parse(bytes, path));
  const TorchValue* records = file.Find(file.root(), "records");
  if (records == nullptr || records->kind != Kind::kList) {
    return BadTrace(
        "{}: wanted the records of SGLang's expert-distribution recorder in mode "
        "per_token; other modes count experts only, which says nothing of a policy",
        path);
  }
  ExpertMap experts;
  if (const TorchValue* map = file.Find(file.root(), "last_physical_to_logical_map");
      map != nullptr && map->kind == Kind::kTensor && map->shape.size() == 2) {
    ASSIGN_OR_RETURN(experts.logical, file.Integers(*map));
    experts.physical = static_cast<size_t>(map->shape[1]);
  }
  TraceSteps steps;
  RequestNumbers requests;
  uint64_t passes = 0;
  for (size_t i = 0; i < records->items.size(); ++i) {
    const TorchValue& record = file.at(records->items[i]);
    const TorchValue* mode = file.Find(record, "forward_mode");
    if (mode != nullptr && mode->integer != kDecode) continue;
    const TorchValue* id = file.Find(record, "forward_pass_id");
    const uint64_t step =
        id != nullptr && id->integer >= 0 ? static_cast<uint64_t>(id->integer) : passes;
    RETURN_IF_ERROR(AddPass(file, record, step, experts, requests,
                            fmt::format("{}: record {}", path, i), steps));
    ++passes;
  }
  if (passes == 0) return BadTrace("{}: no decode passes in it", path);
  return steps;
}

}  // namespace carpool
