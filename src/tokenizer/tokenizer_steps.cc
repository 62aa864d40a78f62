#include "tokenizer/tokenizer_steps.h"

#include <utility>

#include "tokenizer/utf8.h"

namespace carpool {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

// What ByteLevel{use_regex: true} and the GPT-2 family split by.
constexpr const char* kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr size_t kMaxSteps = 64;

class StepReader {
 public:
  StepReader(std::string where, StepList& out) : where_(std::move(where)), out_(out) {}

  Status Read(object top) {
    RETURN_IF_ERROR(ForEach(top, "normalizer", "normalizers",
                            [this](auto t, object o) { return Normalizer(t, o); }));
    RETURN_IF_ERROR(ForEach(top, "pre_tokenizer", "pretokenizers",
                            [this](auto t, object o) { return PreTokenizer(t, o); }));
    RETURN_IF_ERROR(ForEach(top, "post_processor", "processors",
                            [this](auto t, object o) { return PostProcessor(t, o); }));
    RETURN_IF_ERROR(
        ForEach(top, "decoder", "decoders", [this](auto t, object o) { return Decoder(t, o); }));
    if (out_.byte_level != byte_level_decoder_) {
      return Fail(ErrorCode::kUnsupported,
                  "pre_tokenizer and decoder do not fit: ByteLevel must be in both or in neither");
    }
    if (!out_.byte_level && out_.decode_space.empty()) {
      return Fail(
          ErrorCode::kUnsupported,
          "decoder: wanted ByteLevel, Metaspace or Sequence[Replace, ByteFallback, Fuse, Strip]");
    }
    return {};
  }

 private:
  Error Fail(ErrorCode code, std::string_view what) const {
    return MakeError(code, "{}: {}", where_, what);
  }
  Error Unknown(std::string_view part, std::string_view type, std::string_view known) const {
    return MakeError(ErrorCode::kUnsupported, "{}: {} {} is not supported; known: {}", where_, part,
                     QuotedForMessage(type), known);
  }

  // One step, or the steps of a Sequence, in order.
  template <typename Fn>
  Status ForEach(object top, const char* part, const char* list_key, const Fn& fn) {
    auto found = top[part];
    if (found.error() || found.is_null()) return {};
    object step;
    std::string_view type;
    if (found.get(step) || step["type"].get(type)) {
      return Fail(ErrorCode::kCorrupt,
                  fmt::format("{}: wanted an object with a \"type\" or null", part));
    }
    if (type != "Sequence") return fn(type, step);
    array list;
    if (step[list_key].get(list) || list.size() > kMaxSteps) {
      return Fail(ErrorCode::kCorrupt,
                  fmt::format("{}: wanted a list \"{}\" of at most {}", part, list_key, kMaxSteps));
    }
    for (const element e : list) {
      if (e.get(step) || step["type"].get(type)) {
        return Fail(ErrorCode::kCorrupt, fmt::format("{}: every step needs a \"type\"", part));
      }
      RETURN_IF_ERROR(fn(type, step));
    }
    return {};
  }

  Result<bool> Flag(object step, const char* key, bool otherwise) const {
    auto e = step[key];
    if (e.error() || e.is_null()) return otherwise;
    bool value = false;
    if (e.get(value))
      return Fail(ErrorCode::kCorrupt, fmt::format("{}: wanted true or false", key));
    return value;
  }

  Status Normalizer(std::string_view type, object step) {
    NormalizerStep out;
    std::string_view text;
    if (type == "NFC") {
      out.kind = NormalizerStep::Kind::kNfc;
    } else if (type == "Prepend") {
      out.kind = NormalizerStep::Kind::kPrepend;
      if (step["prepend"].get(text))
        return Fail(ErrorCode::kCorrupt, "normalizer Prepend: wanted a string \"prepend\"");
      out.to = text;
    } else if (type == "Replace") {
      out.kind = NormalizerStep::Kind::kReplace;
      if (step["pattern"]["String"].get(text) || text.empty()) {
        return Fail(ErrorCode::kUnsupported,
                    "normalizer Replace: only a \"String\" pattern is supported");
      }
      out.from = text;
      if (step["content"].get(text))
        return Fail(ErrorCode::kCorrupt, "normalizer Replace: wanted a string \"content\"");
      // A chain of growing replacements would multiply the text.
      if (text.size() > 16)
        return Fail(ErrorCode::kUnsupported, "normalizer Replace: content longer than 16 bytes");
      out.to = text;
    } else {
      return Unknown("normalizer", type, "NFC, Prepend, Replace, Sequence");
    }
    if (out.to.size() > 16)
      return Fail(ErrorCode::kUnsupported, "normalizer Prepend: longer than 16 bytes");
    if (out_.normalizer.size() >= 8)
      return Fail(ErrorCode::kUnsupported, "normalizer: more than 8 steps");
    out_.normalizer.push_back(std::move(out));
    return {};
  }

  Status PreTokenizer(std::string_view type, object step) {
    PreTokenizerStep out;
    if (type == "Split") {
      RETURN_IF_ERROR(SplitStep(step, out));
    } else if (type == "Digits") {
      ASSIGN_OR_RETURN(const bool single, Flag(step, "individual_digits", false));
      out.pattern = single ? "\\p{N}" : "\\p{N}+";
    } else if (type == "ByteLevel") {
      out.kind = PreTokenizerStep::Kind::kByteLevel;
      ASSIGN_OR_RETURN(out.add_prefix_space, Flag(step, "add_prefix_space", true));
      ASSIGN_OR_RETURN(const bool use_regex, Flag(step, "use_regex", true));
      if (use_regex) out.pattern = kGpt2Regex;
      if (out_.byte_level) return Fail(ErrorCode::kUnsupported, "pre_tokenizer: ByteLevel twice");
      out_.byte_level = true;
    } else if (type == "Metaspace") {
      RETURN_IF_ERROR(MetaspaceStep(step, out));
    } else {
      return Unknown("pre_tokenizer", type, "Split, Digits, ByteLevel, Metaspace, Sequence");
    }
    if (out_.byte_level && out.kind != PreTokenizerStep::Kind::kByteLevel) {
      return Fail(ErrorCode::kUnsupported, "pre_tokenizer: ByteLevel must be the last step");
    }
    out_.pre_tokenizer.push_back(std::move(out));
    return {};
  }

  Status SplitStep(object step, PreTokenizerStep& out) {
    std::string_view text;
    if (!step["pattern"]["Regex"].get(text)) {
      out.pattern = text;
    } else if (!step["pattern"]["String"].get(text)) {
      for (const char c : text) {  // taken literally
        if (std::string_view("\\^$.[]|()?*+{}-&#").find(c) != std::string_view::npos)
          out.pattern += '\\';
        out.pattern += c;
      }
    }
    if (out.pattern.empty())
      return Fail(ErrorCode::kCorrupt, "pre_tokenizer Split: wanted a pattern {\"Regex\": ...}");
    std::string_view behavior;
    if (step["behavior"].get(behavior))
      return Fail(ErrorCode::kCorrupt, "pre_tokenizer Split: wanted a \"behavior\"");
    if (behavior != "Isolated")
      return Unknown("pre_tokenizer Split: behavior", behavior, "Isolated");
    ASSIGN_OR_RETURN(const bool invert, Flag(step, "invert", false));
    // Isolated keeps matches and gaps alike, so inverting them changes nothing.
    (void)invert;
    return {};
  }

  Status MetaspaceStep(object step, PreTokenizerStep& out) {
    out.kind = PreTokenizerStep::Kind::kMetaspace;
    std::string_view text;
    if (step["replacement"].get(text) || text.empty() || text.size() > 4) {
      return Fail(ErrorCode::kCorrupt,
                  "pre_tokenizer Metaspace: wanted one character \"replacement\"");
    }
    out.replacement = text;
    ASSIGN_OR_RETURN(const bool prepend, Flag(step, "add_prefix_space", true));
    out.prepend = prepend ? MetaspacePrepend::kAlways : MetaspacePrepend::kNever;
    if (auto scheme = step["prepend_scheme"]; !scheme.error() && !scheme.get(text)) {
      if (text == "always") {
        out.prepend = MetaspacePrepend::kAlways;
      } else if (text == "first") {
        out.prepend = MetaspacePrepend::kFirst;
      } else if (text == "never") {
        out.prepend = MetaspacePrepend::kNever;
      } else {
        return Unknown("pre_tokenizer Metaspace: prepend_scheme", text, "always, first, never");
      }
    }
    ASSIGN_OR_RETURN(out.split, Flag(step, "split", true));
    return {};
  }

  Status PostProcessor(std::string_view type, object step) {
    if (type == "ByteLevel") return {};  // moves offsets only
    if (type == "TemplateProcessing") return Template(step);
    return Unknown("post_processor", type, "ByteLevel, TemplateProcessing, Sequence");
  }

  Status Template(object step) {
    array single;
    if (step["single"].get(single))
      return Fail(ErrorCode::kCorrupt,
                  "post_processor TemplateProcessing: wanted a list \"single\"");
    bool after = false;
    for (const element e : single) {
      std::string_view name;
      array ids;
      if (!e["Sequence"]["id"].get(name)) {
        if (after)
          return Fail(ErrorCode::kUnsupported, "post_processor TemplateProcessing: the text twice");
        after = true;
        continue;
      }
      if (e["SpecialToken"]["id"].get(name) || step["special_tokens"][name]["ids"].get(ids)) {
        return Fail(ErrorCode::kCorrupt,
                    "post_processor TemplateProcessing: an entry of \"single\" is neither the text "
                    "nor a special token with ids");
      }
      for (const element value : ids) {
        int64_t id = 0;
        auto& list = after ? out_.suffix : out_.prefix;
        if (value.get(id) || id < 0 || id > INT32_MAX || list.size() >= 1024) {
          return Fail(ErrorCode::kCorrupt,
                      fmt::format("post_processor TemplateProcessing: bad ids of {}",
                                  QuotedForMessage(name)));
        }
        list.push_back(static_cast<int32_t>(id));
      }
    }
    if (!after)
      return Fail(ErrorCode::kCorrupt,
                  "post_processor TemplateProcessing: \"single\" leaves the text out");
    return {};
  }

  Status Decoder(std::string_view type, object step) {
    std::string_view text;
    if (type == "ByteLevel") {
      byte_level_decoder_ = true;
    } else if (type == "Metaspace") {
      if (step["replacement"].get(text) || text.empty())
        return Fail(ErrorCode::kCorrupt, "decoder Metaspace: wanted a \"replacement\"");
      out_.decode_space = text;
      ASSIGN_OR_RETURN(out_.decode_strip_space, Flag(step, "add_prefix_space", true));
      if (!step["prepend_scheme"].get(text)) out_.decode_strip_space = text != "never";
    } else if (type == "Replace") {
      std::string_view content;
      if (step["pattern"]["String"].get(text) || text.empty() || step["content"].get(content) ||
          content != " ") {
        return Fail(ErrorCode::kUnsupported,
                    "decoder Replace: only a string replaced by one space is supported");
      }
      out_.decode_space = text;
    } else if (type == "Strip") {
      int64_t start = 0;
      int64_t stop = 0;
      if (step["content"].get(text) || text != " " || step["start"].get(start) ||
          step["stop"].get(stop) || start < 0 || start > 1 || stop != 0) {
        return Fail(ErrorCode::kUnsupported,
                    "decoder Strip: only one space at the start is supported");
      }
      out_.decode_strip_space = start == 1;
    } else if (type != "ByteFallback" && type != "Fuse") {  // both are how bytes are joined anyway
      return Unknown("decoder", type,
                     "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, Sequence");
    }
    return {};
  }

  std::string where_;
  StepList& out_;
  bool byte_level_decoder_ = false;
};

}  // namespace

Result<StepList> ReadSteps(object tokenizer, const std::string& where) {
  StepList out;
  RETURN_IF_ERROR(StepReader(where, out).Read(tokenizer));
  return out;
}

}  // namespace carpool
