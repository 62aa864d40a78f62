#include "cli/sampling_flags.h"

namespace carpool::cli {

void AddSamplingFlags(CLI::App& command, SamplingFlags& flags) {
  command.add_option("--temperature", flags.temperature, "0 = greedy; default: the checkpoint's")
      ->type_name("T");
  command.add_option("--top-p", flags.top_p, "Nucleus sampling; default: the checkpoint's")
      ->type_name("P");
  command.add_option("--top-k", flags.rest.top_k, "Only the K best tokens; 0 = off")
      ->type_name("K");
  command
      .add_option("--min-p", flags.rest.min_p,
                  "Only tokens with at least P times the best one's probability")
      ->type_name("P");
  command.add_option("--repetition-penalty", flags.rest.repetition_penalty,
                     "Divides the logits of seen tokens; 1 = off");
  command.add_option("--presence-penalty", flags.rest.presence_penalty,
                     "Taken from the logits of generated tokens");
  command.add_option("--frequency-penalty", flags.rest.frequency_penalty,
                     "The same, once per occurrence");
  command.add_option("--seed", flags.rest.seed, "Seed of the sampling; prompt i uses seed + i")
      ->type_name("N");
}

Result<SamplingParams> ResolveSampling(const SamplingFlags& flags, const ModelConfig& config) {
  SamplingParams params = flags.rest;
  params.temperature = flags.temperature.value_or(config.default_temperature);
  params.top_p = flags.top_p.value_or(config.default_top_p);
  RETURN_IF_ERROR(ValidateSampling(params, config.vocab_size));
  return params;
}

}  // namespace carpool::cli
