#include "lab/server_ab.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lab/bench_serve.h"
#include "lab/http_client.h"
#include "lab/statistics.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

/// Characters of about `tokens` tokens; servers cut text their own way.
size_t Characters(size_t tokens) { return 4 * tokens; }

/// Pieces of `text`, `count` of them from piece number `first` on.
std::vector<std::string> Pieces(const std::string& text, size_t size, size_t first, size_t count) {
  std::vector<std::string> pieces;
  for (size_t i = first; i < first + count; ++i) {
    size_t begin = i * size, end = begin + size;
    const auto inside = [&](size_t at) {  // not where a UTF-8 character begins
      return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
    };
    while (inside(begin)) ++begin;
    while (inside(end)) ++end;
    pieces.push_back(text.substr(begin, end - begin));
  }
  return pieces;
}

Status CheckSame(const ServerMeasured& a, const ServerMeasured& b) {
  const auto differ = [&](const std::string& what) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "ab --server: the servers do not run the same model: {}; start both on one "
                     "checkpoint",
                     what);
  };
  if (a.model != b.model)
    return differ(fmt::format("{} serves '{}', {} serves '{}'", a.name, a.model, b.name, b.model));
  if (a.vocab_size && b.vocab_size && *a.vocab_size != *b.vocab_size) {
    return differ(fmt::format("vocabularies of {} and {} tokens", *a.vocab_size, *b.vocab_size));
  }
  for (size_t i = 0; i < std::min(a.scored.size(), b.scored.size()); ++i) {
    const auto &x = a.scored[i], &y = b.scored[i];
    bool same = x.size() == y.size();
    for (size_t t = 0; same && t < x.size(); ++t) same = x[t].text == y[t].text;
    if (!same) return differ(fmt::format("prompt {} is cut into different tokens", i + 1));
  }
  return {};
}

/// The best token a server names: the first of the highest, the scored token included.
const std::string& Best(const ScoredToken& t) {
  const std::string* best = &t.text;
  double highest = t.logprob;
  for (const auto& [text, logprob] : t.top)
    if (logprob > highest) highest = logprob, best = &text;
  return *best;
}

void FillQuality(AbReport& r, const ServerMeasured& a, const ServerMeasured& b, size_t batch) {
  Quality &base = r.baseline.quality, &candidate = r.candidate.quality;
  std::vector<double> kl;
  size_t agree = 0;
  for (size_t i = 0; i < a.scored.size(); ++i) {
    const auto &x = a.scored[i], &y = b.scored[i];
    RequestQuality qa{i % batch, i / batch, 0.0, 0.0, 1.0}, qb = qa;
    size_t same = 0;
    for (size_t t = 0; t < x.size(); ++t) {
      qa.cross_entropy -= x[t].logprob;
      qb.cross_entropy -= y[t].logprob;
      kl.push_back(BucketedKl(y[t], x[t]));
      qb.kl += kl.back();
      same += Best(x[t]) == Best(y[t]);
    }
    const auto n = static_cast<double>(x.size());
    base.cross_entropy += qa.cross_entropy;
    candidate.cross_entropy += qb.cross_entropy;
    agree += same;
    qa.cross_entropy /= n;
    qb.cross_entropy /= n;
    qb.kl /= n;
    qb.top1_agreement = static_cast<double>(same) / n;
    candidate.kl_worst_request = std::max(candidate.kl_worst_request, qb.kl);
    base.requests.push_back(qa);
    candidate.requests.push_back(qb);
  }
  base.tokens = candidate.tokens = kl.size();
  const auto n = static_cast<double>(kl.size());
  base.cross_entropy /= n;
  candidate.cross_entropy /= n;
  for (const double k : kl) candidate.kl_mean += k / n;
  candidate.kl_p50 = Quantile(kl, 0.5);
  candidate.kl_p99 = Quantile(kl, 0.99);
  candidate.kl_max = Quantile(kl, 1.0);
  candidate.top1_agreement = static_cast<double>(agree) / n;
  if (candidate.kl_max == 0.0 && r.baseline.routing != r.candidate.routing)
    r.notes.push_back(
        "Both servers gave the same log-probabilities at every scored position: the "
        "candidate changed nothing that shows there.");
}

Result<AbReport> Combine(ServerMeasured a, ServerMeasured b, const ServerAbOptions& o) {
  RETURN_IF_ERROR(CheckSame(a, b));
  AbReport r;
  r.has_moe_ratio = false;
  r.kl_is_bound = true;
  for (auto [side, m] : {std::pair{&r.baseline, &a}, std::pair{&r.candidate, &b}}) {
    side->routing = m->name;
    side->pace = std::move(m->pace);
    if (m->distinct_count > 0)
      side->distinct_experts = m->distinct_sum / static_cast<double>(m->distinct_count);
    if (!m->why_not_scored.empty())
      r.notes.push_back(fmt::format("No quality: {} offers no logprobs of prompts ({}).", m->name,
                                    m->why_not_scored));
  }
  r.has_quality = !a.scored.empty() && !b.scored.empty();
  if (r.has_quality) FillQuality(r, a, b, o.ab.pace.batch);
  JudgeAb(r, o.ab.min_effect, o.ab.seed);
  return r;
}

}  // namespace

std::string ServerUrl::Text() const { return fmt::format("http://{}:{}", host, port); }

Result<ServerUrl> ParseServerUrl(const std::string& text) {
  constexpr std::string_view kScheme = "http://";
  ServerUrl url;
  std::string_view rest = text;
  if (rest.starts_with(kScheme)) {
    rest.remove_prefix(kScheme.size());
    rest = rest.substr(0, rest.find('/'));
    const size_t colon = rest.rfind(':');
    url.host = rest.substr(0, colon);
    bool good = !url.host.empty();
    if (colon != std::string_view::npos) {
      const std::string_view port = rest.substr(colon + 1);
      const auto [end, ec] = std::from_chars(port.data(), port.data() + port.size(), url.port);
      good = good && ec == std::errc() && end == port.data() + port.size() && url.port > 0;
    }
    if (good) return url;
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "wanted the address of a server such as http://127.0.0.1:8080, got '{}'", text);
}

Status CheckServerAb(const ServerAbOptions& o) {
  const PaceOptions& p = o.ab.pace;
  if (p.rounds < kMinForInterval) {
    return MakeError(ErrorCode::kInvalidArgument, "--rounds: an interval needs at least {}, got {}",
                     kMinForInterval, p.rounds);
  }
  if (p.batch == 0 || p.prompt == 0 || p.steps < 2) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "--batch, --prompt and --steps: wanted at least 1, 1 and 2 (time passes between "
        "tokens), got {}, {} and {}",
        p.batch, p.prompt, p.steps);
  }
  const size_t windows = std::max<size_t>(o.ab.quality.windows, 1);
  const size_t timed = p.rounds * p.batch, scored = windows * p.batch;
  const size_t need =
      std::max(timed * Characters(p.prompt), scored * Characters(o.ab.quality.context));
  if (o.text.size() < need) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "too few prompts for an interval: {} rounds of {} need {} prompts of about {} "
                     "tokens and {} of {} to score, {} bytes of text in all; the text has {}",
                     p.rounds, p.batch, timed, p.prompt, scored, o.ab.quality.context, need,
                     o.text.size());
  }
  return {};
}

Result<ServerUnderTest> ServerUnderTest::Connect(const ServerUrl& url, const ServerAbOptions& o) {
  ServerUnderTest s(url, o);
  ASSIGN_OR_RETURN(const HttpAnswer answer,
                   HttpCall(url.host, url.port, "GET", "/v1/models", {}, o.api_key));
  const Json models = Json::parse(answer.body, nullptr, false);
  if (answer.status != 200 || !models.is_object() || !models.contains("data") ||
      !models["data"].is_array() || models["data"].empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: wanted a list of models from /v1/models, got HTTP {}: {}", url.Text(),
                     answer.status, answer.body.substr(0, 200));
  }
  const Json* chosen = nullptr;
  for (const Json& m : models["data"])
    if (m.is_object() && (o.model.empty() || m.value("id", "") == o.model)) {
      chosen = &m;
      break;
    }
  if (chosen == nullptr)
    return MakeError(ErrorCode::kInvalidArgument, "{}: serves no model '{}'", url.Text(), o.model);
  ServerMeasured& m = s.measured_;
  m.model = chosen->value("id", "");
  if (chosen->contains("vocab_size")) m.vocab_size = chosen->value("vocab_size", size_t{0});
  m.routing = chosen->value("routing", "");
  m.name = m.routing.empty() ? url.Text() : fmt::format("{} ({})", url.Text(), m.routing);
  return s;
}

Status ServerUnderTest::Score() {
  const AbOptions& ab = options_->ab;
  PromptScorer scorer(url_.host, url_.port, options_->api_key, measured_.model,
                      !measured_.routing.empty());
  for (size_t w = 0; w < std::max<size_t>(ab.quality.windows, 1); ++w) {
    const auto prompts =
        Pieces(options_->text, Characters(ab.quality.context), w * ab.pace.batch, ab.pace.batch);
    ASSIGN_OR_RETURN(auto scored, scorer.Score(prompts));
    if (scored.empty()) {
      measured_.why_not_scored = scorer.refusal();
      measured_.scored.clear();
      return {};
    }
    for (auto& tokens : scored) measured_.scored.push_back(std::move(tokens));
  }
  return {};
}

Status ServerUnderTest::Block(size_t round, bool timed) {
  const AbOptions& ab = options_->ab;
  BenchServeOptions bench;
  bench.host = url_.host;
  bench.port = url_.port;
  bench.api_key = options_->api_key;
  bench.model = measured_.model;
  bench.num_prompts = ab.pace.batch;
  bench.output_tokens = ab.pace.steps;
  bench.seed = ab.seed + round;
  bench.prompts =
      Pieces(options_->text, Characters(ab.pace.prompt), round * ab.pace.batch, ab.pace.batch);
  ASSIGN_OR_RETURN(const BenchServeResult result, BenchServe(bench));
  if (result.failed > 0) {
    return MakeError(ErrorCode::kInternal, "{}: {} of {} requests failed, the first with: {}",
                     url_.Text(), result.failed, bench.num_prompts, result.first_error);
  }
  if (!timed) return {};
  measured_.pace.step_us.push_back(1e3 * result.tpot.median);
  rates_.push_back(static_cast<double>(result.output_tokens) / result.seconds);
  if (result.distinct_experts_mean > 0.0) {
    measured_.distinct_sum += result.distinct_experts_mean;
    ++measured_.distinct_count;
  }
  return {};
}

ServerMeasured ServerUnderTest::Finish() {
  Pace& pace = measured_.pace;
  pace.step_us_median = Quantile(pace.step_us, 0.5);
  pace.tokens_per_s = Quantile(rates_, 0.5);
  return std::move(measured_);
}

Result<AbReport> RunServerAb(const ServerUrl& a, const ServerUrl& b, const ServerAbOptions& o,
                             const std::function<void(size_t, size_t)>& progress) {
  RETURN_IF_ERROR(CheckServerAb(o));
  ASSIGN_OR_RETURN(auto first, ServerUnderTest::Connect(a, o));
  ASSIGN_OR_RETURN(auto second, ServerUnderTest::Connect(b, o));
  RETURN_IF_ERROR(CheckSame(first.measured(), second.measured()));
  RETURN_IF_ERROR(first.Score());
  RETURN_IF_ERROR(second.Score());
  RETURN_IF_ERROR(CheckSame(first.measured(), second.measured()));
  RETURN_IF_ERROR(first.Block(0, false));
  RETURN_IF_ERROR(second.Block(0, false));
  ServerUnderTest* const order[] = {&first, &second, &second, &first};
  for (size_t round = 0; round < o.ab.pace.rounds; ++round) {
    for (size_t i = 0; i < 4; ++i) {
      RETURN_IF_ERROR(order[i]->Block(round, true));
      if (progress) progress(4 * round + i + 1, 4 * o.ab.pace.rounds);
    }
  }
  return Combine(first.Finish(), second.Finish(), o);
}

Result<AbReport> RunServerAbInTurn(const std::function<Result<ServerUrl>(size_t)>& start,
                                   const std::function<void()>& stop, const ServerAbOptions& o,
                                   const std::function<void(size_t, size_t)>& progress) {
  RETURN_IF_ERROR(CheckServerAb(o));
  std::vector<ServerMeasured> measured;
  for (size_t side = 0; side < 2; ++side) {
    ASSIGN_OR_RETURN(const ServerUrl url, start(side));
    ASSIGN_OR_RETURN(auto server, ServerUnderTest::Connect(url, o));
    RETURN_IF_ERROR(server.Score());
    RETURN_IF_ERROR(server.Block(0, false));
    const size_t blocks = 2 * o.ab.pace.rounds;
    for (size_t i = 0; i < blocks; ++i) {
      RETURN_IF_ERROR(server.Block(i / 2, true));
      if (progress) progress(side * blocks + i + 1, 2 * blocks);
    }
    measured.push_back(server.Finish());
    stop();
  }
  ASSIGN_OR_RETURN(AbReport report, Combine(std::move(measured[0]), std::move(measured[1]), o));
  report.notes.push_back(
      "The servers ran one after the other, so that drift of the machine does not cancel: the "
      "interval is too narrow by as much as the machine changed in between.");
  return report;
}

double BucketedKl(const ScoredToken& c, const ScoredToken& b) {
  double kl = 0.0, rest_c = 1.0, rest_b = 1.0;
  const auto add = [&](double lc, double lb) {
    const double pc = std::exp(lc);
    kl += pc * (lc - lb);
    rest_c -= pc;
    rest_b -= std::exp(lb);
  };
  add(c.logprob, b.logprob);
  for (const auto& [text, lc] : c.top) {
    if (text == c.text) continue;
    const auto same = std::find_if(b.top.begin(), b.top.end(),
                                   [&](const auto& other) { return other.first == text; });
    if (same != b.top.end()) add(lc, same->second);
  }
  // Reported numbers are rounded: a rest of nearly nothing says nothing.
  constexpr double kNothing = 1e-6;
  if (rest_c > kNothing && rest_b > kNothing) kl += rest_c * std::log(rest_c / rest_b);
  return std::max(kl, 0.0);
}

}  // namespace carpool
