#include "cli/command.h"
#include "carpool/source_dir.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/printable.h"

namespace carpool::cli {
namespace {

/// Carries an error out of CLI11's parse to main.
class CommandError : public std::exception {
 public:
  explicit CommandError(Error e) : error(std::move(e)) {}
  const char* what() const noexcept override { return error.message.c_str(); }
  Error error;
};

std::string Names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return fmt::format("{}", fmt::join(names, ", "));
}

constexpr const char* kBundledModel = "models/books-20m";

}  // namespace

void AddModel(CLI::App& command, CommonFlags& flags) {
  command.add_option("MODEL", flags.model,
                     "Checkpoint directory or GGUF file; without it, the bundled model");
}
void AddThreads(CLI::App& command, CommonFlags& flags) {
  command.add_option("--threads", flags.threads, "Threads; default: the CPUs this process may use")
      ->type_name("N");
}
void AddRouting(CLI::App& command, CommonFlags& flags) {
  command
      .add_option("--routing", flags.routing,
                  "Routing policy, e.g. vanilla, oea:k0=3, topk:k=5; default: CARPOOL_ROUTING, "
                  "CARPOOL_OEA_K0 or "
                  "SGLANG_OEA_K0, else vanilla")
      ->type_name("POLICY");
}
void AddSeed(CLI::App& command, CommonFlags& flags) {
  command.add_option("--seed", flags.seed, "Seed of everything random")->type_name("N");
}
void AddJson(CLI::App& command, CommonFlags& flags) {
  command.add_flag("--json", flags.json, "Print one JSON document on stdout");
}

Result<std::string> ResolveModel(const std::string& model) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (!model.empty()) {
    if (!fs::exists(model, ec)) {
      return MakeError(ErrorCode::kNotFound,
                       "{}: no such checkpoint directory; leave MODEL out to use the bundled model",
                       Printable(model));
    }
    return model;
  }
  std::vector<std::string> places;
  if (const char* env = std::getenv("CARPOOL_MODEL"); env != nullptr && *env != '\0')
    return ResolveModel(env);
  const fs::path self = fs::read_symlink("/proc/self/exe", ec);
  if (!ec) {
    places.push_back((self.parent_path().parent_path().parent_path() / kBundledModel)
                         .string());  // build/release/carpool
    places.push_back((self.parent_path().parent_path() / "share/carpool" / kBundledModel)
                         .string());  // bin/carpool
  }
  places.push_back(std::string(CARPOOL_SOURCE_DIR "/") + kBundledModel);
  for (const auto& p : places) {
    if (fs::exists(p, ec)) return p;
  }
  return MakeError(ErrorCode::kNotFound,
                   "the bundled model is in none of {}; give MODEL or set CARPOOL_MODEL",
                   fmt::join(places, ", "));
}

CLI::App* AddCommand(CLI::App& root, const std::string& name, const std::string& description,
                     std::function<Status()> run) {
  CLI::App* command = root.add_subcommand(name, description);
  command->callback([run = std::move(run)] {
    if (Status status = run(); !status) throw CommandError(status.error());
  });
  return command;
}

int ExitCode(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kUnsupported:
    case ErrorCode::kCorrupt:
      return 2;
    case ErrorCode::kExhausted:
    case ErrorCode::kCancelled:
    case ErrorCode::kInternal:
      return 1;
  }
  return 1;
}

CLI::Validator FiniteRange(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        if (*end == '\0' && value >= low && value <= high) return std::string();
        return fmt::format("wanted a number in [{}, {}], got '{}'", low, high, text);
      },
      fmt::format("FLOAT in [{} - {}]", low, high));
}

namespace {

/// An empty value is mostly an unset shell variable, and would silently mean "default".
std::optional<std::string> EmptyValue(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string before = argv[i - 1];
    const bool text = before == "--prompt" || before == "--system";
    if (*argv[i] == '\0' && !text)
      return before.starts_with("--") ? before : fmt::format("argument {}", i);
  }
  return std::nullopt;
}

}  // namespace

int Main(int argc, char** argv) {
  if (const auto empty = EmptyValue(argc, argv)) {
    fmt::print(stderr, "carpool: {}: wanted a value, got an empty one\n", *empty);
    return 2;
  }
  CLI::App app(
      "Carpool: a Mixture-of-Experts inference engine in which the tokens of a batch share rides",
      "carpool");
  app.set_version_flag("--version", CARPOOL_VERSION);
  app.require_subcommand(1);
  AddAllCommands(app);
  try {
    app.parse(argc, argv);
  } catch (const CommandError& e) {
    fmt::print(stderr, "carpool: {}\n", e.error.message);
    return ExitCode(e.error);
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help, --version
  } catch (const CLI::RequiredError& e) {
    // CLI11 complains of the missing sub-command even when there is an unknown one.
    const bool named = argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty();
    fmt::print(
        stderr, "carpool: {} (see carpool --help)\n",
        named ? fmt::format("no command '{}'; wanted one of {}", argv[1], Names(app)) : e.what());
    return 2;
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "carpool: {} (see carpool --help)\n", e.what());
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "carpool: out of memory\n");
    return 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "carpool: {}\n", e.what());
    return 1;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    fmt::print(stderr, "carpool: the output could not be written: {}\n", std::strerror(errno));
    return 2;
  }
  return 0;
}

}  // namespace carpool::cli
