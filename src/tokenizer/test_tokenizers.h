// Small tokenizer.json files for the tests, put together from parts.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "carpool/source_dir.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/tokenizer.h"

namespace carpool::test {

using OrderedJson = nlohmann::ordered_json;

inline constexpr const char* kGlmRegex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* kQwenRegex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline const std::vector<std::string> kDeepSeekRegexes = {
    R"(\p{N}{1,3})", R"([一-龥぀-ゟ゠-ヿ]+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

inline OrderedJson Split(const std::string& regex) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

/// Byte-level: ids 0-255 are the bytes, then the merges' products in order, then `added` (id filled
/// in when absent).
inline OrderedJson ByteLevelJson(
    const std::vector<std::string>& regexes,
    const std::vector<std::pair<std::string, std::string>>& merges = {},
    std::vector<OrderedJson> added = {}) {
  OrderedJson vocab = OrderedJson::object();
  for (int b = 0; b < 256; ++b) vocab[VocabStringOfBytes(std::string(1, static_cast<char>(b)))] = b;
  OrderedJson merge_list = OrderedJson::array();
  for (const auto& [left, right] : merges) {
    merge_list.push_back({left, right});
    if (!vocab.contains(left + right)) vocab[left + right] = static_cast<int>(vocab.size());
  }
  int next = static_cast<int>(vocab.size());
  for (auto& token : added) {
    if (!token.contains("id")) token["id"] = next++;
  }
  OrderedJson steps = OrderedJson::array();
  for (const auto& regex : regexes) steps.push_back(Split(regex));
  steps.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", false}});
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
          {"post_processor", {{"type", "ByteLevel"}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merge_list}}}};
}

inline Result<Tokenizer> FromJson(const OrderedJson& json) {
  return Tokenizer::LoadFromJson(json.dump(), "t.json");
}

inline std::string BundledModelDir() {
  return std::string(CARPOOL_SOURCE_DIR) + "/models/books-20m";
}

}  // namespace carpool::test
