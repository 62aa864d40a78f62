// A file mapped read-only. Weights stay in the page cache; nothing is copied until it is packed.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace carpool {

class MappedFile {
 public:
  /// Maps the whole file. Errors: NotFound (no such file), InvalidArgument (not a regular file,
  /// unreadable).
  static Result<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& o) noexcept { *this = std::move(o); }
  MappedFile& operator=(MappedFile&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    std::swap(path_, o.path_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }

  /// Starts reading what of [data, data + bytes) lies in this file.
  void Prefetch(const std::byte* data, size_t bytes) const;
  /// Takes the pages out of this process; they stay in the page cache, where the next access finds
  /// them.
  void Release() const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

/// The whole file as a string, at most `max_bytes`. Errors name the path.
Result<std::string> ReadTextFile(const std::string& path, size_t max_bytes = size_t{1} << 30);

}  // namespace carpool
