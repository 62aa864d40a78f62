// The parts of tokenizer.json around the model: normalizer, pre_tokenizer, post_processor, decoder.
// Internal.
#pragma once

#include <simdjson.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "tokenizer/tokenizer_spec.h"

namespace carpool {

struct StepList {
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  bool byte_level = false;
  bool decode_strip_space = false;
  std::string decode_space;
  std::vector<int32_t> prefix, suffix;
};

/// A piece that Carpool does not know is an Unsupported error that names it and the known ones.
Result<StepList> ReadSteps(simdjson::dom::object tokenizer, const std::string& where);

}  // namespace carpool
