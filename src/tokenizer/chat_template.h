// ChatTemplate: renders a checkpoint's Jinja chat template with the real Jinja2, in a sandboxed
// helper process.
//
// A template comes with the checkpoint and its variables come from requests: both are hostile. The
// helper runs Jinja2's ImmutableSandboxedEnvironment with the settings of Hugging Face
// (trim_blocks, lstrip_blocks, loop controls, tojson as json.dumps without ASCII escapes,
// raise_exception, strftime_now); the kernel limits its memory, CPU time, files and processes; this
// side limits wall-clock time and output and replaces a helper that broke a limit.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace carpool {

struct TemplateLimits {
  std::chrono::milliseconds wall{2000};    // for one render, and for compiling the template
  std::chrono::milliseconds start{20000};  // for starting Python
  unsigned cpu_seconds = 2;
  size_t memory_bytes = size_t{512} << 20;
  size_t output_bytes = size_t{8} << 20;
  size_t request_bytes = size_t{16} << 20;
};

class ChatTemplate {
 public:
  using Named = std::vector<std::pair<std::string, std::string>>;

  /// The template of a checkpoint: DIR/chat_template.jinja, else chat_template in
  /// DIR/tokenizer_config.json; or the metadata of a GGUF file. Starts the helper (python3 with
  /// jinja2: /usr/bin/python3, then those of PATH). Errors: NotFound (no template; no python3 with
  /// jinja2), Corrupt (does not compile).
  static Result<ChatTemplate> Load(const std::string& dir, const TemplateLimits& limits = {});
  /// `templates`: name -> source, one of them "default"; "tool_use" is taken for requests with
  /// tools, if there. `special_tokens`: variables such as bos_token. `where` names the template in
  /// messages.
  static Result<ChatTemplate> FromSource(const Named& templates, const Named& special_tokens,
                                         const std::string& where,
                                         const TemplateLimits& limits = {});
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// Renders. `request` is the text of a JSON object whose keys are the template's variables:
  /// "messages" (a list; tool_calls[].function.arguments given as strings are parsed, {} if they
  /// are no object), "tools", "documents", "add_generation_prompt" (default false), and others such
  /// as "enable_thinking". Thread-safe; renders one at a time. Errors: InvalidArgument (the request
  /// is no such object; the template refuses it or fails on it), Exhausted (a limit was broken),
  /// Internal (the helper cannot be restarted).
  Result<std::string> Render(std::string_view request) const;

  /// The source that requests without tools use.
  const std::string& source() const;
  /// Process id of the helper, -1 while there is none.
  int helper_pid() const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace carpool
