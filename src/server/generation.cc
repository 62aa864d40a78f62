#include "server/generation.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/api_error.h"
#include "server/server_context.h"

namespace carpool {
namespace {

double Seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

Generation::Generation(ServerContext& context, std::shared_ptr<Exchange> exchange,
                       GenerationSpec spec)
    : context_(context),
      exchange_(std::move(exchange)),
      spec_(std::move(spec)),
      start_(std::chrono::steady_clock::now()) {}

void Generation::Start() {
  EngineLoop& loop = *context_.loop;
  std::vector<Submission> group;
  for (size_t prompt = 0; prompt < spec_.prompts.size(); ++prompt) {
    for (size_t k = 0; k < spec_.n; ++k) {
      const size_t index = choices_.size();
      choices_.push_back(std::make_unique<Choice>(loop.tokenizer(), spec_, index, prompt));
      ids_.push_back(loop.NewId());
      context_.Register(ids_.back(), shared_from_this(), index);
      Submission submission{spec_.base, spec_.logprobs};
      submission.request.id = ids_.back();
      submission.request.prompt = spec_.prompts[prompt];
      submission.request.sampling.seed += k;
      group.push_back(std::move(submission));
    }
  }
  last_token_.resize(choices_.size());
  format_ = spec_.chat ? MakeChatFormat(loop, spec_, ids_.front())
                       : MakeCompletionFormat(loop, spec_, ids_.front());
  exchange_->OnClosed([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Abandon();
  });
  context_.metrics->OnRequestStart(choices_.size());
  loop.Submit(std::move(group));
}

void Generation::Abandon() {
  if (answered_) return;
  answered_ = true;
  context_.metrics->OnHttp(499);
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i]->engine_done()) context_.loop->Cancel(ids_[i]);
  }
}

void Generation::Take(size_t index, EngineMessage message) {
  Choice& choice = *choices_[index];
  const size_t before = choice.output_tokens();
  if (choice.Take(message)) context_.loop->Cancel(ids_[index]);
  if (choice.output_tokens() != before) {
    const auto now = std::chrono::steady_clock::now();
    if (before == 0) {
      context_.metrics->OnFirstToken(Seconds(now - start_));
    } else {
      context_.metrics->OnNextToken(Seconds(now - last_token_[index]));
    }
    last_token_[index] = now;
  }
  if (choice.engine_done() && choice.report() != nullptr) {
    context_.metrics->OnChoiceEnd(choice.finish_reason(), *choice.report(),
                                  Seconds(std::chrono::steady_clock::now() - start_));
  }
}

void Generation::Flush() {
  stale_ = false;
  if (answered_) return;
  const bool failed = std::any_of(choices_.begin(), choices_.end(),
                                  [](const auto& c) { return c->finish_reason() == "error"; });
  if (failed) return Fail();
  if (spec_.stream) {
    std::string out;
    for (auto& choice : choices_) format_->AppendChunks(*choice, out);
    if (!out.empty() && !streaming_) {
      streaming_ = true;
      context_.metrics->OnHttp(200);
      exchange_->StartStream(200, "text/event-stream; charset=utf-8");
    }
    exchange_->Write(out);
  }
  // The engine's last word brings the report that usage is made of.
  const bool done = std::all_of(choices_.begin(), choices_.end(),
                                [](const auto& c) { return c->finished() && c->engine_done(); });
  if (done) Complete();
}

void Generation::Fail() {
  answered_ = true;
  ApiError error;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = *choices_[i];
    if (!choice.engine_done()) context_.loop->Cancel(ids_[i]);
    if (choice.finish_reason() != "error" || !error.message.empty()) continue;
    error = ToApiError(
        {choice.refused() ? choice.refused_code() : ErrorCode::kInternal, choice.error()});
    if (choice.refused() && choice.refused_code() == ErrorCode::kExhausted)
      context_.metrics->OnRefused();
  }
  if (streaming_) {
    exchange_->Write("data: " + ErrorBody(error) + "\n\ndata: [DONE]\n\n");
    return exchange_->EndStream();
  }
  context_.metrics->OnHttp(error.status);
  RespondError(*exchange_, error);
}

void Generation::Complete() {
  answered_ = true;
  if (!spec_.stream) {
    context_.metrics->OnHttp(200);
    return exchange_->Respond(200, "application/json", format_->Body(choices_, Usage()));
  }
  std::string out;
  if (spec_.include_usage) out = format_->UsageChunk(Usage());
  exchange_->Write(out + "data: [DONE]\n\n");
  exchange_->EndStream();
}

std::string Generation::Usage() const {
  size_t prompt_tokens = 0, output_tokens = 0, cached = 0;
  for (const auto& prompt : spec_.prompts) prompt_tokens += prompt.size();
  RequestMoe moe;
  std::string routing;
  for (const auto& choice : choices_) {
    output_tokens += choice->output_tokens();
    if (choice->report() == nullptr) continue;
    const RequestReport& r = *choice->report();
    cached += r.cached_tokens;
    routing = r.routing;
    moe.layer_rows += r.moe.layer_rows;
    moe.distinct_sum += r.moe.distinct_sum;
    moe.assignments += r.moe.assignments;
    moe.piggybacks += r.moe.piggybacks;
    moe.expert_bytes += r.moe.expert_bytes;
    moe.batch_dependent |= r.moe.batch_dependent;
  }
  const auto ratio = [](uint64_t a, uint64_t b) {
    return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b);
  };
  nlohmann::ordered_json usage;
  usage["prompt_tokens"] = prompt_tokens;
  usage["completion_tokens"] = output_tokens;
  usage["total_tokens"] = prompt_tokens + output_tokens;
  usage["prompt_tokens_details"]["cached_tokens"] = cached;
  usage["moe"] = {{"routing", routing},
                  {"batch_dependent", moe.batch_dependent},
                  {"distinct_experts_mean", ratio(moe.distinct_sum, moe.layer_rows)},
                  {"expert_bytes", static_cast<uint64_t>(moe.expert_bytes)},
                  {"piggyback_rate", ratio(moe.piggybacks, moe.assignments)}};
  return usage.dump();
}

}  // namespace carpool
