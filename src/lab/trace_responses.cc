// vLLM sends a choice's routed_experts as base64 of an .npy [tokens, layers, k]; Carpool, and vLLM
// up to 0.21, as nested lists. The last generated token was never run, and prompt tokens come first
// unless the answer has them apart as prompt_routed_experts.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "lab/trace_formats.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

constexpr size_t kAll = SIZE_MAX;

std::string DecodeBase64(const std::string& text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) continue;  // padding, line ends
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xFF);
  }
  return out;
}

/// Throws what nlohmann throws.
Result<NpyArray> ReadNested(const Json& list, const std::string& where) {
  NpyArray out;
  out.shape = {list.size(), 0, 0};
  for (const Json& token : list) {
    for (const Json& layer : token) {
      if (out.shape[2] == 0) out.shape[1] = token.size(), out.shape[2] = layer.size();
      if (token.size() != out.shape[1] || layer.size() != out.shape[2])
        return BadTrace("{}: rows of routed_experts of different sizes", where);
      for (const Json& id : layer) out.values.push_back(id.get<int64_t>());
    }
  }
  return out;
}

Result<NpyArray> ReadExperts(const Json& value, const std::string& where) {
  if (value.is_array()) return ReadNested(value, where);
  if (!value.is_string())
    return BadTrace("{}: wanted routed_experts as a list or base64, got {}", where,
                    value.type_name());
  const std::string bytes = DecodeBase64(value.get<std::string>());
  if (!bytes.starts_with("\x93NUMPY"))
    return BadTrace(
        "{}: routed_experts is base64 of something without a shape; wanted an .npy "
        "(convert it with numpy.save)",
        where);
  return ReadNpyArray(bytes, where);
}

/// Throws what nlohmann throws.
Status AddChoice(const Json& choice, size_t decode_tokens, size_t request, const std::string& where,
                 TraceSteps& steps) {
  const Json* value = choice.contains("routed_experts") ? &choice.at("routed_experts") : nullptr;
  if (value == nullptr && choice.contains("sglext"))
    value = &choice.at("sglext").at("routed_experts");
  if (value == nullptr || value->is_null())
    return BadTrace("{}: a choice without routed_experts; ask the server to return them", where);
  ASSIGN_OR_RETURN(const NpyArray experts, ReadExperts(*value, where));
  const uint64_t tokens = experts.shape[0], layers = experts.shape[1], k = experts.shape[2];
  const uint64_t first = tokens - std::min<uint64_t>(tokens, decode_tokens);
  for (uint64_t t = first; t < tokens; ++t) {
    for (uint64_t l = 0; l < layers; ++l) {
      RETURN_IF_ERROR(AddTracedRow(steps, t - first, l, request,
                                   experts.values.data() + (t * layers + l) * k, k, where));
    }
  }
  return {};
}

/// Throws what nlohmann throws.
Status AddResponse(const Json& response, size_t& requests, const std::string& where,
                   TraceSteps& steps) {
  const Json& choices = response.at("choices");
  size_t decode = kAll;
  if (!response.contains("prompt_routed_experts") ||
      response.at("prompt_routed_experts").is_null()) {
    // All choices of an answer generated equally many tokens, or there is one.
    const size_t generated =
        response.contains("usage") ? response.at("usage").value("completion_tokens", size_t{0}) : 0;
    if (generated == 0)
      return BadTrace(
          "{}: wanted usage.completion_tokens, to tell generated tokens from the prompt", where);
    decode = std::max<size_t>(generated / std::max<size_t>(choices.size(), 1), 1) - 1;
  }
  for (const Json& choice : choices)
    RETURN_IF_ERROR(AddChoice(choice, decode, requests++, where, steps));
  return {};
}

}  // namespace

Result<TraceSteps> ReadResponses(std::string_view text, const std::string& path) {
  TraceSteps steps;
  size_t requests = 0;
  std::string where = path;
  try {
    const Json whole = Json::parse(text, nullptr, false);
    if (whole.is_object()) {
      RETURN_IF_ERROR(AddResponse(whole, requests, where, steps));
    } else if (whole.is_array()) {
      for (const Json& response : whole)
        RETURN_IF_ERROR(AddResponse(response, requests, where, steps));
    } else {
      size_t number = 0;
      for (size_t start = 0; start < text.size();) {
        const size_t end = std::min(text.find('\n', start), text.size());
        const std::string_view line = text.substr(start, end - start);
        start = end + 1;
        where = fmt::format("{}: line {}", path, ++number);
        if (!line.empty()) RETURN_IF_ERROR(AddResponse(Json::parse(line), requests, where, steps));
      }
    }
  } catch (const std::exception& e) {
    return BadTrace("{}: not an answer with routed_experts ({})", where, e.what());
  }
  return steps;
}

}  // namespace carpool
