// Any bytes as a config.json: an error of one line, or a configuration whose numbers hold together.
#include <cmath>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "models/model_config.h"
#include "routing/gate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  const auto config =
      ParseModelConfig(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!config) {
    CARPOOL_CHECK(config.error().message.find('\n') == std::string::npos);
    return 0;
  }
  const ModelConfig& c = *config;
  CARPOOL_CHECK(ValidateGate(c.gate).has_value());
  CARPOOL_CHECK_EQ(c.mlp.size(), c.num_layers);
  CARPOOL_CHECK(c.softmax_scale > 0.0f && std::isfinite(c.softmax_scale));
  if (c.attention == AttentionKind::kGqa) {
    CARPOOL_CHECK(c.num_heads % c.gqa.kv_heads == 0 && c.rope.dim <= c.gqa.head_dim);
    CARPOOL_CHECK(c.gqa.window.empty() || c.gqa.window.size() == c.num_layers);
  } else {
    CARPOOL_CHECK(c.mla.indexer.empty() || c.mla.indexer.size() == c.num_layers);
  }
  if (c.rope.dim <= 4096) {
    for (const float f : RopeFrequencies(c.rope)) CARPOOL_CHECK(std::isfinite(f));
  }
  return 0;
}
