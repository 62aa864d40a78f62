#include "server/generation_spec.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <random>

namespace carpool {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxTokensField = int64_t{1} << 31;

void ReadLogitBias(JsonFields& fields, size_t vocab, SamplingParams& sampling) {
  const Json* bias = fields.Object("logit_bias");
  if (bias == nullptr) return;
  if (bias->size() > 1024) {
    return fields.Fail("logit_bias",
                       fmt::format("wanted at most 1024 entries, got {}", bias->size()));
  }
  JsonFields entries(*bias, fields.Path("logit_bias") + ".");
  for (const auto& [key, value] : bias->items()) {
    size_t id = vocab;
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (ec != std::errc() || end != key.data() + key.size() || id >= vocab) {
      return fields.Fail("logit_bias", fmt::format("wanted token ids from 0 to {} as keys, got {}",
                                                   vocab - 1, Shown(Json(key))));
    }
    sampling.logit_bias.emplace_back(static_cast<int32_t>(id),
                                     static_cast<float>(entries.Number(key, 0, -100, 100)));
  }
  if (entries.error()) fields.Fail("logit_bias", entries.error()->message);
}

}  // namespace

std::optional<ApiError> ReadCommonFields(const Json& body, const RequestRules& rules,
                                         GenerationSpec& spec) {
  JsonFields f(body);
  const ModelConfig& config = rules.loop->model().config();
  const size_t vocab = config.vocab_size;
  spec.model = f.String("model", rules.model_name, 1024);
  if (!f.error() && spec.model != rules.model_name) {
    return ApiError{404,
                    fmt::format("model '{}' is not served here; wanted '{}' (see /v1/models)",
                                spec.model, rules.model_name),
                    "model", "model_not_found"};
  }
  spec.stream = f.Bool("stream", false);
  if (const Json* options = f.Object("stream_options"); options != nullptr) {
    JsonFields o(*options, "stream_options.");
    spec.include_usage = o.Bool("include_usage", false);
    if (o.error()) return o.error();
    if (!spec.stream) f.Fail("stream_options", "only allowed with stream: true");
  }
  spec.n = static_cast<size_t>(f.Int("n", 1, 1, static_cast<int64_t>(rules.max_choices)));
  if (f.Int("best_of", static_cast<int64_t>(spec.n), 1, static_cast<int64_t>(rules.max_choices)) !=
      static_cast<int64_t>(spec.n)) {
    f.Fail("best_of", "not supported apart from n; leave it out");
  }
  SamplingParams& s = spec.base.sampling;
  s.temperature =
      static_cast<float>(f.Number("temperature", config.default_temperature, 0.0, 100.0));
  s.top_p = static_cast<float>(f.Number("top_p", config.default_top_p, 0.0, 1.0, true));
  s.top_p = std::max(s.top_p, std::numeric_limits<float>::min());
  s.top_k = static_cast<int32_t>(f.Int("top_k", 0, -1, std::numeric_limits<int32_t>::max()));
  s.top_k = std::max(s.top_k, 0);  // -1 is a habit for "off"
  s.min_p = static_cast<float>(f.Number("min_p", 0.0, 0.0, 1.0));
  s.repetition_penalty = static_cast<float>(f.Number("repetition_penalty", 1.0, 0.01, 100.0));
  s.presence_penalty = static_cast<float>(f.Number("presence_penalty", 0.0, -2.0, 2.0));
  s.frequency_penalty = static_cast<float>(f.Number("frequency_penalty", 0.0, -2.0, 2.0));
  ReadLogitBias(f, vocab, s);
  constexpr int64_t kLimit = std::numeric_limits<int64_t>::max() / 2;
  s.seed = static_cast<uint64_t>(f.Int("seed", 0, -kLimit, kLimit));
  if (!f.Has("seed")) {  // requests without one differ from each other
    std::random_device random;
    s.seed = (uint64_t{random()} << 32) | random();
  }
  const int64_t max_tokens =
      f.Int("max_tokens", 0, spec.base.prompt_logits ? 0 : 1, kMaxTokensField);
  spec.base.max_tokens =
      static_cast<size_t>(f.Int("max_completion_tokens", max_tokens, 1, kMaxTokensField));
  spec.base.min_tokens = static_cast<size_t>(f.Int("min_tokens", 0, 0, kMaxTokensField));
  spec.base.ignore_eos = f.Bool("ignore_eos", false);
  spec.base.stop_ids = f.TokenIds("stop_token_ids", 128, vocab);
  spec.stops = f.Strings("stop", rules.max_stops, rules.max_stop_bytes);
  spec.base.priority = static_cast<int32_t>(f.Int("priority", 0, -1'000'000, 1'000'000));
  f.String("user", {}, 4096);
  if (const Json* format = f.Object("response_format"); format != nullptr) {
    JsonFields o(*format, "response_format.");
    const std::string type = o.String("type", "text", 64);
    if (o.error()) return o.error();
    if (type != "text") {
      f.Fail("response_format",
             fmt::format("'{}' is not supported; output cannot be constrained to a schema", type));
    }
  }
  if (f.error()) return f.error();
  return ReadMoeFields(body, rules, spec);
}

ApiResult<std::vector<int32_t>> EncodePrompt(const RequestRules& rules, std::string_view text,
                                             std::string_view field, bool added_tokens,
                                             bool add_special_tokens) {
  const Tokenizer& tokenizer = rules.loop->tokenizer();
  // Tokenizing a text costs more than refusing it. The longest token of a real vocabulary has a
  // few hundred bytes at most, mostly runs of spaces.
  constexpr size_t kLongestTokenBytes = 512;
  const size_t context = rules.loop->context();
  if (text.size() / kLongestTokenBytes > context) {
    return ApiError{
        400,
        fmt::format("{}: {} bytes are more than {} tokens, but the context is {} tokens", field,
                    text.size(), text.size() / kLongestTokenBytes, context),
        std::string(field), "context_length_exceeded"};
  }
  auto ids = tokenizer.Encode(text, added_tokens, add_special_tokens);
  if (!ids) {
    ApiError error = ToApiError(ids.error());
    error.message = fmt::format("{}: {}", field, error.message);
    error.param = field;
    return error;
  }
  return std::move(*ids);
}

std::optional<ApiError> FitToContext(const RequestRules& rules, GenerationSpec& spec) {
  const size_t context = rules.loop->context();
  const std::string field = spec.chat ? "messages" : "prompt";
  if (spec.prompts.size() * spec.n > rules.max_choices) {
    return ApiError{
        400,
        fmt::format("n: {} prompts with n={} make {} choices; at most {} are allowed",
                    spec.prompts.size(), spec.n, spec.prompts.size() * spec.n, rules.max_choices),
        "n",
        {}};
  }
  size_t longest = 0;
  for (const auto& prompt : spec.prompts) {
    if (prompt.empty()) {
      return ApiError{400, field + ": is empty; wanted at least one token", field, {}};
    }
    longest = std::max(longest, prompt.size());
  }
  const bool to_the_end = spec.base.max_tokens == 0 && !spec.base.prompt_logits;
  if (longest > context || (to_the_end && longest == context)) {
    return ApiError{400,
                    fmt::format("{}: {} tokens do not fit the context of {} tokens with room for "
                                "an answer; shorten it",
                                field, longest, context),
                    field, "context_length_exceeded"};
  }
  if (to_the_end) spec.base.max_tokens = context - longest;
  if (longest + spec.base.max_tokens > context) {
    return ApiError{400,
                    fmt::format("max_tokens: {} prompt tokens and {} more were asked for, but the "
                                "context is {}; shorten the prompt or ask for at most {}",
                                longest, spec.base.max_tokens, context, context - longest),
                    "max_tokens", "context_length_exceeded"};
  }
  for (const auto& prompt : spec.prompts) {
    Request request = spec.base;
    request.prompt = prompt;
    if (const Status status = rules.loop->Validate(request); !status)
      return ToApiError(status.error());
  }
  return std::nullopt;
}

}  // namespace carpool
