#include "lab/logits.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "lab/lockstep.h"
#include "routing/policy_spec.h"

namespace carpool {
namespace {

constexpr size_t kInStep = 8;

}  // namespace

Result<std::vector<TokenWindow>> ReadTokenWindows(const std::string& path, size_t vocab,
                                                  size_t max_tokens) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto bad = [&](std::string_view what) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: wanted a JSON list of lists of 1 to {} token ids from 0 to {}, got {}",
                     path, max_tokens, vocab - 1, what);
  };
  if (!json.is_array() || json.empty()) return bad("something else");
  std::vector<TokenWindow> windows;
  for (const auto& list : json) {
    if (!list.is_array() || list.empty() || list.size() > max_tokens)
      return bad(fmt::format("another entry {}", windows.size()));
    TokenWindow& window = windows.emplace_back();
    for (const auto& id : list) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= vocab)
        return bad(fmt::format("another id {} in list {}", window.size(), windows.size() - 1));
      window.push_back(id.get<int32_t>());
    }
  }
  return windows;
}

Status WindowLogits(const Model& model, ThreadPool& pool, Activations activations,
                    std::span<const TokenWindow> windows,
                    const std::function<Status(size_t window, size_t position,
                                               std::span<const float> logits)>& row) {
  const ModelConfig& config = model.config();
  ASSIGN_OR_RETURN(const auto policy, ParsePolicy("vanilla"));
  ASSIGN_OR_RETURN(const auto router,
                   Router::Make(config.gate, policy, config.NumMoeLayers(), kInStep));
  for (size_t first = 0; first < windows.size(); first += kInStep) {
    const auto group = windows.subspan(first, std::min(kInStep, windows.size() - first));
    size_t longest = 0;
    for (const TokenWindow& window : group) longest = std::max(longest, window.size());
    Lockstep lockstep(model, pool, *router, activations, group.size(), longest);
    std::vector<int32_t> tokens(group.size());
    for (size_t i = 0; i < longest; ++i) {
      for (size_t w = 0; w < group.size(); ++w)
        tokens[w] = i < group[w].size() ? group[w][i] : 0;  // shorter windows run on unheard
      const MatView<const float> logits = lockstep.Step(tokens);
      for (size_t w = 0; w < group.size(); ++w) {
        if (i < group[w].size()) RETURN_IF_ERROR(row(first + w, i, logits.RowSpan(w)));
      }
    }
  }
  return {};
}

Status WriteLogits(const Model& model, ThreadPool& pool, Activations activations,
                   std::span<const TokenWindow> windows, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  std::vector<size_t> first_row;  // of each window
  size_t rows = 0;
  for (const TokenWindow& window : windows) {
    first_row.push_back(rows);
    rows += window.size();
  }
  const auto failed = [&] {
    return MakeError(ErrorCode::kInvalidArgument, "{}: cannot be written: {}", path,
                     std::strerror(errno));
  };
  RETURN_IF_ERROR(WindowLogits(
      model, pool, activations, windows,
      [&](size_t window, size_t position, std::span<const float> logits) -> Status {
        file.seekp(
            static_cast<std::streamoff>((first_row[window] + position) * logits.size_bytes()));
        file.write(reinterpret_cast<const char*>(logits.data()),
                   static_cast<std::streamsize>(logits.size_bytes()));
        if (!file) return failed();
        return {};
      }));
  file.close();
  if (!file) return failed();
  return {};
}

}  // namespace carpool
