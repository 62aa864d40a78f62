// Continuous batching on the bundled model: joining, leaving, waiting, stopping, and what a batch
// mate may not change.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <map>

#include "carpool/source_dir.h"

namespace carpool {
namespace {

struct Recorder : TokenSink {
  struct Outcome {
    std::vector<int32_t> tokens;
    FinishReason finish = FinishReason::kNone;
  };
  std::map<uint64_t, Outcome> outcomes;
  void OnToken(const TokenEvent& event) override {
    Outcome& o = outcomes[event.request_id];
    EXPECT_EQ(o.finish, FinishReason::kNone) << "an event after the end";
    if (event.token >= 0) o.tokens.push_back(event.token);
    o.finish = event.finish;
  }
};

std::unique_ptr<Engine> MakeEngine(EngineOptions options = {}) {
  auto engine = Engine::Load(CARPOOL_SOURCE_DIR "/models/books-20m", options);
  EXPECT_TRUE(engine.has_value()) << engine.error().message;
  return std::move(*engine);
}

Request MakeRequest(int32_t first, size_t prompt, size_t max_tokens) {
  Request request;
  for (size_t i = 0; i < prompt; ++i) request.prompt.push_back(first + static_cast<int32_t>(i));
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  request.sampling.temperature = 0.8f;
  request.sampling.seed = static_cast<uint64_t>(first);
  return request;
}

std::vector<int32_t> Alone(int32_t first, size_t prompt, size_t max_tokens) {
  auto engine = MakeEngine();
  Recorder recorder;
  const uint64_t id = *engine->Submit(MakeRequest(first, prompt, max_tokens), &recorder);
  while (engine->Step()) {
  }
  return recorder.outcomes[id].tokens;
}

TEST(Engine, RequestsThatJoinAndLeaveGetWhatTheyGetAlone) {
  EngineOptions options;
  options.threads = 2;
  options.max_running = 8;
  options.max_batch_tokens = 24;  // prompts are prefilled in chunks beside decoding rows
  auto engine = MakeEngine(options);
  Recorder recorder;
  std::vector<uint64_t> ids;
  for (int32_t i = 0; i < 5; ++i) {
    ids.push_back(*engine->Submit(MakeRequest(300 + 50 * i, 10 + 13 * static_cast<size_t>(i), 12),
                                  &recorder));
    engine->Step();
    engine->Step();
  }
  while (engine->Step()) {
  }
  EXPECT_TRUE(engine->idle());
  EXPECT_EQ(engine->kv().free_pages(), engine->kv().num_pages());
  for (int32_t i = 0; i < 5; ++i) {
    const auto& outcome = recorder.outcomes[ids[static_cast<size_t>(i)]];
    EXPECT_EQ(outcome.finish, FinishReason::kLength);
    EXPECT_EQ(outcome.tokens, Alone(300 + 50 * i, 10 + 13 * static_cast<size_t>(i), 12)) << i;
  }
}

TEST(Engine, WaitsForCachePagesAndSlotsAndLosesNobody) {
  EngineOptions options;
  options.kv_tokens = 64;
  options.max_running = 2;
  auto engine = MakeEngine(options);
  Recorder recorder;
  for (int32_t i = 0; i < 6; ++i)
    ASSERT_TRUE(engine->Submit(MakeRequest(400 + i, 8, 20), &recorder).has_value());
  size_t most = 0;
  while (engine->Step()) most = std::max(most, engine->num_running());
  EXPECT_LE(most, 2u);
  EXPECT_EQ(recorder.outcomes.size(), 6u);
  for (const auto& [id, outcome] : recorder.outcomes) EXPECT_EQ(outcome.tokens.size(), 20u);
  // A request that can never fit is refused at once.
  EXPECT_EQ(engine->Submit(MakeRequest(1, 8, 200), &recorder).error().code, ErrorCode::kExhausted);
}

TEST(Engine, CancelEndsARequestAtOnceAndFreesItsPages) {
  auto engine = MakeEngine();
  Recorder recorder;
  const uint64_t a = *engine->Submit(MakeRequest(500, 8, 50), &recorder);
  const uint64_t b = *engine->Submit(MakeRequest(600, 8, 10), &recorder);
  for (int i = 0; i < 4; ++i) engine->Step();
  engine->Cancel(a);
  EXPECT_EQ(recorder.outcomes[a].finish, FinishReason::kCancelled);
  engine->Cancel(a);
  engine->Cancel(12345);
  while (engine->Step()) {
  }
  EXPECT_EQ(recorder.outcomes[b].tokens, Alone(600, 8, 10));
  EXPECT_EQ(engine->kv().free_pages(), engine->kv().num_pages());
}

TEST(Engine, StopIdsAndMinTokens) {
  const auto tokens = Alone(700, 6, 12);
  auto engine = MakeEngine();
  Recorder recorder;
  Request stops = MakeRequest(700, 6, 12);
  stops.stop_ids = {tokens[4]};
  const uint64_t id = *engine->Submit(stops, &recorder);
  stops.min_tokens = 8;
  const uint64_t patient = *engine->Submit(stops, &recorder);
  while (engine->Step()) {
  }
  const auto first = std::find(tokens.begin(), tokens.end(), tokens[4]) - tokens.begin();
  EXPECT_EQ(recorder.outcomes[id].finish, FinishReason::kStop);
  EXPECT_EQ(recorder.outcomes[id].tokens.size(), static_cast<size_t>(first) + 1);
  EXPECT_GE(recorder.outcomes[patient].tokens.size(), 8u);
}

TEST(Engine, BadRequestsAreRefusedAndHarmNobody) {
  auto engine = MakeEngine();
  Recorder recorder;
  const uint64_t good = *engine->Submit(MakeRequest(800, 6, 5), &recorder);
  Request request = MakeRequest(800, 0, 5);
  EXPECT_FALSE(engine->Submit(request, &recorder).has_value());
  for (int32_t id : {-1, 4096, 1 << 30}) {
    request = MakeRequest(800, 6, 5);
    request.prompt[3] = id;
    EXPECT_FALSE(engine->Submit(request, &recorder).has_value()) << id;
  }
  EXPECT_FALSE(engine->Submit(MakeRequest(800, 6, 0), &recorder).has_value());
  EXPECT_FALSE(engine->Submit(MakeRequest(800, 6, SIZE_MAX), &recorder).has_value());
  EXPECT_FALSE(engine->Submit(MakeRequest(800, 6, 2043), &recorder).has_value());
  request = MakeRequest(800, 6, 5);
  request.sampling.top_p = 2;
  EXPECT_FALSE(engine->Submit(request, &recorder).has_value());
  while (engine->Step()) {
  }
  EXPECT_EQ(recorder.outcomes.size(), 1u);
  EXPECT_EQ(recorder.outcomes[good].tokens, Alone(800, 6, 5));
}

TEST(Engine, AnExactRequestInAnOeaBatchGetsItsExactTokens) {
  EngineOptions options;
  options.policy = *ParsePolicy("oea:k0=2");
  auto engine = MakeEngine(options);
  Recorder recorder;
  Request exact = MakeRequest(900, 9, 20);
  exact.routing.exact = true;
  const uint64_t id = *engine->Submit(exact, &recorder);
  for (int32_t i = 0; i < 7; ++i)
    ASSERT_TRUE(engine->Submit(MakeRequest(1000 + 9 * i, 9, 20), &recorder).has_value());
  while (engine->Step()) {
  }
  EXPECT_EQ(recorder.outcomes[id].tokens, Alone(900, 9, 20));
  uint64_t changed = 0;
  for (const auto& layer : engine->decode_stats().moe) changed += layer.changed_rows;
  EXPECT_GT(changed, 0u) << "the policy never acted";
}

}  // namespace
}  // namespace carpool
