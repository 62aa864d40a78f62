#include "lab/server_scores.h"

#include <nlohmann/json.hpp>

#include "lab/http_client.h"

namespace carpool {
namespace {

using Json = nlohmann::json;
using Token = ScoredToken;

/// Throws what nlohmann throws.
std::vector<Token> ReadTokens(const Json& logprobs, size_t generated) {
  const Json &tokens = logprobs.at("tokens"), &values = logprobs.at("token_logprobs");
  const Json* top = logprobs.contains("top_logprobs") ? &logprobs.at("top_logprobs") : nullptr;
  std::vector<Token> out;
  for (size_t t = 1; t + generated < tokens.size(); ++t) {
    Token token;
    token.text = tokens.at(t).get<std::string>();
    token.logprob = values.at(t).get<double>();
    if (top != nullptr && top->is_array() && top->at(t).is_object()) {
      for (const auto& [text, value] : top->at(t).items())
        token.top.emplace_back(text, value.get<double>());
    }
    out.push_back(std::move(token));
  }
  return out;
}

}  // namespace

PromptScorer::PromptScorer(std::string host, uint16_t port, std::string api_key, std::string model,
                           bool carpool)
    : host_(std::move(host)),
      port_(port),
      api_key_(std::move(api_key)),
      model_(std::move(model)),
      carpool_(carpool) {}

bool PromptScorer::Read(const std::string& body, size_t prompts, size_t generated,
                        std::vector<std::vector<Token>>& out) {
  out.assign(prompts, {});
  try {
    const Json document = Json::parse(body);
    for (const Json& choice : document.at("choices")) {
      auto tokens = ReadTokens(choice.at("logprobs"), generated);
      out.at(choice.at("index").get<size_t>()) = std::move(tokens);
    }
  } catch (const std::exception& e) {
    refusal_ = e.what();
    return false;
  }
  for (const auto& tokens : out) {
    if (!tokens.empty()) continue;
    refusal_ = "a prompt came back without scores";
    return false;
  }
  return true;
}

Result<std::vector<std::vector<Token>>> PromptScorer::Score(
    const std::vector<std::string>& prompts) {
  while (!forms_.empty()) {
    const Form& form = forms_.front();
    Json body = {{"model", model_},  {"prompt", prompts}, {"max_tokens", form.max_tokens},
                 {"temperature", 0}, {"echo", true},      {"logprobs", form.alternatives}};
    if (carpool_) body["moe"] = {{"score_as_decode", true}};
    ASSIGN_OR_RETURN(const HttpAnswer answer,
                     HttpCall(host_, port_, "POST", "/v1/completions", body.dump(), api_key_));
    std::vector<std::vector<Token>> scored;
    if (answer.status != 200) {
      refusal_ = fmt::format("HTTP {}: {}", answer.status, answer.body.substr(0, 200));
    } else if (Read(answer.body, prompts.size(), form.max_tokens, scored)) {
      return scored;
    }
    forms_.erase(forms_.begin());
  }
  return std::vector<std::vector<Token>>{};
}

}  // namespace carpool
