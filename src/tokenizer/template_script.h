// The Python program of the chat-template helper process. Internal to chat_template.
#pragma once

namespace carpool {

/// Passed to `python3 -c`. Speaks frames on stdin and stdout: see template_script.cc.
extern const char* const kTemplateScript;

}  // namespace carpool
