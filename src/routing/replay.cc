#include "routing/replay.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "routing/policy_spec.h"

namespace carpool {
namespace {

class ReplayPolicy final : public RoutingPolicy {
 public:
  ReplayPolicy(RecordedStep recorded, size_t max_set)
      : recorded_(std::move(recorded)), max_set_(max_set) {}
  size_t max_set() const override { return max_set_; }
  void Select(const PolicyInput& in, const PolicyOutput& out) noexcept override {
    for (const uint32_t r : in.active) {
      const auto row = recorded_.find(r);
      if (row == recorded_.end()) continue;
      for (size_t i = 0; i < row->second.ids.size(); ++i) {
        const bool own = i >= row->second.reasons.size() || row->second.reasons[i] != "piggyback";
        out.Set(r, i, row->second.ids[i], own ? SlotReason::kOwn : SlotReason::kPiggyback);
      }
      out.counts[r] = static_cast<int32_t>(row->second.ids.size());
    }
  }

 private:
  RecordedStep recorded_;
  size_t max_set_;
};

Result<RecordedRow> ReadRow(const nlohmann::json& record, const std::string& where) {
  RecordedRow row;
  const auto ids = record.find("ids"), hash = record.find("logits"),
             reasons = record.find("reasons");
  if (ids == record.end() || !ids->is_array() || hash == record.end() || !hash->is_string()) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: wanted a row record with ids and logits",
                     where);
  }
  for (size_t i = 0; i < ids->size(); ++i) {
    const auto& id = (*ids)[i];
    if (!id.is_number_integer() || id.get<double>() < 0 || id.get<double>() > 1e9) {
      return MakeError(ErrorCode::kInvalidArgument, "{}: ids[{}]: wanted an expert id", where, i);
    }
    const bool has_reason = reasons != record.end() && reasons->is_array() && i < reasons->size() &&
                            (*reasons)[i].is_string();
    const std::string reason = has_reason ? (*reasons)[i].get<std::string>() : "own";
    if (reason == "shared") continue;
    row.ids.push_back(id.get<int32_t>());
    row.reasons.push_back(reason);
  }
  const std::string text = hash->get<std::string>();
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), row.logits, 16);
  if (ec != std::errc() || end != text.data() + text.size()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: logits: wanted 16 hexadecimal digits, got '{}'", where, text);
  }
  return row;
}

}  // namespace

Result<RecordedStep> ReadRecordedStep(const std::string& path, uint64_t step, size_t layer) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return MakeError(ErrorCode::kNotFound, "{}: cannot read that trace", path);
  RecordedStep out;
  std::string text;
  for (size_t line = 1; std::getline(file, text); ++line) {
    const std::string where = fmt::format("{}:{}", path, line);
    const auto record = nlohmann::json::parse(text, nullptr, false);
    if (!record.is_object())
      return MakeError(ErrorCode::kInvalidArgument, "{}: wanted one JSON object per line", where);
    if (record.value("record", nlohmann::json()) != "row") continue;
    const auto at = [&](const char* key) { return record.value(key, nlohmann::json()); };
    if (at("step") != step || at("layer") != layer) continue;
    if (!at("row").is_number_unsigned())
      return MakeError(ErrorCode::kInvalidArgument, "{}: row: wanted a row number", where);
    ASSIGN_OR_RETURN(out[at("row").get<size_t>()], ReadRow(record, where));
  }
  if (out.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: no row records of step {}, layer {}; replay needs a trace of level 2",
                     path, step, layer);
  }
  return out;
}

Result<std::unique_ptr<Router>> MakeReplayRouter(const GateSpec& gate, RecordedStep recorded,
                                                 size_t max_rows) {
  size_t max_set = gate.top_k;
  for (const auto& [row, record] : recorded) {
    if (record.ids.empty())
      return MakeError(ErrorCode::kInvalidArgument, "replay: row {} has no ids", row);
    const std::set<int32_t> distinct(record.ids.begin(), record.ids.end());
    if (distinct.size() != record.ids.size())
      return MakeError(ErrorCode::kInvalidArgument, "replay: row {} has an id twice", row);
    if (*distinct.rbegin() >= static_cast<int32_t>(gate.num_experts)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "replay: row {}: wanted ids below {} (num_experts), got {}", row,
                       gate.num_experts, *distinct.rbegin());
    }
    max_set = std::max(max_set, record.ids.size());
  }
  ASSIGN_OR_RETURN(auto spec, ParsePolicy("vanilla"));
  return Router::MakeWithPolicy(gate, std::move(spec),
                                std::make_unique<ReplayPolicy>(std::move(recorded), max_set), 1,
                                max_rows);
}

}  // namespace carpool
