#include "quant/panel_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/aligned.h"
#include "base/log.h"

namespace carpool {
namespace {

// 1: the layout of quant/panel_kernels.h.
constexpr char kMagic[16] = "carpool panels1";
constexpr size_t kAlign = 4096;  // of entries, so that a reader may bypass the page cache
constexpr size_t kChunk = size_t{4} << 20;

/// In front of every entry's name; the data begins at the next multiple of kAlign.
struct EntryHeader {
  uint64_t name_bytes, bytes, hash;
};

bool ReadAt(int fd, void* out, size_t bytes, uint64_t offset) {
  auto* p = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = pread(fd, p, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

uint64_t HashInChunks(std::span<const std::byte> bytes, ThreadPool& pool) {
  const size_t chunks = DivCeil(bytes.size(), kChunk);
  std::vector<uint64_t> hashes(chunks);
  pool.ParallelFor(chunks, [&](size_t c, size_t) {
    hashes[c] = HashBytes(bytes.subspan(c * kChunk, std::min(kChunk, bytes.size() - c * kChunk)));
  });
  return HashBytes(std::as_bytes(std::span(hashes)));
}

}  // namespace

uint64_t HashBytes(std::span<const std::byte> bytes, uint64_t seed) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15ull;
  uint64_t lanes[4] = {seed ^ bytes.size(), 1, 2, 3};
  const auto mix = [](uint64_t& lane, uint64_t word) {
    lane = (lane ^ word) * kOdd;
    lane ^= lane >> 29;
  };
  size_t i = 0;
  for (; i + 32 <= bytes.size(); i += 32) {
    uint64_t words[4];
    std::memcpy(words, bytes.data() + i, sizeof(words));
    for (size_t k = 0; k < 4; ++k) mix(lanes[k], words[k]);
  }
  for (; i < bytes.size(); ++i) mix(lanes[i % 4], static_cast<uint64_t>(bytes[i]) + 1);
  for (size_t k = 1; k < 4; ++k) mix(lanes[0], lanes[k]);
  return lanes[0];
}

PanelCache::PanelCache(std::string path, uint64_t key) : path_(std::move(path)), key_(key) {
  new_path_ = fmt::format("{}.{}", path_, getpid());
  old_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (old_ >= 0) ReadTable();
}

PanelCache::~PanelCache() {
  StopWriting();
  if (old_ >= 0) close(old_);
}

void PanelCache::ReadTable() {
  struct stat info {};
  char magic[sizeof(kMagic)];
  uint64_t key = 0;
  if (fstat(old_, &info) != 0 || !ReadAt(old_, magic, sizeof(magic), 0) ||
      !ReadAt(old_, &key, sizeof(key), sizeof(magic)) ||
      std::memcmp(magic, kMagic, sizeof(kMagic)) != 0) {
    return WarnOnce("is no cache of this version");
  }
  if (key != key_) return WarnOnce("was made from other weights");
  const auto size = static_cast<uint64_t>(info.st_size);
  uint64_t at = kAlign;
  while (at < size) {
    constexpr uint64_t kLongestName = 4096;
    EntryHeader header{};
    if (!ReadAt(old_, &header, sizeof(header), at) || header.name_bytes > kLongestName) break;
    std::string name(header.name_bytes, '\0');
    if (!ReadAt(old_, name.data(), name.size(), at + sizeof(header))) break;
    const uint64_t begin = RoundUp(at + sizeof(header) + header.name_bytes, uint64_t{kAlign});
    if (begin > size || header.bytes > size - begin) break;
    entries_[std::move(name)] = {begin, header.bytes, header.hash};
    at = begin + RoundUp(header.bytes, uint64_t{kAlign});
  }
  if (at != size) WarnOnce("is cut off");
}

bool PanelCache::ReadEntry(const Entry& entry, std::span<std::byte> out, ThreadPool& pool) const {
  std::atomic<bool> good{true};
  pool.ParallelFor(DivCeil(out.size(), kChunk), [&](size_t c, size_t) {
    const size_t first = c * kChunk, n = std::min(kChunk, out.size() - first);
    if (!ReadAt(old_, out.data() + first, n, entry.offset + first)) good = false;
  });
  return good && HashInChunks(out, pool) == entry.hash;
}

bool PanelCache::Load(std::string_view name, std::span<std::byte> out, ThreadPool& pool) {
  const auto it = entries_.find(name);
  if (it == entries_.end()) return false;
  if (it->second.bytes != out.size() || !ReadEntry(it->second, out, pool)) {
    WarnOnce("is damaged");
    std::memset(out.data(), 0, out.size());  // as the packer wants it
    return false;
  }
  if (new_ >= 0) {
    Append(name, out, it->second.hash);
  } else {
    loaded_.emplace_back(name);
  }
  return true;
}

void PanelCache::Store(std::string_view name, std::span<const std::byte> bytes, ThreadPool& pool) {
  if (new_ < 0) BeginWriting(pool);
  Append(name, bytes, HashInChunks(bytes, pool));
}

void PanelCache::BeginWriting(ThreadPool& pool) {
  if (given_up_) return;
  new_ = open(new_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (new_ < 0) {
    given_up_ = true;
    LogWarning("{}: the packed experts cannot be kept: {}", new_path_, std::strerror(errno));
    return;
  }
  char first[kAlign] = {};
  std::memcpy(first, kMagic, sizeof(kMagic));
  std::memcpy(first + sizeof(kMagic), &key_, sizeof(key_));
  written_ = 0;
  Write(first, sizeof(first));
  for (const std::string& name : std::exchange(loaded_, {})) {  // the good part of the old file
    const Entry& entry = entries_.at(name);
    std::vector<std::byte> bytes(entry.bytes);
    if (ReadEntry(entry, bytes, pool)) Append(name, bytes, entry.hash);
  }
}

void PanelCache::Append(std::string_view name, std::span<const std::byte> bytes, uint64_t hash) {
  if (new_ < 0) return;
  constexpr char kZeros[kAlign] = {};
  const EntryHeader header{name.size(), bytes.size(), hash};
  Write(&header, sizeof(header));
  Write(name.data(), name.size());
  Write(kZeros, RoundUp(written_, uint64_t{kAlign}) - written_);
  Write(bytes.data(), bytes.size());
  Write(kZeros, RoundUp(written_, uint64_t{kAlign}) - written_);
}

void PanelCache::Write(const void* data, size_t bytes) {
  const auto* p = static_cast<const char*>(data);
  written_ += bytes;
  while (new_ >= 0 && bytes > 0) {
    const ssize_t n = write(new_, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      LogWarning("{}: the packed experts cannot be kept: {}", new_path_, std::strerror(errno));
      given_up_ = true;
      return StopWriting();
    }
    p += n;
    bytes -= static_cast<size_t>(n);
  }
}

void PanelCache::StopWriting() {
  if (new_ < 0) return;
  close(std::exchange(new_, -1));
  unlink(new_path_.c_str());
}

void PanelCache::Finish() {
  if (new_ < 0) return;
  if (fsync(new_) != 0 || rename(new_path_.c_str(), path_.c_str()) != 0) {
    LogWarning("{}: the packed experts cannot be kept: {}", path_, std::strerror(errno));
    return StopWriting();
  }
  close(std::exchange(new_, -1));
}

void PanelCache::WarnOnce(std::string_view what) {
  if (!warned_) LogWarning("{}: {}; packing again and replacing it", path_, what);
  warned_ = true;
}

}  // namespace carpool
