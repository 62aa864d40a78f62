// The answers of /v1/completions.
#include <cmath>
#include <nlohmann/json.hpp>

#include "server/response_format.h"

namespace carpool {
namespace {

class CompletionFormat final : public ResponseFormat {
 public:
  CompletionFormat(const EngineLoop& loop, const GenerationSpec& spec, uint64_t id)
      : loop_(loop), spec_(spec), head_(DocumentHead("cmpl", id, "text_completion", spec.model)) {}

  void AppendChunks(Choice& choice, std::string& out) override {
    const std::string text = choice.TakeText();
    if (text.empty() && !choice.finished()) return;
    out += "data: ";
    out += head_;
    out += ",\"choices\":[";
    AppendChoice(choice, text, out);
    out += "]}\n\n";
  }

  std::string Body(std::vector<std::unique_ptr<Choice>>& choices,
                   const std::string& usage) override {
    std::string out = head_ + ",\"choices\":[";
    for (auto& choice : choices) {
      if (choice != choices.front()) out += ',';
      AppendChoice(*choice, choice->TakeText(), out);
    }
    return out + "],\"usage\":" + usage + "}";
  }

  std::string UsageChunk(const std::string& usage) override {
    return "data: " + head_ + ",\"choices\":[],\"usage\":" + usage + "}\n\n";
  }

 private:
  void AppendChoice(Choice& choice, std::string_view text, std::string& out) {
    out += fmt::format("{{\"index\":{},\"text\":", choice.index());
    out += JsonString(text);
    out += ",\"logprobs\":";
    out += spec_.logprobs < 0 ? "null" : Logprobs(choice.TakeRecords());
    out += ",\"finish_reason\":";
    out += choice.finished() ? JsonString(choice.finish_reason()) : "null";
    if (spec_.return_experts && choice.finished() && choice.report() != nullptr) {
      out += ",\"routed_experts\":";
      out += RoutedExperts(*choice.report(), loop_.model().config().NumMoeLayers());
    }
    out += '}';
  }

  std::string Logprobs(const std::vector<TokenRecord>& records) {
    nlohmann::ordered_json tokens = nlohmann::ordered_json::array();
    nlohmann::ordered_json values = tokens, best = tokens, offsets = tokens;
    for (const TokenRecord& r : records) {
      tokens.push_back(TokenText(loop_.tokenizer(), r.token));
      offsets.push_back(r.text_offset);
      if (r.logprobs.empty()) {
        values.push_back(nullptr);
        best.push_back(nullptr);
        continue;
      }
      values.push_back(r.logprobs[0].logprob);
      nlohmann::ordered_json top = nlohmann::ordered_json::object();
      for (size_t i = 1; i < r.logprobs.size(); ++i) {
        top[TokenText(loop_.tokenizer(), r.logprobs[i].token)] = r.logprobs[i].logprob;
      }
      best.push_back(std::move(top));
    }
    nlohmann::ordered_json json;
    json["tokens"] = std::move(tokens);
    json["token_logprobs"] = std::move(values);
    json["top_logprobs"] = std::move(best);
    json["text_offset"] = std::move(offsets);
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  const EngineLoop& loop_;
  const GenerationSpec& spec_;
  std::string head_;
};

}  // namespace

std::unique_ptr<ResponseFormat> MakeCompletionFormat(const EngineLoop& loop,
                                                     const GenerationSpec& spec, uint64_t id) {
  return std::make_unique<CompletionFormat>(loop, spec, id);
}

}  // namespace carpool
