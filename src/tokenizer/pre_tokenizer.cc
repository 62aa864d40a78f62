#include "tokenizer/pre_tokenizer.h"

#include <utility>

#include "tokenizer/normalizer.h"

namespace carpool {
namespace {

// "▁" starts a piece.
void SplitBefore(std::string_view text, std::string_view mark, std::vector<std::string_view>& out) {
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.find(mark, begin + 1);
    if (end == std::string_view::npos) end = text.size();
    out.push_back(text.substr(begin, end - begin));
    begin = end;
  }
}

}  // namespace

Result<PreTokenizer> PreTokenizer::Make(const std::vector<PreTokenizerStep>& steps,
                                        const std::string& where) {
  PreTokenizer result;
  result.steps_ = steps;
  for (const PreTokenizerStep& step : steps) {
    if (step.pattern.empty()) {
      result.regex_of_step_.push_back(-1);
      continue;
    }
    ASSIGN_OR_RETURN(SplitRegex regex, SplitRegex::Compile(step.pattern, where));
    result.regex_of_step_.push_back(static_cast<int>(result.regexes_.size()));
    result.regexes_.push_back(std::move(regex));
  }
  return result;
}

Status PreTokenizer::Split(std::string_view text, bool at_start, RegexScratch& scratch,
                           Pieces& pieces) const {
  if (text.empty()) return {};
  std::vector<std::string_view>& now = pieces.views;
  now.assign(1, text);
  for (size_t i = 0; i < steps_.size(); ++i) {
    const PreTokenizerStep& step = steps_[i];
    std::vector<std::string_view> next;
    next.reserve(now.size());
    for (std::string_view piece : now) {
      const bool first = at_start && piece.data() == now.front().data();
      if (step.kind == PreTokenizerStep::Kind::kByteLevel && step.add_prefix_space &&
          piece.front() != ' ') {
        piece = pieces.owned.emplace_back(std::string(1, ' ').append(piece));
      }
      if (step.kind == PreTokenizerStep::Kind::kMetaspace) {
        std::string s = ReplaceAll(piece, " ", step.replacement);
        const bool prepend = step.prepend == MetaspacePrepend::kAlways ||
                             (step.prepend == MetaspacePrepend::kFirst && first);
        if (prepend && !s.starts_with(step.replacement)) s.insert(0, step.replacement);
        piece = pieces.owned.emplace_back(std::move(s));
      }
      if (regex_of_step_[i] >= 0) {
        RETURN_IF_ERROR(
            regexes_[static_cast<size_t>(regex_of_step_[i])].Split(piece, scratch, next));
      } else if (step.kind == PreTokenizerStep::Kind::kMetaspace && step.split) {
        SplitBefore(piece, step.replacement, next);
      } else {
        next.push_back(piece);
      }
    }
    now = std::move(next);
  }
  return {};
}

}  // namespace carpool
