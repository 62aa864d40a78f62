#include "tokenizer/chat_template.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/mapped_file.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/helper_process.h"
#include "tokenizer/template_script.h"
#include "tokenizer/tokenizer_spec.h"
#include "tokenizer/utf8.h"

namespace carpool {
namespace {

using Failure = HelperProcess::Failure;

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr size_t kMaxNote = size_t{1} << 20;

// Debian's python3-jinja2 belongs to /usr/bin/python3, which need not be the first in PATH.
std::vector<std::string> Pythons() {
  std::vector<std::string> found = {"/usr/bin/python3"};
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty() && found.size() < 8) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    std::string python = std::string(rest.substr(0, colon)) + "/python3";
    rest.remove_prefix(std::min(colon + 1, rest.size()));
    if (python.front() == '/' && std::find(found.begin(), found.end(), python) == found.end()) {
      found.push_back(std::move(python));
    }
  }
  std::erase_if(found, [](const std::string& p) { return access(p.c_str(), X_OK) != 0; });
  return found;
}

std::string OneLine(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return text;
}

}  // namespace

struct ChatTemplate::State {
  std::string where;
  std::string source;
  std::string setup;  // first frame of every helper
  TemplateLimits limits;
  std::string python;
  mutable std::mutex mutex;
  std::optional<HelperProcess> helper;  // guarded by mutex

  Error LimitBroken(Failure failure) const {
    switch (failure) {
      case Failure::kTimeout:
        return MakeError(ErrorCode::kExhausted,
                         "{}: rendering took longer than {} ms and was stopped", where,
                         limits.wall.count());
      case Failure::kTooLarge:
        return MakeError(ErrorCode::kExhausted, "{}: rendered more than the {} bytes allowed",
                         where, limits.output_bytes);
      default:
        return MakeError(ErrorCode::kExhausted,
                         "{}: the helper process ended while rendering (out of memory or CPU time)",
                         where);
    }
  }

  Result<std::string> Interpret(Failure failure, HelperProcess::Reply& reply) {
    if (failure != Failure::kNone) {
      helper.reset();
      return LimitBroken(failure);
    }
    if (reply.word == "ok") return std::move(reply.body);
    const std::string what = OneLine(std::move(reply.body));
    if (reply.word == "request") {
      return MakeError(ErrorCode::kInvalidArgument, "chat template request: {}", what);
    }
    if (reply.word == "template") {
      return MakeError(ErrorCode::kInvalidArgument, "{} refused the conversation: {}", where, what);
    }
    helper.reset();  // it may be in any state now
    return MakeError(ErrorCode::kExhausted, "{}: {}", where, what);
  }

  // Starts a helper with `program`; the error of a template that does not compile is Corrupt,
  // others mean "try the next".
  Status StartWith(const std::string& program) {
    helper.reset();
    ASSIGN_OR_RETURN(HelperProcess started,
                     HelperProcess::Start({program, "-I", "-B", "-c", kTemplateScript}));
    HelperProcess::Reply reply;
    const Failure start = started.Exchange(setup, limits.start, kMaxNote, reply);
    if (start != Failure::kNone || reply.word != "ready") {
      return MakeError(ErrorCode::kInternal, "{}: {}", program,
                       start == Failure::kNone      ? OneLine(reply.body)
                       : start == Failure::kTimeout ? "did not answer in time"
                                                    : "ended at once");
    }
    const Failure compiling = started.Receive(limits.wall, kMaxNote, reply);
    if (compiling != Failure::kNone || reply.word != "ok") {
      return MakeError(ErrorCode::kCorrupt, "{} does not compile: {}", where,
                       compiling == Failure::kNone      ? OneLine(reply.body)
                       : compiling == Failure::kTimeout ? "took too long"
                                                        : "ran out of memory or CPU time");
    }
    helper = std::move(started);
    return {};
  }

  Status FindPythonAndStart() {
    std::string tried;
    for (const std::string& program : Pythons()) {
      const Status status = StartWith(program);
      if (status) {
        python = program;
        return status;
      }
      if (status.error().code == ErrorCode::kCorrupt) return status;
      tried += "; " + status.error().message;
    }
    return MakeError(
        ErrorCode::kNotFound,
        "chat templates need a python3 with jinja2 (Debian: apt-get install python3-jinja2){}",
        tried);
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::Load(const std::string& dir, const TemplateLimits& limits) {
  if (IsGgufFile(dir)) {
    ASSIGN_OR_RETURN(const GgufModel model, GgufModel::Open(dir));
    ASSIGN_OR_RETURN(const TokenizerConfig gguf_config, GgufTokenizerConfig(model));
    const std::string key = dir + ": tokenizer.chat_template";
    if (!gguf_config.chat_templates.empty()) {
      return FromSource(gguf_config.chat_templates, gguf_config.special_tokens, key, limits);
    }
    return MakeError(
        ErrorCode::kNotFound,
        "this checkpoint has no chat template ({} was looked for); use plain completions", key);
  }
  ASSIGN_OR_RETURN(TokenizerConfig config, LoadTokenizerConfig(dir));
  const std::string path = dir + "/chat_template.jinja";
  auto file = ReadTextFile(path, kMaxTemplateBytes);
  if (file) return FromSource({{"default", *std::move(file)}}, config.special_tokens, path, limits);
  if (file.error().code != ErrorCode::kNotFound) return file.error();
  Named& templates = config.chat_templates;
  const std::string where = dir + "/tokenizer_config.json: chat_template";
  if (templates.empty()) {
    return MakeError(ErrorCode::kNotFound,
                     "this checkpoint has no chat template ({} and {} were looked for); use plain "
                     "completions, or add "
                     "a chat_template.jinja",
                     path, where);
  }
  return FromSource(templates, config.special_tokens, where, limits);
}

Result<ChatTemplate> ChatTemplate::FromSource(const Named& templates, const Named& special_tokens,
                                              const std::string& where,
                                              const TemplateLimits& limits) {
  auto state = std::make_unique<State>();
  state->where = where;
  state->limits = limits;
  nlohmann::ordered_json setup = {{"memory_bytes", limits.memory_bytes},
                                  {"cpu_seconds", limits.cpu_seconds},
                                  {"output_bytes", limits.output_bytes},
                                  {"special_tokens", nlohmann::ordered_json::object()},
                                  {"templates", nlohmann::ordered_json::object()}};
  bool has_default = false;
  for (const auto& [name, source] : templates) {
    if (source.size() > kMaxTemplateBytes || InvalidUtf8At(source)) {
      return MakeError(ErrorCode::kCorrupt, "{}: wanted UTF-8 text of at most {} bytes", where,
                       kMaxTemplateBytes);
    }
    if (name == "default") {
      state->source = source;
      has_default = true;
    }
    setup["templates"][name] = source;
  }
  if (!has_default)
    return MakeError(ErrorCode::kCorrupt, "{}: no template is named \"default\"", where);
  for (const auto& [name, text] : special_tokens) setup["special_tokens"][name] = text;
  state->setup = setup.dump();
  RETURN_IF_ERROR(state->FindPythonAndStart());
  return ChatTemplate(std::move(state));
}

Result<std::string> ChatTemplate::Render(std::string_view request) const {
  State& s = *state_;
  if (request.size() > s.limits.request_bytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "chat template request: {} bytes; at most {} are allowed", request.size(),
                     s.limits.request_bytes);
  }
  const std::lock_guard lock(s.mutex);
  if (!s.helper || !s.helper->Idle()) {
    const Status restarted = s.StartWith(s.python);
    if (!restarted) {
      return MakeError(ErrorCode::kInternal, "the chat template helper could not be restarted: {}",
                       restarted.error().message);
    }
  }
  HelperProcess::Reply reply;
  const Failure failure = s.helper->Exchange(request, s.limits.wall, s.limits.output_bytes, reply);
  return s.Interpret(failure, reply);
}

const std::string& ChatTemplate::source() const { return state_->source; }

int ChatTemplate::helper_pid() const {
  const std::lock_guard lock(state_->mutex);
  return state_->helper ? state_->helper->pid() : -1;
}

}  // namespace carpool
