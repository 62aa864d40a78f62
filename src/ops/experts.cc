#include "ops/experts.h"

#include <cmath>

#include "base/check.h"
#include "ops/matmul.h"

namespace carpool {

Result<ExpertBank> ExpertBank::Pack(std::span<const ExpertSource> experts, const ExpertSource* shared, ThreadPool&) {
  ExpertBank bank;
  auto pack = [](const ExpertSource& s) -> Result<Expert> {
    Expert e;
    ASSIGN_OR_RETURN(e.gate, PackedMatrix::Pack(s.gate));
    ASSIGN_OR_RETURN(e.up, PackedMatrix::Pack(s.up));
    ASSIGN_OR_RETURN(e.down, PackedMatrix::Pack(s.down));
    return e;
  };
  for (const auto& s : experts) {
    ASSIGN_OR_RETURN(Expert e, pack(s));
    bank.experts_.push_back(std::move(e));
  }
  if (shared != nullptr) {
    ASSIGN_OR_RETURN(bank.shared_, pack(*shared));
    bank.has_shared_ = true;
  }
  if (!experts.empty()) {
    bank.width_ = experts[0].gate.rows;
    bank.hidden_ = experts[0].gate.cols;
  }
  return bank;
}

size_t ExpertBank::bytes_per_expert() const {
  return experts_.empty() ? 0 : experts_[0].gate.bytes() + experts_[0].up.bytes() + experts_[0].down.bytes();
}
WeightFormat ExpertBank::format() const { return experts_[0].gate.format(); }

namespace {
void RunOne(const ExpertBank::Expert& e, MatView<const float> x, MatView<float> y, OpContext& context) {
  const size_t width = e.gate.rows();
  auto gate = context.arena.Matrix<float>(x.rows, width);
  auto up = context.arena.Matrix<float>(x.rows, width);
  MatMul(x, e.gate, gate, context);
  MatMul(x, e.up, up, context);
  for (size_t r = 0; r < x.rows; ++r) {
    for (size_t i = 0; i < width; ++i) {
      const float g = gate.Row(r)[i];
      gate.Row(r)[i] = g / (1.0f + std::exp(-g)) * up.Row(r)[i];
    }
  }
  MatMul(gate, e.down, y, context);
}
}  // namespace

void RunExperts(const ExpertBank& bank, MatView<const float> x, const ExpertPlan& plan, MatView<float> y,
                OpContext& context) {
  ArenaScope scope(context.arena);
  const size_t slots = plan.row_of_slot.size();
  auto in = context.arena.Matrix<float>(slots + 1, x.cols);
  auto out = context.arena.Matrix<float>(slots + 1, x.cols);
  for (size_t s = 0; s < slots; ++s) {
    const float* row = x.Row(static_cast<size_t>(plan.row_of_slot[s]));
    std::copy(row, row + x.cols, in.Row(s));
  }
  for (size_t a = 0; a < plan.experts.size(); ++a) {
    const size_t first = plan.offsets[a], n = plan.offsets[a + 1] - first;
    RunOne(bank.expert(static_cast<size_t>(plan.experts[a])), in.Rows(first, n), out.Rows(first, n), context);
  }
  auto shared = context.arena.Matrix<float>(x.rows, x.cols);
  if (bank.shared() != nullptr) RunOne(*bank.shared(), x, shared, context);
  for (size_t r = 0; r < x.rows; ++r) {
    float* dst = y.Row(r);
    std::fill(dst, dst + x.cols, 0.0f);
    for (uint32_t i = plan.row_offsets[r]; i < plan.row_offsets[r + 1]; ++i) {
      const float w = plan.weight_of_slot[plan.slot_of[i]];
      const float* src = out.Row(plan.slot_of[i]);
      for (size_t c = 0; c < x.cols; ++c) dst[c] = std::fma(w, src[c], dst[c]);
    }
    if (bank.shared() != nullptr) {
      for (size_t c = 0; c < x.cols; ++c) dst[c] += shared.Row(r)[c];
    }
  }
}

}  // namespace carpool
