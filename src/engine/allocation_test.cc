// No allocation per step once the engine has warmed up: counts operator new and malloc-like aligned
// blocks.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "carpool/source_dir.h"
#include "engine/engine.h"

namespace {
std::atomic<size_t> allocations{0};
}  // namespace

#if !defined(__clang__)
// GCC sees malloc through an inlined new, but not through delete.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
// The library's own nothrow form would not be ours to free.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace carpool {
namespace {

struct Ignore : TokenSink {
  void OnToken(const TokenEvent&) override {}
};

TEST(Engine, NoAllocationPerStepAfterWarmUp) {
  for (const char* policy : {"vanilla", "oea:k0=3"}) {
    EngineOptions options;
    options.threads = 2;
    options.policy = *ParsePolicy(policy);
    auto engine = Engine::Load(CARPOOL_SOURCE_DIR "/models/books-20m", options);
    ASSERT_TRUE(engine.has_value()) << engine.error().message;
    Ignore ignore;
    for (int32_t i = 0; i < 16; ++i) {
      Request request;
      request.max_tokens = 200;
      request.ignore_eos = true;
      // Different lengths, sampled with every filter on; the contexts pass index_topk while
      // counting.
      for (int32_t t = 0; t < 3 + 2 * i; ++t) request.prompt.push_back(300 + 7 * i + t);
      request.sampling.temperature = 0.9f;
      request.sampling.top_p = 0.9f;
      request.sampling.top_k = 40;
      request.sampling.repetition_penalty = 1.1f;
      ASSERT_TRUE((*engine)->Submit(std::move(request), &ignore).has_value());
    }
    for (int step = 0; step < 120; ++step) ASSERT_TRUE((*engine)->Step());
    const size_t before = allocations.load();
    const size_t scratch = (*engine)->scratch_bytes();
    for (int step = 0; step < 40; ++step) ASSERT_TRUE((*engine)->Step());
    EXPECT_EQ(allocations.load() - before, 0u) << policy;
    EXPECT_EQ((*engine)->scratch_bytes(), scratch) << policy;
  }
}

}  // namespace
}  // namespace carpool
