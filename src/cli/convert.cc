// carpool convert: between Hugging Face folders and GGUF files.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text_table.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "lab/convert.h"
#include "weights/gguf.h"

namespace carpool::cli {
namespace {

/// A conversion that changes the likeliest next token more often than this has gone wrong.
constexpr double kMinSameTop = 0.5;

struct ConvertFlags {
  CommonFlags common;
  std::string source, target;
  std::string type;
  bool no_check = false;
};

Result<std::optional<Storage>> ParseType(const std::string& text) {
  if (text.empty()) return std::optional<Storage>();
  const std::pair<const char*, Storage> types[] = {
      {"f32", Storage::kF32},   {"f16", Storage::kF16},     {"bf16", Storage::kBF16},
      {"q8_0", Storage::kQ8_0}, {"nvfp4", Storage::kNVFP4}, {"mxfp4", Storage::kMXFP4}};
  for (const auto& [name, type] : types) {
    if (text == name) return std::optional<Storage>(type);
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "--type: wanted f32, f16, bf16, q8_0, nvfp4 or mxfp4, got '{}'", text);
}

Status DoConvert(const ConvertFlags& flags) {
  ConvertOptions options;
  ASSIGN_OR_RETURN(options.type, ParseType(flags.type));
  options.progress = [line = std::make_shared<ProgressLine>("converting")](
                         size_t done, size_t total) { line->Update(done, total); };
  ASSIGN_OR_RETURN(const size_t threads, ResolveThreads(flags.common.threads.has_value(),
                                                        flags.common.threads.value_or(0)));
  ThreadPool pool(threads);
  const bool from_gguf = IsGgufFile(flags.source);
  if (!from_gguf && !flags.target.ends_with(".gguf")) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: wanted a name that ends in .gguf, for a checkpoint directory becomes a "
                     "GGUF file",
                     flags.target);
  }
  std::error_code ec;
  if (!from_gguf && std::filesystem::exists(flags.target, ec)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: exists already; wanted the name of a new file", flags.target);
  }
  if (from_gguf && options.type == Storage::kQ8_0) {
    return MakeError(ErrorCode::kUnsupported,
                     "--type q8_0: safetensors checkpoints have no such type");
  }
  ASSIGN_OR_RETURN(const ConvertReport report,
                   from_gguf ? ConvertToHuggingFace(flags.source, flags.target, options, pool)
                             : ConvertToGguf(flags.source, flags.target, options, pool));
  LogitsDifference d;
  if (!flags.no_check) {
    ASSIGN_OR_RETURN(d, CompareLogits(flags.source, flags.target, pool));
  }
  if (flags.common.json) {
    nlohmann::ordered_json json = {{"tensors", report.tensors}, {"bytes", report.bytes}};
    if (!flags.no_check) {
      json["check"] = {{"tokens", d.tokens},
                       {"max_difference", d.max_difference},
                       {"mean_kl", d.mean_kl},
                       {"same_top", d.same_top}};
    }
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{} tensors, {}\n", report.tensors, HumanBytes(static_cast<double>(report.bytes)));
    if (!flags.no_check) {
      fmt::print(
          "logits of {} tokens: largest difference {:.2e} of the largest logit, mean KL {:.2e} "
          "nats, same likeliest token {:.1f} %\n",
          d.tokens, d.max_difference, d.mean_kl, 100.0 * d.same_top);
    }
  }
  if (!flags.no_check && !(d.same_top >= kMinSameTop)) {
    return MakeError(ErrorCode::kInternal,
                     "{} does not behave like {}: the likeliest token is the same for {:.1f} % of "
                     "{} tokens only",
                     flags.target, flags.source, 100.0 * d.same_top, d.tokens);
  }
  return {};
}

}  // namespace

void AddConvert(CLI::App& root) {
  auto flags = std::make_shared<ConvertFlags>();
  CLI::App* command =
      AddCommand(root, "convert",
                 "Hugging Face folder to GGUF file or back; compares the logits of both afterwards",
                 [flags] { return DoConvert(*flags); });
  command->add_option("SRC", flags->source, "Checkpoint directory or GGUF file")->required();
  command->add_option("DST", flags->target, "New GGUF file (NAME.gguf) or new directory")
      ->required();
  command
      ->add_option(
          "--type", flags->type,
          "f32, f16, bf16, q8_0 (all matrices), nvfp4 or mxfp4 (experts and MLPs); default: "
          "as stored")
      ->type_name("T");
  command->add_flag("--no-check", flags->no_check, "Do not load both and compare");
  AddThreads(*command, flags->common);
  AddJson(*command, flags->common);
}

}  // namespace carpool::cli
