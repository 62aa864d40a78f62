#include "routing/gate_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/aligned.h"
#include "routing/rank.h"
#include "routing/row_kernels.h"

namespace carpool {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float Sigmoid(float x) {
  const double e = std::exp(-std::abs(static_cast<double>(x)));
  return static_cast<float>(x >= 0 || x != x ? 1.0 / (1.0 + e) : e / (1.0 + e));
}

float Activate(GateActivation activation, float x) {
  switch (activation) {
    case GateActivation::kSigmoid:
      return Sigmoid(x);
    case GateActivation::kSigmoidTanh:
      return 0.5f * std::tanh(0.5f * x) + 0.5f;
    case GateActivation::kSqrtSoftplus: {
      if (x > 20.0f) return std::sqrt(x);
      return static_cast<float>(std::sqrt(std::log1p(std::exp(static_cast<double>(x)))));
    }
    case GateActivation::kIdentity:
    case GateActivation::kSoftmax:
      break;
  }
  return x;
}

/// A NaN logit keeps a NaN score and adds nothing to the others' sum; with +inf logits, those share
/// the whole mass.
void Softmax(float* x, size_t n) {
  float max = -kInf;
  for (size_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const double d = x[i] == max ? 0.0 : static_cast<double>(x[i]) - static_cast<double>(max);
    x[i] = static_cast<float>(std::exp(d));
    if (x[i] == x[i]) sum += static_cast<double>(x[i]);
  }
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(static_cast<double>(x[i]) / sum);
}

uint32_t KeyOf(ChoiceOrder order, float choice) {
  switch (order) {
    case ChoiceOrder::kRawBits:
      return RawRankKey(choice);
    case ChoiceOrder::kFiniteOnly:
      return FiniteRankKey(choice);
    case ChoiceOrder::kTotal:
      break;
  }
  return RankKey(choice);
}

/// The value a group is ranked by. NaN choices count as -inf, so that a group with one is not lost
/// or preferred by accident; a group of NaNs ranks last.
float ScoreOfGroup(GroupScore kind, GateNumber number, const float* choice, size_t n) {
  float first = -kInf, second = -kInf;
  if (kind == GroupScore::kTop2Strict) {
    for (size_t i = 0; i < n; ++i) {
      const float c = choice[i];
      if (c > first) {
        second = first;
        first = c;
      } else if (c > second && c < first) {
        second = c;
      }
    }
  } else {
    for (size_t i = 0; i < n; ++i) {
      const float c = choice[i] == choice[i] ? choice[i] : -kInf;
      const float loser = c < first ? c : first;
      second = loser > second ? loser : second;
      first = c > first ? c : first;
    }
  }
  return kind == GroupScore::kMax ? first : RoundTo(number, first + second);
}

void DropGroups(const GateSpec& gate, const RowScores& row) {
  const size_t per_group = gate.num_experts / gate.num_groups;
  // kMaxExperts groups of a float on the stack would be 64 KiB; the ranking needs only "how many
  // groups beat me", so scores are recomputed per pair of passes instead of stored when there are
  // many.
  constexpr size_t kMaxStored = 1024;
  float stored[kMaxStored];
  const bool store = gate.num_groups <= kMaxStored;
  auto score = [&](size_t g) {
    return ScoreOfGroup(gate.group_score, gate.choice_number, row.choice + g * per_group,
                        per_group);
  };
  if (store) {
    for (size_t g = 0; g < gate.num_groups; ++g) stored[g] = score(g);
  }
  uint8_t kept[kMaxExperts];
  for (size_t g = 0; g < gate.num_groups; ++g) {
    const uint32_t mine = RankKey(store ? stored[g] : score(g));
    size_t better = 0;
    for (size_t o = 0; o < gate.num_groups && better < gate.groups_kept; ++o) {
      const uint32_t other = RankKey(store ? stored[o] : score(o));
      better += other > mine || (other == mine && o < g);
    }
    kept[g] = better < gate.groups_kept;
  }
  for (size_t g = 0; g < gate.num_groups; ++g) {
    for (size_t e = g * per_group; e < (g + 1) * per_group; ++e) {
      if (row.dropped != nullptr) row.dropped[e] = !kept[g];
      if (kept[g]) continue;
      row.choice[e] = gate.group_mask == GroupMask::kZero ? 0.0f : -kInf;
      row.key[e] = gate.group_mask == GroupMask::kZero ? RankKey(0.0f) : kIneligibleKey;
    }
  }
}

}  // namespace

float RoundTo(GateNumber number, float value) {
  switch (number) {
    case GateNumber::kF32:
      return value;
    case GateNumber::kBF16: {
      if (value != value) return value;
      const auto bits = std::bit_cast<uint32_t>(value);
      return std::bit_cast<float>((bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u);
    }
    case GateNumber::kF16: {
      if (!(std::abs(value) < kInf)) return value;
      // Half has 11 significant bits down to 2^-14, then a fixed step of 2^-24.
      const int exponent = std::max(std::ilogb(value == 0 ? 1.0f : value), -14);
      const double step = std::ldexp(1.0, exponent - 10);
      const double rounded = std::nearbyint(static_cast<double>(value) / step) * step;
      return std::abs(rounded) > 65504.0 ? std::copysign(kInf, value) : static_cast<float>(rounded);
    }
  }
  return value;
}

namespace {

/// Every point of the space, one expert at a time.
size_t ScoreRowScalar(const GateSpec& gate, const float* logits, const float* bias,
                      const RowScores& out) {
  const size_t n = gate.num_experts;
  const size_t padded = RoundUp(n, kRowBlock);
  const bool biased_first = bias != nullptr && gate.choice == GateChoice::kActivationOfBiased;
  for (size_t e = 0; e < n; ++e) {
    out.logit[e] = RoundTo(gate.logit_number, logits[e]);
    out.score[e] = biased_first ? out.logit[e] + RoundTo(gate.bias_number, bias[e]) : out.logit[e];
  }
  if (gate.activation == GateActivation::kSoftmax) {
    Softmax(out.score, n);
  } else {
    for (size_t e = 0; e < n; ++e) out.score[e] = Activate(gate.activation, out.score[e]);
  }
  size_t nans = 0;
  for (size_t e = 0; e < n; ++e) {
    out.score[e] = RoundTo(gate.score_number, out.score[e]);
    float c = out.score[e];
    if (gate.choice == GateChoice::kLogit) {
      c = out.logit[e];
    } else if (bias != nullptr && !biased_first) {
      c = RoundTo(gate.choice_number, c + RoundTo(gate.bias_number, bias[e]));
    }
    out.choice[e] = c;
    out.key[e] = KeyOf(gate.order, c);
    nans += c != c;
  }
  for (size_t e = n; e < padded; ++e) {
    out.logit[e] = out.score[e] = out.choice[e] = 0.0f;
    out.key[e] = kIneligibleKey;
  }
  return nans;
}

const float* Source(const GateSpec& gate, const RowScores& row) {
  switch (gate.weight_source) {
    case WeightSource::kChoice:
      return row.choice;
    case WeightSource::kLogit:
      return row.logit;
    case WeightSource::kScore:
      break;
  }
  return row.score;
}

}  // namespace

size_t ScoreRow(const GateSpec& gate, const float* logits, const float* bias,
                const RowScores& out) {
  const size_t nans = HasVectorScoring(gate) ? ScoreRowVector(gate, logits, bias, out)
                                             : ScoreRowScalar(gate, logits, bias, out);
  if (gate.num_groups > gate.groups_kept) DropGroups(gate, out);
  return nans;
}

void GroupScores(const GateSpec& gate, const float* logits, const float* bias,
                 const RowScores& scratch, float* scores) {
  GateSpec ungrouped = gate;
  ungrouped.groups_kept = gate.num_groups;
  ScoreRow(ungrouped, logits, bias, scratch);
  const size_t per_group = gate.num_experts / gate.num_groups;
  for (size_t g = 0; g < gate.num_groups; ++g) {
    scores[g] = ScoreOfGroup(gate.group_score, gate.choice_number, scratch.choice + g * per_group,
                             per_group);
  }
}

float RowMass(const GateSpec& gate, const RowScores& row, const int32_t* ids, size_t count) {
  const float* source = Source(gate, row);
  float sum = 0;
  for (size_t i = 0; i < count; ++i) sum += source[ids[i]];
  return sum;
}

void WeighRow(const GateSpec& gate, const RowScores& row, const int32_t* ids, size_t count,
              float keep_mass, float* weights) {
  const float* source = Source(gate, row);
  const auto number = gate.weight_number;
  float sum = 0;
  for (size_t i = 0; i < count; ++i) {
    weights[i] = source[ids[i]];
    sum += weights[i];
  }
  sum = RoundTo(number, sum);
  const size_t total = count + gate.fused_shared;
  for (size_t i = count; i < total; ++i) {
    weights[i] = gate.shared_weight != 0 ? gate.shared_weight : RoundTo(number, sum / gate.scale);
  }
  const size_t scaled = gate.shared_weight != 0 ? count : total;
  const bool renormalize = gate.renormalize != Renormalize::kNone;
  if (gate.renormalize == Renormalize::kSoftmaxOverSelected && count > 0) {
    float max = -kInf;
    for (size_t i = 0; i < count; ++i) max = weights[i] > max ? weights[i] : max;
    sum = 0;
    for (size_t i = 0; i < count; ++i) {
      weights[i] = static_cast<float>(
          weights[i] == max ? 1.0
                            : std::exp(static_cast<double>(weights[i]) - static_cast<double>(max)));
      sum += weights[i];
    }
    for (size_t i = 0; i < count; ++i) weights[i] = RoundTo(number, weights[i] / sum);
    for (size_t i = count; i < scaled; ++i) weights[i] = RoundTo(number, 1.0f / gate.scale);
  } else if (gate.renormalize == Renormalize::kDivideBySum) {
    float divisor = RoundTo(number, sum + gate.renorm_epsilon);
    if (gate.divisor == RenormDivisor::kSumAtLeast) divisor = std::max(sum, gate.renorm_epsilon);
    if (gate.divisor == RenormDivisor::kSumOrOne) divisor = sum > 0 ? sum : 1.0f;
    for (size_t i = 0; i < scaled; ++i) weights[i] = RoundTo(number, weights[i] / divisor);
    if (gate.second_divide_epsilon > 0) {
      float again = gate.second_divide_epsilon;
      for (size_t i = 0; i < count; ++i) again += weights[i];
      for (size_t i = 0; i < scaled; ++i) weights[i] = RoundTo(number, weights[i] / again);
    }
  } else if (keep_mass > 0 && sum > 0) {
    const float factor = keep_mass / sum;
    for (size_t i = 0; i < scaled; ++i) weights[i] *= factor;
  }
  const bool scale = gate.scale_place == ScalePlace::kAlways ||
                     (gate.scale_place == ScalePlace::kWithRenormalize && renormalize);
  if (scale && gate.scale != 1.0f) {
    for (size_t i = 0; i < scaled; ++i) weights[i] = RoundTo(number, weights[i] * gate.scale);
  }
}

}  // namespace carpool
