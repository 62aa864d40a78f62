#include "tokenizer/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace carpool {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr size_t kJitStackBytes = size_t{4} << 20;
// A search that finds nothing looks at this many start positions before the CPU budget is looked at
// again.
constexpr size_t kStartsPerCall = 64;
constexpr uint32_t kCallsPerClock = 8;

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* p) const {
    Free(p);
  }
};

double ThreadCpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

Error Differs(const std::string& where, std::string_view construct) {
  return MakeError(ErrorCode::kUnsupported,
                   "{}: the pre-tokenizer regex uses {}, which Carpool does not support (its "
                   "meaning differs between "
                   "regex engines)",
                   where, construct);
}

// Oniguruma's pattern in PCRE2's words.
Result<std::string> Translate(const std::string& pattern, const std::string& where) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') {
        out += "\\p{White_Space}";  // PCRE2's own \s has U+180E too
      } else if (next == 'S') {
        out += "\\P{White_Space}";
      } else if (std::string_view("wWbBhHRXKCQEGZAz").find(next) != std::string_view::npos) {
        return Differs(where, std::string("\\") + next);
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (in_class) {
      if (c == '[') return Differs(where, "a set inside a set");
      if (c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&')
        return Differs(where, "an intersection of sets");
      if (c == ']') in_class = false;
    } else if (c == '[') {
      in_class = true;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') return Differs(where, "an empty set");
      continue;
    } else if (c == '(' && i + 1 < pattern.size() && pattern[i + 1] == '*') {
      return Differs(where, "a (* verb");
    }
    out += c;
  }
  return out;
}

}  // namespace

struct RegexScratch::State {
  std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>> data{
      pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>> context{
      pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>> jit_stack{
      pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr)};
  double cpu_deadline = 0;
  uint32_t calls = 0;

  bool OutOfTime() { return ++calls % kCallsPerClock == 0 && ThreadCpuSeconds() > cpu_deadline; }
};

RegexScratch::RegexScratch(size_t text_bytes) : state_(std::make_unique<State>()) {
  State& s = *state_;
  CARPOOL_CHECK(s.data && s.context && s.jit_stack);
  // One step of a match is a few nanoseconds. A run of n spaces needs about n steps, so the limit
  // grows with the text.
  const uint64_t steps = 1'000'000 + 8 * static_cast<uint64_t>(text_bytes);
  pcre2_set_match_limit(s.context.get(),
                        static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  pcre2_set_heap_limit(s.context.get(), 64 * 1024);  // KiB; only used without JIT
  pcre2_jit_stack_assign(s.context.get(), nullptr, s.jit_stack.get());
  s.cpu_deadline = ThreadCpuSeconds() + 2.0 + 2e-6 * static_cast<double>(text_bytes);
}
RegexScratch::~RegexScratch() = default;

struct SplitRegex::Code {
  std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>> regex;
};

SplitRegex::SplitRegex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;
SplitRegex& SplitRegex::operator=(SplitRegex&&) noexcept = default;
SplitRegex::~SplitRegex() = default;

Result<SplitRegex> SplitRegex::Compile(const std::string& pattern, const std::string& where) {
  if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
    return MakeError(ErrorCode::kUnsupported,
                     "{}: the pre-tokenizer regex has {} bytes; 1 to {} are allowed", where,
                     pattern.size(), kMaxPatternBytes);
  }
  ASSIGN_OR_RETURN(const std::string translated, Translate(pattern, where));
  std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  CARPOOL_CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 50);
  // MULTILINE: Oniguruma's ^ and $ are those of lines.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT;
  int code = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_unique<Code>();
  compiled->regex.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                      translated.size(), kOptions, &code, &offset, context.get()));
  if (compiled->regex == nullptr) {
    char text[256] = {};
    pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof(text));
    return MakeError(ErrorCode::kCorrupt,
                     "{}: the pre-tokenizer regex {} does not compile: {} at offset {}", where,
                     QuotedForMessage(pattern), text, offset);
  }
  uint32_t match_empty = 0;
  pcre2_pattern_info(compiled->regex.get(), PCRE2_INFO_MATCHEMPTY, &match_empty);
  if (match_empty != 0) {
    return MakeError(ErrorCode::kUnsupported,
                     "{}: the pre-tokenizer regex {} can match an empty string", where,
                     QuotedForMessage(pattern));
  }
  // Without JIT (no executable memory) the same limits hold, slower.
  (void)pcre2_jit_compile(compiled->regex.get(), PCRE2_JIT_COMPLETE);
  return SplitRegex(std::move(compiled));
}

Status SplitRegex::Split(std::string_view text, RegexScratch& scratch,
                         std::vector<std::string_view>& pieces) const {
  RegexScratch::State& s = *scratch.state_;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0;  // everything before is in a piece
  size_t from = 0;  // where the next match may start
  while (from < text.size()) {
    size_t last_start = std::min(from + kStartsPerCall, text.size() - 1);
    while ((static_cast<uint8_t>(text[last_start]) & 0xC0) == 0x80) --last_start;
    pcre2_set_offset_limit(s.context.get(), last_start);
    const int rc = pcre2_match(code_->regex.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                               s.data.get(), s.context.get());
    if (rc == PCRE2_ERROR_NOMATCH) {
      from = last_start + CharBytes(text, last_start);
    } else if (rc < 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "the tokenizer's regex needs too much work on this text near byte {} (PCRE2 "
                       "error {}); send a "
                       "shorter or plainer text",
                       from, rc);
    } else {
      const PCRE2_SIZE* span = pcre2_get_ovector_pointer(s.data.get());
      const size_t begin = span[0];
      const size_t end = span[1];
      if (begin < done || begin >= end || end > text.size()) {
        return MakeError(ErrorCode::kUnsupported,
                         "the tokenizer's regex matched an empty or overlapping span at byte {}",
                         begin);
      }
      if (begin > done) pieces.push_back(text.substr(done, begin - done));
      pieces.push_back(text.substr(begin, end - begin));
      done = from = end;
    }
    if (s.OutOfTime()) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "the tokenizer's regex ran out of its time on this text ({} of {} bytes "
                       "done); send a shorter "
                       "or plainer text",
                       from, text.size());
    }
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
  return {};
}

}  // namespace carpool
