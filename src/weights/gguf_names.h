// Hugging Face names for the tensors of a GGUF model, so that everything above reads both alike.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace carpool {

/// How a family names the parts of its MoE block.
struct GgufMoeNames {
  std::string_view block = "mlp";
  std::string_view router = "gate";
  std::string_view shared = "shared_experts";
  std::string_view gate = "gate_proj";
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
};
GgufMoeNames GgufMoeNamesOf(std::string_view model_type);

/// Which part of a tensor a name stands for.
enum class GgufPart {
  kWhole,
  kPerExpert,  // the last dimension counts experts: "{}" in the name is one's number
  kGateUp,     // as kPerExpert, and the first half of a matrix' rows is the gate's, the rest up's:
               // "{}" twice, the second one the projection
};

/// A name with the GGUF tensor it comes from. Keys and values of latent attention, which GGUF keeps
/// apart, are not in here (weights/gguf_checkpoint.cc joins them).
struct HfName {
  std::string name;
  GgufPart part = GgufPart::kWhole;
};

/// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight". Nothing for tensors that have
/// no counterpart.
std::optional<HfName> HfNameOf(std::string_view gguf_name, const GgufMoeNames& moe);

}  // namespace carpool
