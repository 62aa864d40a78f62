// carpool info: what a checkpoint is.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "base/text_table.h"
#include "cli/command.h"
#include "models/all_models.h"
#include "models/model_summary.h"

namespace carpool::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kListedTensors = 20;

/// Names come from files: bytes that are not UTF-8 must not stop the output.
std::string Dump(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson AttentionJson(const ModelConfig& c) {
  OrderedJson out = {{"kind", c.attention == AttentionKind::kMla ? "mla" : "gqa"},
                     {"heads", c.num_heads}};
  if (c.attention == AttentionKind::kMla) {
    out["q_lora_rank"] = c.mla.q_lora_rank;
    out["kv_lora_rank"] = c.mla.kv_lora_rank;
    out["qk_nope_dim"] = c.mla.nope_dim;
    out["qk_rope_dim"] = c.mla.rope_dim;
    out["v_dim"] = c.mla.v_dim;
  } else {
    out["kv_heads"] = c.gqa.kv_heads;
    out["head_dim"] = c.gqa.head_dim;
    out["rope_dim"] = c.rope.dim;
    out["windows"] = c.gqa.window;
  }
  out["rope_theta"] = c.rope.theta;
  return out;
}

OrderedJson IndexerJson(const MlaConfig& m) {
  if (m.indexer.empty()) return nullptr;
  OrderedJson schedule = OrderedJson::array();
  for (const auto kind : m.indexer)
    schedule.push_back(kind == IndexerKind::kFull ? "full" : "shared");
  return {
      {"heads", m.index_heads}, {"dim", m.index_dim}, {"topk", m.index_topk}, {"layers", schedule}};
}

void PrintInfoJson(const ModelSummary& s) {
  const ModelConfig& c = s.config;
  OrderedJson mlp = OrderedJson::array();
  for (const auto kind : c.mlp) mlp.push_back(kind == MlpKind::kSparse ? "sparse" : "dense");
  const auto& unused = s.report.unused;
  OrderedJson out = {
      {"model_type", c.model_type},
      {"parameters", s.parameters},
      {"active_parameters", s.active_parameters},
      {"num_layers", c.num_layers},
      {"num_moe_layers", c.NumMoeLayers()},
      {"num_experts", c.gate.num_experts},
      {"top_k", c.gate.top_k},
      {"num_shared_experts", c.num_shared_experts},
      {"num_groups", c.gate.num_groups},
      {"groups_kept", c.gate.groups_kept},
      {"routed_scaling_factor", c.gate.scale},
      {"hidden_size", c.hidden},
      {"dense_width", c.dense_width},
      {"expert_width", c.expert_width},
      {"mlp_layers", mlp},
      {"attention", AttentionJson(c)},
      {"indexer", IndexerJson(c.mla)},
      {"vocab_size", c.vocab_size},
      {"context", c.max_position},
      {"eos_token_ids", c.eos_ids},
      {"tied_embeddings", c.tie_embeddings},
      {"quantization", s.quantization},
      {"tensor_bytes", s.report.tensor_bytes},
      {"tensor_counts", s.report.tensor_counts},
      {"total_bytes", s.total_bytes},
      {"expert_bytes", s.expert_bytes},
      {"num_files", s.num_files},
      {"tensors_bound", s.report.tensors_bound},
      {"num_unused_tensors", unused.size()},
      {"unused_tensors",
       std::vector(unused.begin(), unused.begin() + static_cast<ptrdiff_t>(
                                                        std::min(unused.size(), kListedTensors)))},
      {"mtp_layers", s.mtp_layers},
      {"mtp_parameters", s.mtp_parameters},
      {"missing_optional", s.report.missing_optional},
      {"warnings", s.report.warnings},
  };
  fmt::print("{}\n", Dump(out));
}

std::string Layers(const ModelConfig& c) {
  const size_t moe = c.NumMoeLayers();
  return fmt::format("{}: {} dense, {} MoE", c.num_layers, c.num_layers - moe, moe);
}

std::string Gate(const GateSpec& g) {
  const std::string groups =
      g.num_groups > 1 ? fmt::format(", best {} of {} groups", g.groups_kept, g.num_groups)
                       : std::string();
  return fmt::format("{}{}{}{}, weights × {}", Name(g.activation),
                     g.has_bias ? " + correction bias" : "", groups,
                     g.renormalize == Renormalize::kNone ? "" : ", renormalised", g.scale);
}

std::string Attention(const ModelConfig& c) {
  if (c.attention == AttentionKind::kMla) {
    return fmt::format("MLA, {} heads, q rank {}, kv rank {}, keys {} + {} rope, values {}",
                       c.num_heads, c.mla.q_lora_rank, c.mla.kv_lora_rank, c.mla.nope_dim,
                       c.mla.rope_dim, c.mla.v_dim);
  }
  const auto& window = c.gqa.window;
  const auto slides =
      window.size() - static_cast<size_t>(std::count(window.begin(), window.end(), size_t{0}));
  return fmt::format("GQA, {} heads × {}, {} key heads{}", c.num_heads, c.gqa.head_dim,
                     c.gqa.kv_heads,
                     slides == 0 ? std::string()
                                 : fmt::format(", {} layers see the last {} tokens", slides,
                                               *std::max_element(window.begin(), window.end())));
}

std::string Indexer(const ModelConfig& c) {
  const auto& kinds = c.mla.indexer;
  const auto full = static_cast<size_t>(std::count(kinds.begin(), kinds.end(), IndexerKind::kFull));
  return fmt::format("DSA, {} heads × {}, keeps {} keys; {}", c.mla.index_heads, c.mla.index_dim,
                     HumanCount(c.mla.index_topk),
                     full == c.num_layers
                         ? std::string("in every layer")
                         : fmt::format("{} full layers, {} shared", full, c.num_layers - full));
}

void PrintHuman(const std::string& dir, const ModelSummary& s) {
  const ModelConfig& c = s.config;
  const std::string name = std::filesystem::path(dir + "/").parent_path().filename().string();
  fmt::print("{} ({})\n\n", Printable(name), c.model_type);
  const auto line = [](std::string_view key, const std::string& value) {
    fmt::print("  {:<12} {}\n", key, value);
  };
  line("parameters", fmt::format("{}, of which a token meets {}", HumanCount(s.parameters),
                                 HumanCount(s.active_parameters)));
  line("layers", Layers(c));
  if (c.NumMoeLayers() > 0) {
    line("experts", fmt::format("{} per MoE layer, top {}, {} shared", c.gate.num_experts,
                                c.gate.top_k, c.num_shared_experts));
    line("gate", Gate(c.gate));
  }
  line("widths", fmt::format("hidden {}, dense MLP {}, expert {}", HumanCount(c.hidden),
                             HumanCount(c.dense_width), HumanCount(c.expert_width)));
  line("attention", Attention(c));
  if (!c.mla.indexer.empty()) line("indexer", Indexer(c));
  line("context",
       fmt::format("{} tokens, rope theta {}", HumanCount(c.max_position), c.rope.theta));
  line("vocabulary",
       fmt::format("{}, ends at {}", HumanCount(c.vocab_size),
                   c.eos_ids.empty() ? std::string("no token")
                                     : fmt::format("{}", fmt::join(c.eos_ids, ", "))));
  if (c.NumMoeLayers() > 0) {
    const size_t per_token = c.gate.top_k * c.NumMoeLayers() * s.expert_bytes;
    line("one expert", fmt::format("{}; a token alone reads {} of experts",
                                   HumanBytes(static_cast<double>(s.expert_bytes)),
                                   HumanBytes(static_cast<double>(per_token))));
  }
  TextTable table({"storage", "tensors", "bytes", "share"});
  for (const auto& [storage, bytes] : s.report.tensor_bytes) {
    table.AddRow({storage, HumanCount(s.report.tensor_counts.at(storage)),
                  HumanBytes(static_cast<double>(bytes)),
                  fmt::format("{:.1f} %", 100.0 * static_cast<double>(bytes) /
                                              static_cast<double>(s.total_bytes))});
  }
  table.AddRow({"all", "", HumanBytes(static_cast<double>(s.total_bytes)), ""});
  fmt::print("\n{}", table.Render());
  if (!s.quantization.empty())
    fmt::print("\nThe checkpoint calls itself {}.\n", Printable(s.quantization));
  if (s.mtp_layers > 0) {
    fmt::print(
        "MTP layers: {} of {} parameters, bound and checked; nothing drafts with them yet.\n",
        s.mtp_layers, HumanCount(s.mtp_parameters));
  }
  for (const auto& what : s.report.missing_optional)
    fmt::print("Not there, not needed: {}.\n", what);
  if (const auto& unused = s.report.unused; !unused.empty()) {
    fmt::print("Not used: {} tensors, e.g. {}.\n", HumanCount(unused.size()),
               Printable(unused.front()));
  }
  for (const auto& warning : s.report.warnings) fmt::print("Warning: {}.\n", warning);
}

void PrintSupported(bool json) {
  OrderedJson list = OrderedJson::array();
  TextTable table({"model_type", "class", "models"});
  for (const Architecture& a : AllArchitectures()) {
    list.push_back(
        {{"model_type", a.model_type}, {"class_name", a.class_name}, {"models", a.models}});
    table.AddRow({std::string(a.model_type), std::string(a.class_name), std::string(a.models)});
  }
  if (json) {
    fmt::print("{}\n", Dump({{"supported", list}}));
  } else {
    fmt::print("{}", table.Render());
  }
}

}  // namespace

void AddInfo(CLI::App& root) {
  auto flags = std::make_shared<CommonFlags>();
  auto supported = std::make_shared<bool>(false);
  CLI::App* command = AddCommand(
      root, "info", "What a checkpoint is: architecture, layers, experts, formats, bytes",
      [flags, supported]() -> Status {
        if (*supported) {
          PrintSupported(flags->json);
          return {};
        }
        ASSIGN_OR_RETURN(const std::string dir, ResolveModel(flags->model));
        ASSIGN_OR_RETURN(const ModelSummary summary, SummarizeModel(dir));
        if (flags->json) {
          PrintInfoJson(summary);
        } else {
          PrintHuman(dir, summary);
        }
        return {};
      });
  AddModel(*command, *flags);
  AddJson(*command, *flags);
  command->add_flag("--supported", *supported, "List the model types that run, and stop");
}

}  // namespace carpool::cli
