// Packing the experts of one layer: one slab, expert after expert, so that huge pages serve all of
// them.
#include <algorithm>

#include "base/aligned.h"
#include "base/memory_info.h"
#include "ops/experts.h"

namespace carpool {
namespace {

/// Enough that waiting for a portion's last expert costs little.
constexpr size_t kPortionPerThread = 8;

Status CheckMemory(size_t bytes, const std::string& name) {
  const size_t available = AvailableMemory();
  if (bytes <= available) return {};
  return MakeError(ErrorCode::kExhausted,
                   "{}: packing the experts of this layer needs {:.1f} GB, {:.1f} GB are free; "
                   "free memory or load a smaller "
                   "model",
                   name, static_cast<double>(bytes) * 1e-9, static_cast<double>(available) * 1e-9);
}

Status CheckSame(const StoredMatrix& m, const StoredMatrix& first, size_t rows, size_t cols) {
  if (m.rows != rows || m.cols != cols) {
    return MakeError(ErrorCode::kUnsupported,
                     "{}: wanted [{}, {}] as the expert's other projections have it, got [{}, {}]",
                     m.name, rows, cols, m.rows, m.cols);
  }
  if (PackedMatrix::NaturalFormat(m) != PackedMatrix::NaturalFormat(first)) {
    return MakeError(ErrorCode::kUnsupported,
                     "{} is stored as {}, {} as {}; all experts of a layer must be stored alike",
                     m.name, StorageName(m.storage), first.name, StorageName(first.storage));
  }
  return {};
}

size_t SlabBytes(const StoredMatrix& m, std::optional<WeightFormat> format) {
  return RoundUp(PackedMatrix::PackedBytes(m, format), kCacheLineBytes);
}

void CopyBiases(const ExpertSource& from, ExpertBank::Expert& to) {
  const auto pad = [](std::vector<float> bias) {
    bias.resize(RoundUp(bias.size(), kPanelRows), 0.0f);
    return bias;
  };
  to.gate_bias = pad(from.gate_bias);
  to.up_bias = pad(from.up_bias);
  to.down_bias = pad(from.down_bias);
}

}  // namespace

Result<ExpertBank> ExpertBank::Pack(std::span<const ExpertSource> experts,
                                    const ExpertSource* shared, ThreadPool& pool,
                                    const ExpertPackOptions& options) {
  const std::optional<WeightFormat> format = options.format;
  ExpertBank bank;
  bank.glu_ = options.glu;
  if (!experts.empty()) {
    const ExpertSource& first = experts[0];
    bank.width_ = first.gate.rows;
    bank.hidden_ = first.gate.cols;
    for (const auto& e : experts) {
      RETURN_IF_ERROR(CheckSame(e.gate, first.gate, bank.width_, bank.hidden_));
      RETURN_IF_ERROR(CheckSame(e.up, first.up, bank.width_, bank.hidden_));
      RETURN_IF_ERROR(CheckSame(e.down, first.down, bank.hidden_, bank.width_));
    }
    const size_t gate_bytes = SlabBytes(first.gate, format), up_bytes = SlabBytes(first.up, format);
    const size_t expert_bytes = gate_bytes + up_bytes + SlabBytes(first.down, format);
    RETURN_IF_ERROR(CheckMemory(expert_bytes * experts.size(), first.gate.name));
    bank.slab_ = PageBuffer(expert_bytes * experts.size());
    bank.experts_.resize(experts.size());
    const std::span<std::byte> slab(bank.slab_.data(), bank.slab_.size());
    // The panels of a tensor depend on its content, which the cache knows, and on the format.
    const std::string entry =
        fmt::format("{} {}", first.gate.name,
                    WeightFormatName(format.value_or(PackedMatrix::NaturalFormat(first.gate))));
    const bool cached = options.cache != nullptr && options.cache->Load(entry, slab, pool);
    std::vector<Status> statuses(experts.size());
    const auto pack = [&](size_t e) -> Status {
      std::byte* memory = slab.data() + e * expert_bytes;
      const auto one = [&](const StoredMatrix& m, size_t offset) {
        return cached ? PackedMatrix::FromPacked(m, memory + offset, format)
                      : PackedMatrix::PackInto(m, memory + offset, format);
      };
      Expert& out = bank.experts_[e];
      ASSIGN_OR_RETURN(out.gate, one(experts[e].gate, 0));
      ASSIGN_OR_RETURN(out.up, one(experts[e].up, gate_bytes));
      ASSIGN_OR_RETURN(out.down, one(experts[e].down, gate_bytes + up_bytes));
      CopyBiases(experts[e], out);
      return {};
    };
    const size_t portion =
        options.after_portion ? kPortionPerThread * pool.num_threads() : experts.size();
    for (size_t begin = 0; begin < experts.size(); begin += portion) {
      pool.ParallelFor(std::min(portion, experts.size() - begin),
                       [&](size_t i, size_t) { statuses[begin + i] = pack(begin + i); });
      if (options.after_portion) options.after_portion();
    }
    for (auto& status : statuses) RETURN_IF_ERROR(std::move(status));
    if (options.cache != nullptr && !cached) options.cache->Store(entry, slab, pool);
  }
  if (shared != nullptr) {
    RETURN_IF_ERROR(CheckSame(shared->up, shared->up, shared->gate.rows, shared->gate.cols));
    RETURN_IF_ERROR(CheckSame(shared->down, shared->down, shared->gate.cols, shared->gate.rows));
    const auto pack_shared = [&](const StoredMatrix& m) {
      return PackedMatrix::Pack(m, format.value_or(PackedMatrix::NaturalFormat(m)), &pool);
    };
    ASSIGN_OR_RETURN(bank.shared_.gate, pack_shared(shared->gate));
    ASSIGN_OR_RETURN(bank.shared_.up, pack_shared(shared->up));
    ASSIGN_OR_RETURN(bank.shared_.down, pack_shared(shared->down));
    CopyBiases(*shared, bank.shared_);
    bank.has_shared_ = true;
    if (experts.empty()) bank.hidden_ = shared->gate.cols;
  }
  return bank;
}

size_t ExpertBank::bytes_per_expert() const {
  return experts_.empty()
             ? 0
             : experts_[0].gate.bytes() + experts_[0].up.bytes() + experts_[0].down.bytes();
}

size_t ExpertBank::bytes_shared() const {
  return has_shared_ ? shared_.gate.bytes() + shared_.up.bytes() + shared_.down.bytes() : 0;
}

WeightFormat ExpertBank::format() const { return experts_[0].gate.format(); }

}  // namespace carpool
