#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace carpool {
namespace {

constexpr size_t kPrefetchBytes = size_t{1} << 20;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

Error OpenError(const std::string& path) {
  const int code = errno;
  if (code == ENOENT || code == ENOTDIR)
    return MakeError(ErrorCode::kNotFound, "{}: no such file", path);
  return MakeError(ErrorCode::kInvalidArgument, "{}: cannot be read: {}", path,
                   std::strerror(code));
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return OpenError(path);
  struct stat st {};
  if (fstat(fd.get(), &st) != 0) return OpenError(path);
  if (!S_ISREG(st.st_mode)) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: wanted a regular file", path);
  }
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(st.st_size);
  if (file.size_ > 0) {
    void* p = mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (p == MAP_FAILED) return OpenError(path);
    file.data_ = static_cast<const std::byte*>(p);
  }
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::Prefetch(const std::byte* data, size_t bytes) const {
  if (data < data_ || data >= data_ + size_) return;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t offset = static_cast<size_t>(data - data_), end = std::min(offset + bytes, size_);
  // Linux takes no more of one call than the device's largest request or its read-ahead.
  for (size_t at = offset / page * page; at < end; at += kPrefetchBytes) {
    madvise(const_cast<std::byte*>(data_) + at, std::min(kPrefetchBytes, end - at), MADV_WILLNEED);
  }
}

void MappedFile::Release() const {
  if (data_ != nullptr) madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

Result<std::string> ReadTextFile(const std::string& path, size_t max_bytes) {
  Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return OpenError(path);
  struct stat st {};
  if (fstat(fd.get(), &st) != 0) return OpenError(path);
  if (S_ISDIR(st.st_mode))
    return MakeError(ErrorCode::kInvalidArgument, "{}: is a directory, wanted a file", path);
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n < 0) return OpenError(path);
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > max_bytes) {
      return MakeError(ErrorCode::kInvalidArgument, "{}: larger than the {} bytes allowed here",
                       path, max_bytes);
    }
  }
}

}  // namespace carpool
