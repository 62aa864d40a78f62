// Tiny models of every family against the real Hugging Face transformers, whose
// results tools/transformers_goldens.py wrote down.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "carpool/source_dir.h"
#include "models/all_models.h"
#include "models/golden_weights_testing.h"
#include "models/model_runner_testing.h"

namespace carpool {
namespace {

using Json = nlohmann::json;
using testing::GoldenCheckpoint;
using testing::Runner;

std::vector<std::string> GoldenFiles() {
  const char *elsewhere = std::getenv("CARPOOL_GOLDENS");
  const std::filesystem::path dir =
      elsewhere != nullptr ? elsewhere : CARPOOL_SOURCE_DIR "/tests/golden/transformers";
  std::vector<std::string> files;
  for (const auto &entry : std::filesystem::directory_iterator(dir))
    if (entry.path().extension() == ".json") files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

std::string Base64Decoded(const std::string &text) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0, count = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) break;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) bytes.push_back(static_cast<char>(bits >> (count -= 8)));
  }
  return bytes;
}

class Transformers : public ::testing::TestWithParam<std::string> {
 protected:
  Transformers()
      : golden_(Json::parse(std::ifstream(GetParam()))),
        checkpoint_("transformers_" + golden_["family"].get<std::string>()) {
    for (const auto &[name, shape] : golden_["tensors"].items())
      checkpoint_.Add(name, shape.get<std::vector<size_t>>(), golden_["salt"]);
    checkpoint_.Write(golden_["config"].dump());
    largest_ = golden_["largest"];
    const bool full = golden_.contains("logits_f32");
    const std::string bytes = Base64Decoded(golden_[full ? "logits_f32" : "logits_i16"]);
    const size_t width = full ? sizeof(float) : sizeof(int16_t);
    logits_.resize(bytes.size() / width);
    for (size_t i = 0; i < logits_.size(); ++i) {
      float number = 0;
      int16_t code = 0;
      std::memcpy(full ? static_cast<void *>(&number) : &code, bytes.data() + i * width, width);
      logits_[i] = full ? number : largest_ / 32767 * code;
    }
  }
  /// Of rows [first, …) of the golden: the largest difference over the largest
  /// logit.
  double Difference(const std::vector<float> &got, size_t first_row, size_t vocab) const {
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i)
      worst =
          std::max(worst, std::fabs(static_cast<double>(got[i]) - logits_[first_row * vocab + i]));
    return worst / largest_;
  }
  Json golden_;
  GoldenCheckpoint checkpoint_;
  double largest_ = 0;
  std::vector<double> logits_;
};

// Storing them as int16 takes 1.5e-5 of the bound.
constexpr double kBound = 2e-4;

TEST_P(Transformers, LogitsOfPrefillAndOfCachedDecode) {
  const auto ids = golden_["tokens"].get<std::vector<int32_t>>();
  Runner whole(checkpoint_.dir());
  const auto logits = whole.Prefill(ids, ids.size());
  ASSERT_EQ(logits.size(), logits_.size());
  const double difference = Difference(logits, 0, whole.vocab());
  RecordProperty("difference", std::to_string(difference));
  printf("%s: max difference %.1e of the largest logit\n",
         golden_["family"].get<std::string>().c_str(), difference);
  EXPECT_LE(difference, kBound);
  Runner decode(checkpoint_.dir());
  for (uint32_t i = 0; i < ids.size(); ++i) {
    const auto row = decode.Step({{0, i, ids[i], RowPhase::kDecode}});
    ASSERT_LE(Difference(row, i, whole.vocab()), kBound) << i;
  }
}

TEST_P(Transformers, GreedyTokens) {
  auto ids = golden_["tokens"].get<std::vector<int32_t>>();
  ids.resize(golden_["prompt"].get<size_t>());
  const auto want = golden_["greedy"].get<std::vector<int32_t>>();
  Runner runner(checkpoint_.dir());
  auto logits = runner.Prefill(ids, ids.size());
  std::vector<int32_t> got;
  for (auto position = static_cast<uint32_t>(ids.size()); got.size() < want.size(); ++position) {
    const auto last = logits.end() - static_cast<ptrdiff_t>(runner.vocab());
    got.push_back(static_cast<int32_t>(std::max_element(last, logits.end()) - last));
    logits = runner.Step({{0, position, got.back(), RowPhase::kDecode}});
  }
  EXPECT_EQ(got, want);
}

INSTANTIATE_TEST_SUITE_P(Golden, Transformers, ::testing::ValuesIn(GoldenFiles()),
                         [](const auto &golden) {
                           return std::filesystem::path(golden.param).stem().string();
                         });

}  // namespace
}  // namespace carpool
