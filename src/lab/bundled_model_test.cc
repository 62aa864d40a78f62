// The bundled model against goldens of an independent implementation (models/books-20m/golden/).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/mapped_file.h"
#include "carpool/source_dir.h"
#include "engine/complete.h"
#include "lab/lockstep.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

const std::string kDir = CARPOOL_SOURCE_DIR "/models/books-20m";

Json ReadGolden(const std::string& name) {
  auto text = ReadTextFile(kDir + "/golden/" + name);
  EXPECT_TRUE(text.has_value());
  return Json::parse(*text);
}

/// Loaded once for all tests of this program.
class BundledModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    pool_ = new ThreadPool(2);
    auto model = Model::Load(kDir, *pool_);
    ASSERT_TRUE(model.has_value()) << model.error().message;
    model_ = model->release();
  }
  static void TearDownTestSuite() {
    delete model_;
    delete pool_;
  }
  static std::unique_ptr<Router> MakeRouter(const char* policy) {
    auto router = Router::Make(model_->config().gate, *ParsePolicy(policy),
                               model_->config().NumMoeLayers(), 256);
    EXPECT_TRUE(router.has_value());
    return std::move(*router);
  }
  /// Logits of every position of one sequence, fed token by token.
  static std::vector<std::vector<float>> Logits(const std::vector<int32_t>& ids,
                                                Activations activations,
                                                RoutingObserver* observer = nullptr) {
    auto router = MakeRouter("vanilla");
    Lockstep lockstep(*model_, *pool_, *router, activations, 1, ids.size());
    lockstep.set_observer(observer);
    std::vector<std::vector<float>> all;
    for (int32_t id : ids) {
      const auto logits = lockstep.Step({&id, 1});
      all.emplace_back(logits.Row(0), logits.Row(0) + logits.cols);
    }
    return all;
  }
  static ThreadPool* pool_;
  static Model* model_;
};
ThreadPool* BundledModel::pool_ = nullptr;
Model* BundledModel::model_ = nullptr;

struct ExpertsOfLastStep : RoutingObserver {
  std::vector<std::vector<std::map<int, float>>> layers;  // [moe layer][row]
  explicit ExpertsOfLastStep(size_t n) : layers(n) {}
  void OnRouted(size_t moe_layer, const RoutedStep& routed) override {
    layers[moe_layer].assign(routed.ids.rows, {});
    for (size_t r = 0; r < routed.ids.rows; ++r) {
      for (size_t s = 0; s < static_cast<size_t>(routed.counts[r]); ++s) {
        layers[moe_layer][r][routed.ids.Row(r)[s]] = routed.weights.Row(r)[s];
      }
    }
  }
  void OnSelectedKeys(size_t, size_t, std::span<const uint32_t>) override {}
};

double LogSumExp(const std::vector<float>& logits) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float l : logits) sum += std::exp(static_cast<double>(l) - static_cast<double>(max));
  return std::log(sum) + static_cast<double>(max);
}

TEST_F(BundledModel, LogitsOfEveryPositionMatchInFp32) {
  const Json golden = ReadGolden("logits.json");
  for (const Json& sequence : golden["sequences"]) {
    const auto ids = sequence["ids"].get<std::vector<int32_t>>();
    SCOPED_TRACE(ids.size());
    ExpertsOfLastStep experts(model_->config().NumMoeLayers());
    const auto logits = Logits(ids, Activations::kF32, &experts);
    float max = 0;
    for (const auto& row : logits) {
      for (float l : row) max = std::max(max, std::fabs(l));
    }
    const double bound = 2e-4 * max;
    for (size_t t = 0; t < ids.size(); ++t) {
      double squares = 0;
      for (float l : logits[t]) squares += static_cast<double>(l) * l;
      for (size_t i = 0; i < 8; ++i) {
        const auto id = sequence["position_top8_ids"][t][i].get<size_t>();
        ASSERT_NEAR(logits[t][id], sequence["position_top8"][t][i].get<double>(), bound)
            << t << " " << id;
      }
      ASSERT_NEAR(LogSumExp(logits[t]), sequence["logsumexp"][t].get<double>(), bound) << t;
      ASSERT_NEAR(squares, sequence["sum_sq"][t].get<double>(), 2e-4 * squares) << t;
    }
    const auto last = sequence["last_logits"].get<std::vector<double>>();
    ASSERT_EQ(last.size(), logits.back().size());
    for (size_t i = 0; i < last.size(); ++i) ASSERT_NEAR(logits.back()[i], last[i], bound) << i;
    for (size_t layer = 0; layer < experts.layers.size(); ++layer) {
      const auto& got = experts.layers[layer][0];
      ASSERT_EQ(got.size(), sequence["last_experts"][layer].size());
      for (const auto& [id, weight] : sequence["last_experts"][layer].items()) {
        ASSERT_TRUE(got.count(std::stoi(id))) << layer << " " << id;
        EXPECT_NEAR(got.at(std::stoi(id)), weight.get<double>(), 2e-4);
      }
    }
  }
}

TEST_F(BundledModel, Int8ActivationsStayCloseToFp32) {
  const Json golden = ReadGolden("logits.json");
  size_t positions = 0, agree = 0;
  double kl_sum = 0;
  for (const Json& sequence : golden["sequences"]) {
    const auto ids = sequence["ids"].get<std::vector<int32_t>>();
    const auto exact = Logits(ids, Activations::kF32), fast = Logits(ids, Activations::kQ8);
    for (size_t t = 0; t < ids.size(); ++t) {
      const double lse_p = LogSumExp(exact[t]), lse_q = LogSumExp(fast[t]);
      double kl = 0;
      for (size_t i = 0; i < exact[t].size(); ++i) {
        const double log_p = static_cast<double>(exact[t][i]) - lse_p;
        kl += std::exp(log_p) * (log_p - (static_cast<double>(fast[t][i]) - lse_q));
      }
      kl_sum += kl;
      const auto best = sequence["position_top8_ids"][t][0].get<ptrdiff_t>();
      const bool same = std::max_element(fast[t].begin(), fast[t].end()) - fast[t].begin() == best;
      agree += same ? 1 : 0;
      ++positions;
      const double margin = sequence["position_top8"][t][0].get<double>() -
                            sequence["position_top8"][t][1].get<double>();
      if (margin > 0.5) {
        EXPECT_TRUE(same) << t << " margin " << margin;
      }
    }
  }
  EXPECT_GE(static_cast<double>(agree), 0.98 * static_cast<double>(positions));
  EXPECT_LE(kl_sum / static_cast<double>(positions), 2e-3);
  RecordProperty("mean_kl", std::to_string(kl_sum / static_cast<double>(positions)));
}

TEST_F(BundledModel, OeaExpertsAndLogitsOfEightSequencesInLockstep) {
  const Json golden = ReadGolden("oea.json");
  const auto tokens = golden["tokens"].get<std::vector<std::vector<int32_t>>>();
  auto router = MakeRouter(golden["policy"].get<std::string>().c_str());
  Lockstep lockstep(*model_, *pool_, *router, Activations::kF32, tokens.size(), tokens[0].size());
  ExpertsOfLastStep experts(model_->config().NumMoeLayers());
  lockstep.set_observer(&experts);
  const auto checked = golden["positions"].get<std::set<size_t>>();
  MatView<const float> logits;
  for (size_t t = 0; t < tokens[0].size(); ++t) {
    std::vector<int32_t> row;
    for (const auto& s : tokens) row.push_back(s[t]);
    logits = lockstep.Step(row);
    if (checked.count(t) == 0) continue;
    for (size_t layer = 0; layer < experts.layers.size(); ++layer) {
      const Json& rows = golden["layers"][layer][std::to_string(t)];
      for (size_t r = 0; r < rows.size(); ++r) {
        std::set<int> got;
        for (const auto& [id, weight] : experts.layers[layer][r]) got.insert(id);
        EXPECT_EQ(got, rows[r].get<std::set<int>>())
            << "position " << t << " layer " << layer << " row " << r;
      }
    }
  }
  for (size_t r = 0; r < tokens.size(); ++r) {
    const std::vector<float> row(logits.Row(r), logits.Row(r) + logits.cols);
    EXPECT_NEAR(LogSumExp(row), golden["last_lse"][r].get<double>(), 5e-3);
    std::vector<int> order(row.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::partial_sort(order.begin(), order.begin() + 8, order.end(), [&](int a, int b) {
      return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
    });
    order.resize(8);
    EXPECT_EQ(order, golden["last_top8"][r].get<std::vector<int>>());
  }
}

TEST_F(BundledModel, OeaWithK0EqualToKIsVanillaBitForBit) {
  const auto tokens = ReadGolden("oea.json")["tokens"].get<std::vector<std::vector<int32_t>>>();
  auto vanilla = MakeRouter("vanilla"), neutral = MakeRouter("oea:k0=8");
  Lockstep a(*model_, *pool_, *vanilla, Activations::kF32, tokens.size(), 24);
  Lockstep b(*model_, *pool_, *neutral, Activations::kF32, tokens.size(), 24);
  for (size_t t = 0; t < 24; ++t) {
    std::vector<int32_t> row;
    for (const auto& s : tokens) row.push_back(s[t]);
    const auto x = a.Step(row), y = b.Step(row);
    ASSERT_TRUE(std::equal(x.data, x.data + x.rows * x.cols, y.data)) << t;
  }
}

TEST_F(BundledModel, ExactModeOfBatches1To33OnRealWeights) {
  const auto ids = ReadGolden("logits.json")["sequences"][3]["ids"].get<std::vector<int32_t>>();
  constexpr size_t kSteps = 72;  // past index_topk: the sparse path is in it
  for (const Activations activations : {Activations::kF32, Activations::kQ8}) {
    std::vector<std::vector<float>> alone =
        Logits({ids.begin(), ids.begin() + kSteps}, activations);
    for (size_t threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      for (size_t batch : {2, 3, 7, 16, 33}) {
        auto router = MakeRouter("vanilla");
        Lockstep lockstep(*model_, pool, *router, activations, batch, kSteps);
        for (size_t t = 0; t < kSteps; ++t) {
          std::vector<int32_t> row(batch);
          for (size_t b = 0; b < batch; ++b) row[b] = ids[(t + 5 * b) % ids.size()];
          const auto logits = lockstep.Step(row);
          ASSERT_TRUE(std::equal(alone[t].begin(), alone[t].end(), logits.Row(0)))
              << "batch " << batch << " threads " << threads << " step " << t;
        }
      }
    }
  }
}

TEST_F(BundledModel, GreedyContinuationsMatch) {
  EngineOptions options;
  options.threads = 2;
  auto engine = Engine::Load(kDir, options);
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  const Json golden = ReadGolden("greedy.json");
  std::vector<Request> requests;
  for (const Json& g : golden) {
    Request request;
    request.prompt = *(*engine)->tokenizer().Encode(g["prompt"].get<std::string>());
    EXPECT_EQ(request.prompt, g["prompt_ids"].get<std::vector<int32_t>>());
    request.max_tokens = g["ids"].size();
    request.sampling.temperature = 0;
    requests.push_back(std::move(request));
  }
  const auto completions = Complete(**engine, std::move(requests), {});
  ASSERT_TRUE(completions.has_value());
  for (size_t i = 0; i < golden.size(); ++i) {
    const auto want = golden[i]["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ((*completions)[i].token_ids, want) << i;
    EXPECT_EQ((*completions)[i].text, golden[i]["text"].get<std::string>());
  }
}

}  // namespace
}  // namespace carpool
