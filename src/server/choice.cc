#include "server/choice.h"

#include <utility>

namespace carpool {

Choice::Choice(const Tokenizer& tokenizer, const GenerationSpec& spec, size_t index, size_t prompt)
    : spec_(spec),
      index_(index),
      prompt_(prompt),
      decoder_(tokenizer, /*skip_special=*/true, /*continues=*/true),
      matcher_(spec.stops) {
  if (!spec.echo) return;
  AddText(spec.prompt_texts[prompt]);
  decoded_bytes_ = text_bytes_;
  if (spec.logprobs < 0) return;
  size_t offset = 0;
  StreamDecoder offsets(tokenizer, /*skip_special=*/false);
  for (int32_t id : spec.prompts[prompt]) {
    fresh_records_.push_back({id, {}, offset});
    offset += offsets.Feed(id).size();
  }
}

bool Choice::Take(EngineMessage& m) {
  using Kind = EngineMessage::Kind;
  if (m.kind == Kind::kRefused) {
    engine_done_ = refused_ = true;
    refused_code_ = m.code;
    error_ = std::move(m.error);
    finish_reason_ = "error";
    return false;
  }
  if (m.kind == Kind::kPromptLogprob) {
    // They come in order, one for each prompt token but the first.
    fresh_records_[++scored_prompt_tokens_].logprobs = std::move(m.logprobs);
    return false;
  }
  if (m.finish != FinishReason::kNone) {
    engine_done_ = true;
    report_ = std::move(m.report);
  }
  if (finished()) return false;  // tokens that were under way when the stop string was found
  if (m.token >= 0) {
    ++output_tokens_;
    if (spec_.logprobs >= 0)
      fresh_records_.push_back({m.token, std::move(m.logprobs), decoded_bytes_});
    if (m.finish != FinishReason::kStop) {
      std::string text = decoder_.Feed(m.token);
      decoded_bytes_ += text.size();
      AddText(output_tokens_ > spec_.base.min_tokens ? matcher_.Feed(text) : std::move(text));
    }
  }
  if (matcher_.matched()) {
    finish_reason_ = "stop";
    return !engine_done_;
  }
  if (m.finish == FinishReason::kNone) return false;
  AddText(matcher_.Feed(decoder_.Finish()));
  AddText(matcher_.Finish());
  finish_reason_ = FinishReasonName(m.finish);
  if (m.finish == FinishReason::kError) error_ = std::move(m.error);
  return false;
}

std::string Choice::TakeText() {
  const bool scoring = spec_.base.prompt_logits && !finished() &&
                       scored_prompt_tokens_ + 1 < spec_.prompts[prompt_].size();
  return scoring ? std::string() : std::exchange(fresh_text_, {});
}
std::vector<TokenRecord> Choice::TakeRecords() { return std::exchange(fresh_records_, {}); }

}  // namespace carpool
