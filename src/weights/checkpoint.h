// Checkpoint: the tensors of a Hugging Face directory (one safetensors file or shards) or of a GGUF
// file, mapped, not copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "quant/stored_matrix.h"

namespace carpool {

enum class Dtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kGgufBlocks,  // see TensorInfo::blocks
};
std::string_view DtypeName(Dtype dtype);
size_t DtypeBytes(Dtype dtype);

inline constexpr size_t kMaxDims = 5;  // the patch convolutions of video towers have five

/// One tensor of the checkpoint. Views into the checkpoint's memory.
struct TensorInfo {
  std::string_view name;
  Dtype dtype = Dtype::kU8;
  Storage blocks = Storage::kF32;  // of GGUF files only: how it is stored
  uint8_t ndim = 0;
  uint64_t shape[kMaxDims] = {};
  const std::byte* data = nullptr;  // unaligned
  uint64_t bytes = 0;
};

class MappedFile;

/// "[32, 128]".
std::string ShapeText(const TensorInfo& tensor);

class Checkpoint {
 public:
  /// OpenGguf for a file, OpenDirectory otherwise.
  static Result<Checkpoint> Open(const std::string& path);
  /// Opens model.safetensors, or else the shards of model.safetensors.index.json, in `dir`. Every
  /// rule of the format is checked before any tensor is handed out. Errors are one line naming the
  /// file and the tensor.
  static Result<Checkpoint> OpenDirectory(const std::string& dir);
  /// A GGUF file, with the other parts of a split. Tensors get their Hugging Face names, stacked
  /// experts one by one; keys and values of latent attention are joined to kv_b_proj (copied); the
  /// rows of q and k of architecture "llama" stay in the order of interleaved rope.
  static Result<Checkpoint> OpenGguf(const std::string& path);
  /// Tensors that lie in memory, in any order; what they view (names and data) must outlive the
  /// checkpoint. Errors: a name that is there twice.
  static Result<Checkpoint> FromTensors(std::vector<TensorInfo> tensors);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  /// Null when absent. Names are as in the file, after the multimodal prefix (models.md 3.9) was
  /// stripped.
  const TensorInfo* Find(std::string_view name) const;
  /// All tensors, sorted by name.
  const std::vector<TensorInfo>& tensors() const;
  /// Those whose names begin so: a part of tensors().
  std::span<const TensorInfo> WithPrefix(std::string_view prefix) const;
  size_t num_files() const;

  /// Starts reading the tensors whose names begin so.
  void Prefetch(std::string_view prefix) const;
  /// Takes the files' pages out of this process, which matters to whoever has copied the tensors;
  /// reading one brings it back.
  void ReleasePages() const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  /// `owner` keeps what the tensors view, `files` too.
  static Result<Checkpoint> FromTensors(std::vector<TensorInfo> tensors,
                                        std::shared_ptr<const void> owner,
                                        std::span<const MappedFile> files,
                                        const std::string& where);
  std::unique_ptr<State> state_;
};

}  // namespace carpool
