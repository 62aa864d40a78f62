// A GGUF model as a Checkpoint: its tensors under their Hugging Face names, experts one by one.
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "base/printable.h"
#include "quant/stored_matrix.h"
#include "weights/checkpoint.h"
#include "weights/gguf.h"
#include "weights/gguf_config.h"
#include "weights/gguf_names.h"

namespace carpool {
namespace {

constexpr uint64_t kMaxExperts = 65536;

/// What the tensors view.
struct Owner {
  explicit Owner(GgufModel m) : model(std::move(m)) {}
  GgufModel model;
  std::deque<std::string> names;
  std::deque<std::vector<std::byte>> made;  // tensors that do not lie in the file as they are used
};

Dtype DtypeOf(Storage storage) {
  switch (storage) {
    case Storage::kF32:
      return Dtype::kF32;
    case Storage::kF16:
      return Dtype::kF16;
    case Storage::kBF16:
      return Dtype::kBF16;
    default:
      return Dtype::kGgufBlocks;
  }
}

class Translator {
 public:
  Translator(Owner& owner, GgufMoeNames moe, size_t heads)
      : owner_(owner), moe_(moe), heads_(heads) {}

  Status Run() {
    for (const GgufTensor& t : owner_.model.tensors()) {
      const auto name = HfNameOf(t.name, moe_);
      if (!name) {
        RETURN_IF_ERROR(AddOther(t));
      } else if (name->part == GgufPart::kWhole) {
        Add(name->name, t, t.ndim, 0, t.bytes);
      } else {
        RETURN_IF_ERROR(AddExperts(*name, t));
      }
    }
    return {};
  }
  std::vector<TensorInfo> Take() { return std::move(tensors_); }

 private:
  /// `bytes` from `offset` of `t`, as a tensor of its first `ndim` dimensions.
  TensorInfo& Add(std::string name, const GgufTensor& t, size_t ndim, uint64_t offset,
                  uint64_t bytes) {
    TensorInfo& info = tensors_.emplace_back();
    info.name = owner_.names.emplace_back(std::move(name));
    info.dtype = DtypeOf(*t.type->storage);
    info.blocks = *t.type->storage;
    info.ndim = static_cast<uint8_t>(ndim);
    for (size_t i = 0; i < ndim; ++i) info.shape[i] = t.dims[ndim - 1 - i];
    info.data = t.data + offset;
    info.bytes = bytes;
    // Vectors where a matrix of one row is meant.
    if (ndim == 1 && info.name.ends_with(".mlp.shared_expert_gate.weight")) {
      info.ndim = 2;
      info.shape[1] = info.shape[0];
      info.shape[0] = 1;
    }
    return info;
  }

  Status AddExperts(const HfName& name, const GgufTensor& t) {
    const bool halves = name.part == GgufPart::kGateUp;
    if (t.ndim < (halves ? 3u : 1u) || (halves && t.dims[1] % 2 != 0)) {
      return MakeError(ErrorCode::kCorrupt, "{}: tensor '{}' has {} dimensions, wanted {}",
                       owner_.model.path(), Printable(t.name), t.ndim,
                       halves ? "inputs, an even number of rows, experts" : "the experts last");
    }
    const uint64_t experts = t.dims[t.ndim - 1], bytes = t.bytes / experts;
    if (experts > kMaxExperts) {
      return MakeError(ErrorCode::kCorrupt, "{}: tensor '{}' has {} experts, wanted at most {}",
                       owner_.model.path(), Printable(t.name), experts, kMaxExperts);
    }
    for (uint64_t e = 0; e < experts; ++e) {
      if (!halves) {
        Add(fmt::format(fmt::runtime(name.name), e), t, t.ndim - 1, e * bytes, bytes);
        continue;
      }
      for (const uint64_t half : {0u, 1u}) {
        TensorInfo& info =
            Add(fmt::format(fmt::runtime(name.name), e, half == 0 ? moe_.gate : moe_.up), t,
                t.ndim - 1, e * bytes + half * (bytes / 2), bytes / 2);
        info.shape[0] /= 2;
      }
    }
    return {};
  }

  /// Keys and values of latent attention become kv_b_proj again; the rest keeps its name.
  Status AddOther(const GgufTensor& t) {
    constexpr std::string_view kKey = ".attn_k_b.weight";
    if (t.name == "rope_freqs.weight" || t.name.ends_with(".attn_v_b.weight")) return {};
    if (!t.name.ends_with(kKey)) {
      Add(std::string(t.name), t, t.ndim, 0, t.bytes);
      return {};
    }
    const std::string at(t.name.substr(0, t.name.size() - kKey.size()));
    if (owner_.model.FindTensor(at + ".attn_kv_b.weight") != nullptr) return {};  // both are there
    const GgufTensor* v = owner_.model.FindTensor(at + ".attn_v_b.weight");
    if (v == nullptr) {
      return MakeError(ErrorCode::kCorrupt, "{}: tensor '{}' needs {}.attn_v_b.weight beside it",
                       owner_.model.path(), Printable(t.name), Printable(at));
    }
    return JoinKvB(at, t, *v);
  }

  /// k_b [heads][rank][nope], v_b [heads][v][rank] -> kv_b_proj [heads * (nope + v), rank].
  Status JoinKvB(const std::string& at, const GgufTensor& k, const GgufTensor& v) {
    const uint64_t nope = k.dims[0], rank = v.dims[0];
    const uint64_t k_rows = k.dims[1] * k.dims[2], v_rows = v.dims[1] * v.dims[2];
    if (heads_ == 0 || k_rows != rank * heads_ || v_rows % heads_ != 0) {
      return MakeError(ErrorCode::kCorrupt,
                       "{}: tensors '{}' and '{}' do not fit {} heads: {} and {} rows of {} and {}",
                       owner_.model.path(), Printable(k.name), Printable(v.name), heads_, k_rows,
                       v_rows, nope, rank);
    }
    const uint64_t v_dim = v_rows / heads_, per_head = nope + v_dim;
    const auto view = [](const GgufTensor& t, uint64_t rows) {
      StoredMatrix m;
      m.storage = *t.type->storage;
      m.rows = rows;
      m.cols = t.dims[0];
      m.data = t.data;
      return m;
    };
    const StoredMatrix k_b = view(k, k_rows), v_b = view(v, v_rows);
    std::vector<float> joined(heads_ * per_head * rank), row(nope);
    for (uint64_t h = 0; h < heads_; ++h) {
      float* out = joined.data() + h * per_head * rank;
      for (uint64_t c = 0; c < rank; ++c) {
        DequantizeRow(k_b, h * rank + c, row.data());
        for (uint64_t n = 0; n < nope; ++n) out[n * rank + c] = row[n];
      }
      for (uint64_t r = 0; r < v_dim; ++r)
        DequantizeRow(v_b, h * v_dim + r, out + (nope + r) * rank);
    }
    const bool half = k_b.storage == Storage::kBF16 && v_b.storage == Storage::kBF16;
    auto& bytes = owner_.made.emplace_back(joined.size() * (half ? 2 : 4));
    for (size_t i = 0; half && i < joined.size(); ++i) {
      const uint16_t bits = FloatToBF16(joined[i]);
      std::memcpy(bytes.data() + i * 2, &bits, 2);
    }
    if (!half) std::memcpy(bytes.data(), joined.data(), bytes.size());
    TensorInfo& info = tensors_.emplace_back();
    const auto hf = HfNameOf(at + ".attn_kv_b.weight", moe_);
    if (!hf)
      return MakeError(ErrorCode::kCorrupt, "{}: tensor '{}' is in no layer", owner_.model.path(),
                       Printable(k.name));
    info.name = owner_.names.emplace_back(hf->name);
    info.dtype = half ? Dtype::kBF16 : Dtype::kF32;
    info.blocks = half ? Storage::kBF16 : Storage::kF32;
    info.ndim = 2;
    info.shape[0] = heads_ * per_head;
    info.shape[1] = rank;
    info.data = bytes.data();
    info.bytes = bytes.size();
    return {};
  }

  Owner& owner_;
  GgufMoeNames moe_;
  uint64_t heads_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

Result<Checkpoint> Checkpoint::OpenGguf(const std::string& path) {
  ASSIGN_OR_RETURN(GgufModel model, GgufModel::Open(path));
  ASSIGN_OR_RETURN(const GgufFamily family, GgufFamilyOf(model));
  const auto owner = std::make_shared<Owner>(std::move(model));
  Translator translator(*owner, GgufMoeNamesOf(family.model_type), family.heads);
  RETURN_IF_ERROR(translator.Run());
  return FromTensors(translator.Take(), owner, owner->model.files(), path);
}

}  // namespace carpool
