// GenerationSpec: a checked request for text, of either generating endpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/engine_loop.h"
#include "server/json_fields.h"
#include "tokenizer/chat_template.h"

namespace carpool {

/// What requests are checked against. A snapshot; safe to read on any thread.
struct RequestRules {
  const EngineLoop* loop = nullptr;
  std::shared_ptr<const PolicySpec> policy;
  std::string model_name;
  const ChatTemplate* chat_template = nullptr;  // null: no_chat_reason says why
  std::string no_chat_reason;
  size_t max_choices = 128;  // n times prompts
  size_t max_stops = 16;     // stop strings
  size_t max_stop_bytes = 1024;
  int max_logprobs = 20;
  size_t max_prompts = 128;
};

struct GenerationSpec {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  bool return_experts = false;
  size_t n = 1;                               // choices per prompt
  std::vector<std::vector<int32_t>> prompts;  // token ids
  std::vector<std::string> prompt_texts;      // for echo
  int logprobs = -1;                          // alternatives per token; -1: none at all
  std::vector<std::string> stops;
  Request base;  // everything but id and prompt
  std::string model;
  bool parse_reasoning = false;
  bool parse_tools = false;
  std::shared_ptr<const nlohmann::json> tools;  // the request's definitions, or null
  bool starts_in_reasoning = false;             // the rendered prompt ends inside a reasoning block
};

/// The fields both endpoints share: sampling, limits, stops, stream options, seed, routing.
/// `max_tokens` is the endpoint's own (0 = to the end of the context).
std::optional<ApiError> ReadCommonFields(const nlohmann::json& body, const RequestRules& rules,
                                         GenerationSpec& spec);

/// The "moe" object: {"routing": "exact" | policy text | {k0, kmax, p}, "score_as_decode",
/// "return_routed_experts"}.
std::optional<ApiError> ReadMoeFields(const nlohmann::json& body, const RequestRules& rules,
                                      GenerationSpec& spec);

/// Tokenizes, refusing early what cannot fit the context whatever its tokens are.
ApiResult<std::vector<int32_t>> EncodePrompt(const RequestRules& rules, std::string_view text,
                                             std::string_view field, bool added_tokens,
                                             bool add_special_tokens);

/// Fills in a max_tokens of 0 and checks every prompt against the engine's limits.
std::optional<ApiError> FitToContext(const RequestRules& rules, GenerationSpec& spec);

}  // namespace carpool
