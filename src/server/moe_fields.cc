// The "moe" object of a request: routing as the client's choice.
#include <algorithm>
#include <cmath>

#include "routing/policy_spec.h"
#include "server/generation_spec.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kRowKnobs[] = {"k0", "kmax", "p"};

double Largest(const PolicySpec& policy, std::string_view knob, double fallback) {
  const KnobValue* value = policy.Find(knob);
  return value == nullptr ? fallback
                          : *std::max_element(value->values.begin(), value->values.end());
}

bool HasRowKnobs(const PolicySpec& policy) { return policy.kind->name == "oea"; }

/// {"k0": 3, "kmax": 8, "p": 0.9}: each optional.
std::optional<ApiError> ReadRowKnobs(const Json& knobs, const RequestRules& rules, RowInfo& row) {
  const PolicySpec& policy = *rules.policy;
  JsonFields f(knobs, "moe.routing.");
  f.OnlyKnown({"k0", "kmax", "p"});
  if (!HasRowKnobs(policy)) {
    f.Fail("", fmt::format("the server's policy '{}' has no row knobs; a request can only choose "
                           "\"exact\"",
                           PolicyText(policy)));
    return f.error();
  }
  const double top_k = static_cast<double>(rules.loop->model().config().gate.top_k);
  const double kmax = Largest(policy, "kmax", top_k);
  row.k0 = static_cast<uint16_t>(f.Int("k0", 0, 1, static_cast<int64_t>(top_k)));
  row.kmax = static_cast<uint16_t>(f.Int("kmax", 0, 1, static_cast<int64_t>(kmax)));
  if (f.Has("p")) row.p = static_cast<float>(f.Number("p", 1.0, 0.0, 1.0, true));
  if (!f.error() && row.kmax != 0 && row.k0 > row.kmax)
    f.Fail("kmax", fmt::format("wanted at least k0 = {}, got {}", row.k0, row.kmax));
  return f.error();
}

/// A policy text: of the server's own family, differing in row knobs only.
std::optional<ApiError> ReadPolicyText(const std::string& text, const RequestRules& rules,
                                       RowInfo& row) {
  const auto wanted = ParsePolicy(text);
  const auto fail = [](std::string message) {
    return ApiError{400, "moe.routing: " + message, "moe.routing", {}};
  };
  if (text.find('@') != std::string::npos) return fail("files cannot be named in a request");
  if (!wanted) return fail(wanted.error().message);
  const PolicySpec& spec = **wanted;
  const PolicySpec& server = *rules.policy;
  if (spec.kind->name == "vanilla") {
    row.exact = true;
    return std::nullopt;
  }
  if (spec.kind != server.kind) {
    return fail(
        fmt::format("'{}' is of another family than the server's policy '{}'; a request "
                    "can choose \"exact\" or row knobs of that policy",
                    text, PolicyText(server)));
  }
  Json knobs = Json::object();
  for (const KnobValue& knob : spec.knobs) {
    if (knob.per_layer) return fail("numbers per layer cannot be named in a request");
    if (std::find(std::begin(kRowKnobs), std::end(kRowKnobs), knob.name) != std::end(kRowKnobs)) {
      knobs[std::string(knob.name)] = knob.values[0];
      continue;
    }
    const KnobValue* same = server.Find(knob.name);
    if (same == nullptr || same->values != knob.values) {
      return fail(fmt::format("{} cannot be set per request; row knobs are {}", knob.name,
                              fmt::join(kRowKnobs, ", ")));
    }
  }
  if ((spec.min_rows != 1 && spec.min_rows != server.min_rows) || spec.ride != server.ride ||
      spec.keep_mass != server.keep_mass) {
    return fail(fmt::format("min_rows, ride and mass cannot be set per request; row knobs are {}",
                            fmt::join(kRowKnobs, ", ")));
  }
  if (knobs.empty()) return std::nullopt;
  return ReadRowKnobs(knobs, rules, row);
}

}  // namespace

std::optional<ApiError> ReadMoeFields(const Json& body, const RequestRules& rules,
                                      GenerationSpec& spec) {
  JsonFields outer(body);
  const Json* moe = outer.Object("moe");
  if (outer.error()) return outer.error();
  if (moe == nullptr) return std::nullopt;
  JsonFields f(*moe, "moe.");
  f.OnlyKnown({"routing", "score_as_decode", "return_routed_experts"});
  spec.base.score_as_decode = f.Bool("score_as_decode", false);
  spec.return_experts = f.Bool("return_routed_experts", false);
  spec.base.record_experts = spec.return_experts;
  if (f.error()) return f.error();
  if (spec.base.score_as_decode && !spec.base.prompt_logits) {
    f.Fail("score_as_decode", "only has a meaning with echo: true and logprobs");
    return f.error();
  }
  const Json* routing = f.Find("routing");
  if (routing == nullptr) return std::nullopt;
  if (routing->is_object()) return ReadRowKnobs(*routing, rules, spec.base.routing);
  if (!routing->is_string()) {
    f.Fail("routing", fmt::format("wanted \"exact\", a policy or an object of row knobs, got {}",
                                  Shown(*routing)));
    return f.error();
  }
  return ReadPolicyText(routing->get<std::string>(), rules, spec.base.routing);
}

}  // namespace carpool
