#include "routing/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <nlohmann/json.hpp>

#include "routing/explain.h"

namespace carpool {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

DispatchCase CaseOf(const std::string& preset, size_t fused = 0) {
  DispatchCase c;
  c.config = *PresetConfig(preset);
  c.fused_shared = fused;
  return c;
}
DispatchLog DispatchOn(const std::string& profile, const DispatchCase& c) {
  return Dispatch(**FindDispatchProfile(profile), c);
}

const RuleLog& Rule(const DispatchLog& log, std::string_view name) {
  for (const RuleLog& r : log.tables.back().rules) {
    if (r.rule == name) return r;
  }
  ADD_FAILURE() << "no rule " << name;
  return log.tables.back().rules[0];
}
std::vector<std::string> Failing(const RuleLog& rule) {
  std::vector<std::string> names;
  for (const PredicateLog& p : rule.predicates) {
    if (!p.value) names.emplace_back(p.name);
  }
  return names;
}

// Published dispatch vectors: the rule, and every predicate of R1 that fails when none is
// short-circuited.
TEST(DispatchTest, PublishedVectors) {
  const struct {
    const char* preset;
    size_t fused;
    const char* rule;
    std::vector<std::string> failing;
  } cases[] = {
      {"deepseek-v3", 1, "R2", {"s_eq_0", "K_le_8"}},
      {"deepseek-v3", 0, "R1", {}},
      {"kimi-k2", 0, "R4", {"pow2_N", "kgG_ge_K"}},
      {"glm-4.5", 1, "R5", {"s_eq_0", "pow2_N", "K_le_8", "kgG_ge_K"}},
      {"glm-4.5", 0, "R5", {"pow2_N", "kgG_ge_K"}},
      {"glm-4.5-air", 0, "R5", {"kgG_ge_K"}},
      {"glm-5", 0, "R5", {"kgG_ge_K"}},
      {"glm-5", 1, "R5", {"s_eq_0", "K_le_8", "kgG_ge_K"}},
      {"nemotron-3-super", 0, "R5", {"K_le_8", "kgG_ge_K", "N_le_384"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.preset) + (c.fused != 0 ? " fused" : ""));
    const DispatchLog log = DispatchOn("sglang-2026-02", CaseOf(c.preset, c.fused));
    EXPECT_EQ(log.rule, c.rule);
    EXPECT_EQ(Failing(Rule(log, "R1")), c.failing);
  }
}

TEST(DispatchTest, Glm5FirstFailingPredicates) {
  const DispatchLog unfused = DispatchOn("sglang-2026-02", CaseOf("glm-5"));
  EXPECT_EQ(unfused.kernel, "biased_grouped_topk_impl");
  EXPECT_EQ(Rule(unfused, "R1").verdict, "fail@kgG_ge_K");
  EXPECT_EQ(Rule(unfused, "R2").verdict, "fail@epg_le_32");
  EXPECT_EQ(Rule(unfused, "R4").verdict, "fail@N_eq_384");
  EXPECT_EQ(Rule(DispatchOn("sglang-2026-02", CaseOf("glm-5", 1)), "R1").verdict, "fail@s_eq_0");
  const DispatchLog seed = DispatchOn("seed-doc", CaseOf("glm-5"));
  EXPECT_EQ(seed.kernel, "biased_grouped_topk_impl");
  std::vector<std::string> rules;
  for (const RuleLog& r : seed.tables.back().rules)
    rules.push_back(std::string(r.rule) + " " + r.verdict);
  EXPECT_THAT(rules, ::testing::ElementsAre("R1 fail@epg_le_32", "R2 fail@epg_le_32",
                                            "R4 fail@N_eq_384", "R5 match"));
  EXPECT_TRUE(Rule(seed, "R1").predicates[1].value);  // power of two
}

// The path columns of the table of models: preset, fused, kernel early in 2026, kernel in September
// 2026.
TEST(DispatchTest, KnownPathsOfKnownModels) {
  const struct {
    const char* preset;
    size_t fused;
    const char* s1;
    const char* s4;
  } cases[] = {
      {"deepseek-v2", 0, "grouped_topk_gpu", "grouped_topk_gpu"},
      {"deepseek-v2-lite", 0, "grouped_topk_gpu", "grouped_topk_gpu"},
      {"deepseek-v3", 1, "moe_fused_gate", "flashinfer_fused_topk_deepseek"},
      {"deepseek-v3", 0, "flashinfer_fused_topk_deepseek", "flashinfer_fused_topk_deepseek"},
      {"kimi-k2", 0, "kimi_k2_moe_fused_gate", "triton_router"},
      {"kimi-k3", 0, nullptr, "radix_router"},
      {"glm-4.5", 0, "biased_grouped_topk_impl", "triton_router"},
      {"glm-4.5", 1, "biased_grouped_topk_impl", "triton_router"},
      {"glm-4.7-flash", 0, "biased_grouped_topk_impl", "triton_router"},
      {"glm-4.7-flash", 1, "biased_grouped_topk_impl", "biased_grouped_topk_impl"},
      {"glm-5", 0, "biased_grouped_topk_impl", "triton_router"},
      {"glm-5", 1, "biased_grouped_topk_impl", "triton_router"},
      {"glm-5.3-flash", 0, nullptr, "triton_router"},
      {"qwen3-30b", 0, "topk_softmax", "triton_router"},
      {"mixtral-8x7b", 0, "topk_softmax", "triton_router"},
      {"gpt-oss-120b", 0, "topk_softmax", "triton_router"},
      {"minimax-m2", 0, "topk_sigmoid", "biased_topk_jit_kernel"},
      {"llama-4-scout", 0, "custom_routing_function", "custom_routing_function"},
      {"ernie-4.5-21b", 0, "topk_softmax", "triton_router"},
      {"hunyuan-3", 0, nullptr, "triton_router"},
      {"step-3.5-flash", 0, "topk_sigmoid", "biased_topk_jit_kernel"},
      {"nemotron-3-nano", 0, "biased_grouped_topk_impl", "triton_router"},
      {"nemotron-3-super", 0, "biased_grouped_topk_impl", "triton_router"},
      {"deepseek-v4", 0, "unsupported scoring", "biased_topk_jit_kernel"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.preset);
    if (c.s1 != nullptr) {
      EXPECT_EQ(DispatchOn("sglang-2026-02", CaseOf(c.preset, c.fused)).kernel, c.s1);
    }
    EXPECT_EQ(DispatchOn("sglang-2026-09", CaseOf(c.preset, c.fused)).kernel, c.s4);
  }
  EXPECT_EQ(DispatchOn("sglang-2026-09", CaseOf("glm-5", 0)).rule, "R4b");
  EXPECT_EQ(DispatchOn("sglang-2026-09", CaseOf("glm-5", 1)).rule, "R4");
  EXPECT_EQ(DispatchOn("sglang-2026-09", CaseOf("nemotron-3-super")).rule, "R4");
  EXPECT_EQ(DispatchOn("sglang-2026-09", CaseOf("nemotron-3-nano")).rule, "R4b");
}

TEST(DispatchTest, DeviceAndFlagsMatter) {
  DispatchCase c = CaseOf("glm-5");
  c.device = "cpu";
  EXPECT_EQ(DispatchOn("sglang-2026-02", c).kernel, "biased_grouped_topk_cpu");
  c.flags = {{"amx", false}};
  EXPECT_EQ(DispatchOn("sglang-2026-02", c).kernel, "biased_grouped_topk_impl");
  c = CaseOf("glm-5");
  c.device = "hip";
  EXPECT_EQ(DispatchOn("sglang-2026-02", c).rule, "R3");
  c = CaseOf("deepseek-v3");
  c.flags = {{"flashinfer", false}};
  EXPECT_EQ(DispatchOn("sglang-2026-02", c).rule, "R2");
  EXPECT_EQ(DispatchOn("sglang-cpu", CaseOf("glm-5")).kernel, "biased_grouped_topk_cpu");
  c = CaseOf("glm-5");
  c.device = "xpu";
  EXPECT_EQ(DispatchOn("sglang-2026-09", c).rule, "R6");
  c = CaseOf("deepseek-v3");
  c.flags = {{"jit_grouped_topk", true}};
  EXPECT_EQ(DispatchOn("sglang-2026-09", c).rule, "R0");
  EXPECT_EQ(DispatchOn("vllm", CaseOf("glm-5")).kernel, "grouped_topk fused, small-expert kernel");
  EXPECT_EQ(DispatchOn("vllm", CaseOf("minimax-m2")).kernel, "fused_topk_bias");
  EXPECT_EQ(DispatchOn("vllm", CaseOf("longcat-flash")).kernel, "ZeroExpertRouter");
  EXPECT_EQ(DispatchOn("vllm", CaseOf("deepseek-v4")).kernel, "topk_softplus_sqrt");
  EXPECT_EQ(DispatchOn("llama.cpp", CaseOf("gpt-oss-20b")).kernel, "build_moe_ffn: softmax_weight");
  EXPECT_EQ(DispatchOn("flashinfer-trtllm", CaseOf("deepseek-v3")).kernel,
            "trtllm_gen DeepSeekV3 (grouped)");
}

bool Recompute(const Json& p) {
  const std::string op = p["op"];
  const Json &lhs = p["lhs"], &rhs = p["rhs"];
  if (op == "==") return lhs == rhs;
  if (op == "!=") return lhs != rhs;
  if (op == "in") return std::find(rhs.begin(), rhs.end(), lhs) != rhs.end();
  const int64_t a = lhs.get<int64_t>();
  if (op == "is_power_of_two")
    return std::has_single_bit(static_cast<uint64_t>(a)) == rhs.get<bool>();
  const int64_t b = rhs.get<int64_t>();
  if (op == "<=") return a <= b;
  if (op == "<") return a < b;
  if (op == ">=") return a >= b;
  if (op == ">") return a > b;
  ADD_FAILURE() << "unknown operator " << op;
  return false;
}

/// From the logged values alone: every predicate, every verdict, the kernel.
void Verify(const Json& rules, const std::string* kernel) {
  bool matched = false;
  for (const Json& rule : rules) {
    std::string verdict = matched ? "skipped" : "match";
    bool open = !matched;
    for (const Json& p : rule["predicates"]) {
      EXPECT_EQ(p["value"].get<bool>(), Recompute(p)) << p;
      EXPECT_EQ(p["evaluated"].get<bool>(), open) << p;
      if (open && !Recompute(p)) {
        verdict = "fail@" + p["name"].get<std::string>();
        open = false;
      }
    }
    EXPECT_EQ(rule["verdict"], verdict);
    if (verdict == "match") {
      matched = true;
      if (kernel != nullptr) {
        EXPECT_EQ(rule["kernel"], *kernel);
      }
    }
  }
  EXPECT_TRUE(matched);
}

TEST(DispatchTest, EveryVerdictCanBeRecomputedFromTheLog) {
  for (const DispatchProfile* profile : AllDispatchProfiles()) {
    for (const ModelPreset& preset : AllModelPresets()) {
      for (const char* device : {"", "cuda", "hip", "cpu", "xpu", "musa"}) {
        for (const size_t fused : {0u, 1u}) {
          DispatchCase c;
          c.config = ToConfig(preset);
          c.device = device;
          c.fused_shared = fused;
          SCOPED_TRACE(fmt::format("{} {} {} {}", profile->name, preset.name, device, fused));
          const Json json = Json::parse(ExplainJson(Dispatch(*profile, c), c));
          for (const Json& table : json["entry"]) Verify(table["rules"], nullptr);
          const std::string kernel = json["kernel"];
          Verify(json["rules"], &kernel);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(DispatchTest, DiffShowsWhereTwoProfilesPart) {
  const DispatchCase c = CaseOf("glm-5");
  const Json diff =
      Json::parse(DiffJson(DispatchOn("seed-doc", c), DispatchOn("sglang-2026-02", c), c));
  EXPECT_TRUE(diff["same_kernel"].get<bool>());
  EXPECT_EQ(diff["first_difference"]["rule"], "R1");
  EXPECT_THAT(diff["first_difference"]["a"].get<std::string>(), HasSubstr("epg_le_32"));
  EXPECT_THAT(diff["first_difference"]["b"].get<std::string>(), HasSubstr("kgG_ge_K"));
  const Json same = Json::parse(DiffJson(DispatchOn("vllm", c), DispatchOn("vllm", c), c));
  EXPECT_TRUE(same["first_difference"].is_null());
}

TEST(DispatchTest, EveryPresetIsAPossibleGate) {
  for (const ModelPreset& preset : AllModelPresets()) {
    auto gate = ModelGate(ToConfig(preset));
    EXPECT_TRUE(gate) << preset.name << ": " << gate.error().message;
  }
}

TEST(DispatchTest, ErrorsListWhatIsKnown) {
  EXPECT_THAT(PresetConfig("glm-6").error().message, HasSubstr("glm-5"));
  EXPECT_THAT(FindDispatchProfile("sglang").error().message, HasSubstr("sglang-2026-02"));
  DispatchCase c = CaseOf("glm-5");
  c.device = "tpu";
  EXPECT_THAT(CheckDispatchCase(c).error().message, HasSubstr("cuda, hip"));
  c.device = "cuda";
  c.dtype = "int8";
  EXPECT_THAT(CheckDispatchCase(c).error().message, HasSubstr("bf16"));
  c.dtype = "bf16";
  c.flags = {{"turbo", true}};
  EXPECT_THAT(CheckDispatchCase(c).error().message, HasSubstr("flashinfer"));
}

TEST(RoutingConfigTest, FieldNamesOfEveryFamily) {
  const std::map<std::string, std::string> configs = {
      {"glm-5",
       R"({"model_type":"glm_moe_dsa","n_routed_experts":256,"num_experts_per_tok":8,"n_group":1,"topk_group":1,"norm_topk_prob":true,"routed_scaling_factor":2.5,"scoring_func":"sigmoid","topk_method":"noaux_tc","n_shared_experts":1})"},
      {"glm-4.5-air",
       R"({"model_type":"glm4_moe","n_routed_experts":128,"num_experts_per_tok":8,"n_group":1,"topk_group":1,"norm_topk_prob":true,"routed_scaling_factor":1.0,"n_shared_experts":1})"},
      {"deepseek-v3",
       R"({"model_type":"deepseek_v3","n_routed_experts":256,"num_experts_per_tok":8,"n_group":8,"topk_group":4,"norm_topk_prob":true,"routed_scaling_factor":2.5,"scoring_func":"sigmoid","topk_method":"noaux_tc","n_shared_experts":1})"},
      {"deepseek-v2",
       R"({"model_type":"deepseek_v2","n_routed_experts":160,"num_experts_per_tok":6,"n_group":8,"topk_group":3,"norm_topk_prob":false,"routed_scaling_factor":16.0,"scoring_func":"softmax","topk_method":"group_limited_greedy","n_shared_experts":2})"},
      {"kimi-k2.5",
       R"({"model_type":"kimi_k25","text_config":{"model_type":"kimi_k2","n_routed_experts":384,"num_experts_per_tok":8,"n_group":1,"topk_group":1,"norm_topk_prob":true,"routed_scaling_factor":2.827,"scoring_func":"sigmoid","topk_method":"noaux_tc","n_shared_experts":1}})"},
      {"qwen3-30b",
       R"({"model_type":"qwen3_moe","num_experts":128,"num_experts_per_tok":8,"norm_topk_prob":true})"},
      {"qwen1.5-moe",
       R"({"model_type":"qwen2_moe","num_experts":60,"num_experts_per_tok":4,"norm_topk_prob":false,"shared_expert_intermediate_size":5632})"},
      {"mixtral-8x7b", R"({"model_type":"mixtral","num_local_experts":8,"num_experts_per_tok":2})"},
      {"olmoe-1b-7b",
       R"({"model_type":"olmoe","num_experts":64,"num_experts_per_tok":8,"norm_topk_prob":false})"},
      {"gpt-oss-120b",
       R"({"model_type":"gpt_oss","num_local_experts":128,"experts_per_token":4,"num_experts_per_tok":4})"},
      {"minimax-m2",
       R"({"model_type":"minimax_m2","num_local_experts":256,"num_experts_per_tok":8,"scoring_func":"sigmoid","use_routing_bias":true})"},
      {"llama-4-scout",
       R"({"model_type":"llama4","text_config":{"model_type":"llama4_text","num_local_experts":16,"num_experts_per_tok":1}})"},
      {"ernie-4.5-21b",
       R"({"model_type":"ernie4_5_moe","moe_num_experts":64,"moe_k":6,"moe_num_shared_experts":2})"},
      {"hunyuan-a13b",
       R"({"model_type":"hunyuan_v1_moe","num_experts":64,"moe_topk":[8,8],"num_shared_expert":[1,1]})"},
      {"granite-4",
       R"({"model_type":"granitemoehybrid","num_local_experts":72,"num_experts_per_tok":10,"shared_intermediate_size":1024})"},
      {"longcat-flash",
       R"({"model_type":"longcat_flash","n_routed_experts":512,"moe_topk":12,"zero_expert_num":256,"routed_scaling_factor":6.0})"},
  };
  for (const auto& [preset, text] : configs) {
    SCOPED_TRACE(preset);
    auto got = ParseRoutingConfig(text, "config.json");
    ASSERT_TRUE(got) << got.error().message;
    const RoutingConfig want = *PresetConfig(preset);
    EXPECT_EQ(got->num_experts, want.num_experts);
    EXPECT_EQ(got->top_k, want.top_k);
    EXPECT_EQ(got->num_groups, want.num_groups);
    EXPECT_EQ(got->groups_kept, want.groups_kept);
    EXPECT_EQ(got->scoring, want.scoring);
    EXPECT_EQ(got->has_bias, want.has_bias);
    EXPECT_EQ(got->renormalize, want.renormalize);
    EXPECT_EQ(got->scale, want.scale);
    EXPECT_EQ(got->num_shared, want.num_shared);
    EXPECT_EQ(got->custom_function, want.custom_function);
    EXPECT_EQ(got->softmax_over_selected, want.softmax_over_selected);
  }
}

TEST(RoutingConfigTest, BadConfigsNameTheField) {
  auto error = [](const char* text) {
    auto got = ParseRoutingConfig(text, "c.json");
    return got ? std::string() : got.error().message;
  };
  EXPECT_THAT(error("{"), HasSubstr("c.json: wanted a JSON object"));
  EXPECT_THAT(error("[]"), HasSubstr("wanted a JSON object"));
  EXPECT_THAT(error("{}"), HasSubstr("n_routed_experts: missing"));
  EXPECT_THAT(error(R"({"num_experts":"many"})"), HasSubstr("num_experts: wanted a whole number"));
  EXPECT_THAT(error(R"({"num_experts":8.5,"num_experts_per_tok":2})"),
              HasSubstr("num_experts: wanted a whole number"));
  EXPECT_THAT(error(R"({"num_experts":8})"), HasSubstr("num_experts_per_tok: missing"));
  EXPECT_THAT(error(R"({"num_experts":0,"num_experts_per_tok":1})"),
              HasSubstr("num_experts: wanted 1.."));
  EXPECT_THAT(error(R"({"num_experts":8,"num_experts_per_tok":9})"), HasSubstr("top_k"));
  EXPECT_THAT(error(R"({"num_experts":8,"num_experts_per_tok":2,"n_group":3})"),
              HasSubstr("num_groups"));
  EXPECT_THAT(error(R"({"num_experts":8,"num_experts_per_tok":2,"n_group":2,"topk_group":3})"),
              HasSubstr("groups_kept"));
  EXPECT_THAT(error(R"({"num_experts":8,"num_experts_per_tok":5,"n_group":2,"topk_group":1})"),
              HasSubstr("top_k: wanted at most"));
  EXPECT_THAT(
      error(
          R"({"model_type":"deepseek_v3","num_experts":8,"num_experts_per_tok":2,"n_group":8,"topk_group":4})"),
      HasSubstr("second maximum"));
  EXPECT_THAT(error(R"({"num_experts":8,"num_experts_per_tok":2,"scoring_func":"relu"})"),
              HasSubstr("'relu'"));
  EXPECT_THAT(error(R"({"num_experts":8,"num_experts_per_tok":2,"routed_scaling_factor":"x"})"),
              HasSubstr("routed_scaling_factor"));
  EXPECT_THAT(error(R"({"text_config":{"num_experts":8}})"),
              HasSubstr("text_config.num_experts_per_tok"));
}

}  // namespace
}  // namespace carpool
