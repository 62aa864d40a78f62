// carpool serve: the HTTP server.
#include <cstdlib>
#include <filesystem>

#include "base/log.h"
#include "base/mapped_file.h"
#include "cli/engine_flags.h"
#include "server/server.h"

namespace carpool::cli {
namespace {

struct ServeFlags {
  EngineFlags engine;
  ServeOptions serve;
  std::string api_key;
  std::string api_key_file;
  std::string kv_memory;
  bool no_prefix_cache = false;
};

/// "512M", "4G", "1048576": binary units.
Result<size_t> ParseBytes(const std::string& flag, const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  double unit = 1;
  const std::string rest = end;
  if (rest == "K" || rest == "KiB") unit = 1024;
  if (rest == "M" || rest == "MiB") unit = 1024.0 * 1024;
  if (rest == "G" || rest == "GiB") unit = 1024.0 * 1024 * 1024;
  const bool known = rest.empty() || unit > 1;
  if (end == text.c_str() || !known || !(number * unit >= 1) || number * unit > 1e15) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: wanted bytes such as 512M or 4G, got '{}'",
                     flag, text);
  }
  return static_cast<size_t>(number * unit);
}

/// One key per line; blank lines and lines that start with # are left out.
Result<std::vector<std::string>> ReadKeys(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, size_t{1} << 20));
  std::vector<std::string> keys;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && line[0] != '#') keys.push_back(std::move(line));
    at = end + 1;
  }
  if (keys.empty())
    return MakeError(ErrorCode::kInvalidArgument, "--api-key-file: {} has no key in it", path);
  return keys;
}

Result<std::shared_ptr<const PolicySpec>> ResolveServePolicy(const std::string& routing) {
  if (!routing.empty()) return ParseServePolicy(routing);
  ASSIGN_OR_RETURN(const auto policy, PolicyFromEnvironment());
  const char* text = std::getenv("CARPOOL_ROUTING");
  if (text != nullptr && std::string_view(text).find("min_rows") != std::string_view::npos)
    return policy;
  return ParseServePolicy(PolicyText(*policy));
}

Status DoServe(const ServeFlags& flags) {
  ServeOptions options = flags.serve;
  ASSIGN_OR_RETURN(const EngineOptions common, ResolveSteppingOptions(flags.engine));
  options.engine.chooser = common.chooser;
  options.make_auto = [engine = flags.engine](const std::string& text) {
    return MakeAuto(engine, text);
  };
  options.engine.threads = common.threads;
  options.engine.activations = common.activations;
  options.engine.load = common.load;
  options.engine.prefix_cache = !flags.no_prefix_cache;
  options.engine.commit_kv = true;
  options.engine.policy = common.policy;
  if (common.chooser == nullptr) {
    ASSIGN_OR_RETURN(options.engine.policy, ResolveServePolicy(flags.engine.common.routing));
  }
  if (!flags.kv_memory.empty()) {
    ASSIGN_OR_RETURN(options.engine.kv_bytes, ParseBytes("--kv-memory", flags.kv_memory));
  }
  options.engine.max_batch_tokens =
      std::max(options.engine.max_batch_tokens, options.engine.max_running);
  ASSIGN_OR_RETURN(options.model_dir, ResolveModel(flags.engine.common.model));
  if (options.model_name.empty()) {
    namespace fs = std::filesystem;
    std::error_code ec;
    const fs::path path = fs::canonical(options.model_dir, ec);
    options.model_name = ec ? options.model_dir : path.filename().string();
  }
  if (const char* env = std::getenv("CARPOOL_API_KEY"); env != nullptr && *env != '\0')
    options.api_keys.emplace_back(env);
  if (!flags.api_key.empty()) options.api_keys.push_back(flags.api_key);
  if (!flags.api_key_file.empty()) {
    ASSIGN_OR_RETURN(auto keys, ReadKeys(flags.api_key_file));
    options.api_keys.insert(options.api_keys.end(), keys.begin(), keys.end());
  }
  ShowInfo();
  return Serve(options);
}

void AddHttpFlags(CLI::App& command, ServeFlags& flags) {
  HttpOptions& http = flags.serve.http;
  command.add_option("--host", http.host, "Address to listen on")
      ->type_name("ADDRESS")
      ->capture_default_str();
  command.add_option("--port", http.port, "Port; 0 = any free one")
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--api-key", flags.api_key,
                  "Key that requests must bring; CARPOOL_API_KEY keeps it out of the process list")
      ->type_name("KEY");
  command.add_option("--api-key-file", flags.api_key_file, "File with one key per line")
      ->type_name("FILE");
  command
      .add_option("--cors-origin", http.cors_origin,
                  "Origin whose pages may call the server, or *; default: none")
      ->type_name("ORIGIN");
  command.add_option("--max-body-bytes", http.max_body_bytes, "Longest request body")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{1024}, uint64_t{1} << 32));
  command.add_option("--max-header-bytes", http.max_header_bytes, "Longest request header")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(uint32_t{1024}, uint32_t{1} << 20));
  command.add_option("--max-connections", http.max_connections, "Connections open at a time")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 20));
  const auto milliseconds = [&](const char* name, std::chrono::milliseconds& value,
                                const char* help) {
    command
        .add_option_function<uint32_t>(
            name, [&value](const uint32_t& ms) { value = std::chrono::milliseconds(ms); },
            fmt::format("{}; default: {}", help, value.count()))
        ->type_name("MS")
        ->check(CLI::Range(uint32_t{1}, uint32_t{86'400'000}));
  };
  milliseconds("--request-timeout-ms", http.request_timeout, "Time for a request to arrive");
  milliseconds("--write-timeout-ms", http.write_timeout, "Time for a client to take what is sent");
  milliseconds("--idle-timeout-ms", http.idle_timeout, "Time between requests of a connection");
  milliseconds("--ping-ms", http.ping_interval, "Silence before a stream gets a comment line");
}

}  // namespace

void AddServe(CLI::App& root) {
  auto flags = std::make_shared<ServeFlags>();
  flags->serve.engine.max_waiting = 1024;
  CLI::App* command = AddCommand(root, "serve", "OpenAI-compatible HTTP server",
                                 [flags] { return DoServe(*flags); });
  AddModel(*command, flags->engine.common);
  AddThreads(*command, flags->engine.common);
  AddRouting(*command, flags->engine.common);
  AddCalibration(*command, flags->engine);
  AddActivations(*command, flags->engine);
  AddHttpFlags(*command, *flags);
  EngineOptions& engine = flags->serve.engine;
  command
      ->add_option("--served-model-name", flags->serve.model_name,
                   "Name in /v1/models; default: the directory's")
      ->type_name("NAME");
  command->add_option("--ctx-size", engine.context, "Context in tokens; default: the model's")
      ->type_name("N");
  command
      ->add_option("--kv-memory", flags->kv_memory,
                   "Memory of the KV cache, e.g. 512M or 4G; default: what the running requests "
                   "can need, at most 4 GiB")
      ->type_name("BYTES");
  command
      ->add_option("--max-running-requests", engine.max_running,
                   "Sequences decoded together; others wait")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{4096}));
  command->add_option("--max-batch-tokens", engine.max_batch_tokens, "Token rows of one step")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{65536}));
  command
      ->add_option("--max-queue", engine.max_waiting,
                   "Requests that may wait; one more is answered 503")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{0}, size_t{1} << 20));
  command
      ->add_option("--num-continuous-decode-steps", engine.continuous_decode_steps,
                   "Decode steps between two that also take prompt tokens")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1024}));
  command->add_flag("--no-prefix-cache", flags->no_prefix_cache,
                    "Do not reuse the cache entries of equal prompt beginnings");
  command->add_option("--max-choices", flags->serve.max_choices, "Prompts times n of one request")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{4096}));
}

}  // namespace carpool::cli
