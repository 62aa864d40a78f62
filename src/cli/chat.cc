// carpool chat: a conversation in the terminal. Lines come from stdin, so it can be scripted too.
#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "base/text_table.h"
#include "cli/engine_flags.h"
#include "cli/sampling_flags.h"
#include "engine/complete.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/utf8.h"

namespace carpool::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct ChatFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string system;
  size_t max_tokens = 200;
};

constexpr const char* kHelp =
    "Type a message and press Enter. /reset forgets the conversation, /routing POLICY changes the "
    "routing, /quit "
    "(or end of input) ends it.\n";

/// One answer: renders the conversation, streams the reply to stdout, appends it to `messages`.
Status Answer(Engine& engine, const ChatTemplate& chat, const ChatFlags& flags, uint64_t turn,
              OrderedJson& messages, OrderedJson& turns) {
  const OrderedJson render = {{"messages", messages}, {"add_generation_prompt", true}};
  ASSIGN_OR_RETURN(const std::string text, chat.Render(render.dump()));
  Request request;
  ASSIGN_OR_RETURN(request.prompt,
                   engine.tokenizer().Encode(text, true, /*add_special_tokens=*/false));
  const size_t room = engine.context() - std::min(engine.context(), request.prompt.size());
  if (room == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the conversation has {} tokens, the context {}; /reset starts a new one",
                     request.prompt.size(), engine.context());
  }
  request.max_tokens = std::min(flags.max_tokens, room);
  ASSIGN_OR_RETURN(request.sampling, ResolveSampling(flags.sampling, engine.model().config()));
  request.sampling.seed += turn;
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  const bool json = flags.engine.common.json;
  ASSIGN_OR_RETURN(const auto completions,
                   Complete(engine, std::move(requests), [json](size_t, std::string_view piece) {
                     if (json) return;
                     fmt::print("{}", piece);
                     std::fflush(stdout);
                   }));
  const Completion& c = completions[0];
  if (c.finish == FinishReason::kError) return MakeError(ErrorCode::kInternal, "{}", c.error);
  if (!json) fmt::print("\n");
  messages.push_back({{"role", "assistant"}, {"content", c.text}});
  turns.push_back({{"text", c.text},
                   {"token_ids", c.token_ids},
                   {"finish_reason", FinishReasonName(c.finish)}});
  return {};
}

Status DoChat(const ChatFlags& flags) {
  ASSIGN_OR_RETURN(EngineOptions options, ResolveSteppingOptions(flags.engine));
  ASSIGN_OR_RETURN(const std::string dir, ResolveModel(flags.engine.common.model));
  options.max_running = 1;
  ASSIGN_OR_RETURN(auto engine, Engine::Load(dir, options));
  ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::Load(dir));
  ASSIGN_OR_RETURN(const SamplingParams checked,
                   ResolveSampling(flags.sampling, engine->model().config()));
  (void)checked;  // a bad flag ends the program before the first prompt

  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) fmt::print(stderr, "{}", kHelp);
  const auto start_of_conversation = [&] {
    OrderedJson messages = OrderedJson::array();
    if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
    return messages;
  };
  OrderedJson messages = start_of_conversation(), turns = OrderedJson::array();
  uint64_t turn = 0;
  std::string line;
  while (true) {
    if (terminal) {
      fmt::print("> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    if (line == "/quit") break;
    if (line == "/help") {
      fmt::print(stderr, "{}", kHelp);
      continue;
    }
    if (line == "/reset") {
      messages = start_of_conversation();
      continue;
    }
    if (line.rfind("/routing ", 0) == 0) {
      auto policy = ParsePolicy(line.substr(9));
      Status set = policy ? engine->SetPolicy(*policy) : Status(policy.error());
      if (set) engine->SetChooser(nullptr);
      fmt::print(stderr, "{}\n",
                 set ? "routing " + PolicyText(engine->router().policy()) : set.error().message);
      continue;
    }
    if (const auto bad = InvalidUtf8At(line)) {
      const Error error =
          MakeError(ErrorCode::kInvalidArgument, "the message is not valid UTF-8 at byte {}", *bad);
      if (!terminal) return error;
      fmt::print(stderr, "{}\n", error.message);
      continue;
    }
    messages.push_back({{"role", "user"}, {"content", line}});
    Status answered = Answer(*engine, chat, flags, turn++, messages, turns);
    if (!answered) {
      if (!terminal) return answered;  // scripted: the first failure ends it
      fmt::print(stderr, "{}\n", answered.error().message);
      messages.erase(messages.size() - 1);
    }
  }
  if (flags.engine.common.json) {
    fmt::print("{}\n", OrderedJson{{"turns", turns}}.dump(2, ' ', false,
                                                          OrderedJson::error_handler_t::replace));
  }
  return {};
}

}  // namespace

void AddChat(CLI::App& root) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = AddCommand(root, "chat", "Talk with a model in the terminal",
                                 [flags] { return DoChat(*flags); });
  AddEngineFlags(*command, flags->engine);
  AddCalibration(*command, flags->engine);
  command->add_option("--system", flags->system, "System message")->type_name("TEXT");
  command->add_option("--max-tokens", flags->max_tokens, "Tokens per answer")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  AddSamplingFlags(*command, flags->sampling);
}

}  // namespace carpool::cli
