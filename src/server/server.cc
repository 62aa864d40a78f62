#include "server/server.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/log.h"
#include "routing/policy_spec.h"
#include "server/endpoint.h"
#include "server/read_bandwidth.h"
#include "server/server_context.h"

namespace carpool {
namespace {

class Server {
 public:
  explicit Server(const ServeOptions& options) : context_(options) {}

  Status Run() {
    const ServeOptions& options = context_.options;
    context_.policy = options.engine.policy;
    context_.routing = options.engine.chooser == nullptr ? PolicyText(*context_.policy)
                                                         : options.engine.chooser->Report().name;
    context_.model_name = options.model_name;
    HttpServer::Callbacks callbacks;
    callbacks.on_request = [this](std::shared_ptr<Exchange> exchange) {
      Dispatch(context_, std::move(exchange));
    };
    callbacks.error_body = [this](int status, std::string_view message) {
      if (context_.metrics != nullptr) context_.metrics->OnHttp(status);
      return ErrorBody({status, std::string(message), {}, {}});
    };
    callbacks.on_signal = [this](int) { OnSignal(); };
    callbacks.on_tick = [this] {
      if (context_.draining && http_->busy_connections() == 0) http_->Stop();
    };
    ASSIGN_OR_RETURN(http_, HttpServer::Listen(options.http, std::move(callbacks)));
    context_.http = http_.get();
    LogInfo("listening on http://{}:{}, loading {}", options.http.host, http_->port(),
            options.model_dir);
    std::thread loader([this] { Load(); });
    http_->Run();
    if (!loaded_.load()) {
      // Loading cannot be interrupted and may take minutes; there is nothing to lose.
      LogInfo("stopped while loading");
      _exit(0);
    }
    loader.join();
    context_.Clear();
    LogInfo("stopped");
    return status_;
  }

 private:
  /// On the loader's thread.
  void Load() {
    auto engine = Engine::Load(context_.options.model_dir, context_.options.engine);
    loaded_.store(true);
    if (!engine) {
      status_ = engine.error();
      return http_->Stop();
    }
    bandwidth_ = MeasureReadBandwidth((*engine)->pool());
    auto chat = ChatTemplate::Load(context_.options.model_dir);
    if (chat) {
      chat_template_ = std::make_unique<ChatTemplate>(std::move(*chat));
    } else {
      no_chat_reason_ = chat.error().message;
    }
    auto shared = std::make_shared<std::unique_ptr<Engine>>(std::move(*engine));
    http_->Post([this, shared] { Begin(std::move(*shared)); });
  }

  void Begin(std::unique_ptr<Engine> engine) {
    const KvCache& kv = engine->kv();
    LogInfo("serving {} on http://{}:{}: routing {}, {} threads, context {}, KV cache of {} tokens",
            context_.model_name, context_.options.http.host, http_->port(), context_.routing,
            context_.options.engine.threads, engine->context(), kv.num_pages() * kPageTokens);
    context_.metrics =
        Metrics::Make(context_.model_name, context_.options.engine.threads, bandwidth_);
    context_.chat_template = std::move(chat_template_);
    context_.no_chat_reason = no_chat_reason_;
    if (!no_chat_reason_.empty()) LogWarning("/v1/chat/completions is off: {}", no_chat_reason_);
    EngineLoop::Hooks hooks;
    hooks.deliver = [this](std::vector<EngineMessage> messages) {
      auto shared = std::make_shared<std::vector<EngineMessage>>(std::move(messages));
      http_->Post([this, shared] { context_.Deliver(std::move(*shared)); });
    };
    hooks.after_step = [metrics = context_.metrics.get()](const Engine& e) { metrics->OnStep(e); };
    context_.loop = std::make_unique<EngineLoop>(std::move(engine), std::move(hooks));
  }

  void OnSignal() {
    if (context_.draining) {
      LogWarning("second signal: stopping at once");
      return http_->Stop();
    }
    LogInfo("finishing {} requests, then stopping; a second signal stops at once",
            http_->busy_connections());
    context_.draining = true;
    http_->StopAccepting();
  }

  // Declaration order is lifetime order: connections hold generations that know the context.
  ServerContext context_;
  std::unique_ptr<HttpServer> http_;
  std::atomic<bool> loaded_{false};
  Status status_;
  std::unique_ptr<ChatTemplate> chat_template_;  // of the loader, until Begin
  std::string no_chat_reason_;
  double bandwidth_ = 0.0;  // bytes per second
};

}  // namespace

RequestRules ServerContext::Rules() const {
  RequestRules rules;
  rules.loop = loop.get();
  rules.policy = policy;
  rules.model_name = model_name;
  rules.max_choices = options.max_choices;
  rules.chat_template = chat_template.get();
  rules.no_chat_reason = no_chat_reason;
  return rules;
}

void ServerContext::Clear() {
  worker.Stop();
  loop.reset();
  active_.clear();
}

void ServerContext::Register(uint64_t id, std::shared_ptr<Generation> generation, size_t choice) {
  active_.emplace(id, Place{std::move(generation), choice});
}

void ServerContext::Deliver(std::vector<EngineMessage> messages) {
  std::vector<std::shared_ptr<Generation>> touched;
  for (EngineMessage& message : messages) {
    const auto it = active_.find(message.request_id);
    if (it == active_.end()) continue;
    const Place place = it->second;
    const bool last =
        message.kind == EngineMessage::Kind::kRefused || message.finish != FinishReason::kNone;
    if (last) active_.erase(it);
    place.generation->Take(place.choice, std::move(message));
    if (place.generation->stale()) continue;
    place.generation->set_stale();
    touched.push_back(place.generation);
  }
  for (const auto& generation : touched) generation->Flush();
}

Result<std::shared_ptr<const PolicySpec>> ParseServePolicy(const std::string& text) {
  ASSIGN_OR_RETURN(auto policy, ParsePolicy(text));
  if (!policy->kind->batch_coupled || text.find("min_rows") != std::string::npos) return policy;
  auto adjusted = std::make_shared<PolicySpec>(*policy);
  adjusted->min_rows = kServeMinRows;
  return std::shared_ptr<const PolicySpec>(std::move(adjusted));
}

Status Serve(const ServeOptions& options) { return Server(options).Run(); }

}  // namespace carpool
