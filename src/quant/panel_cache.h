// A file beside the checkpoint with the packed experts, so that the next start reads panels instead
// of packing them again.
//
// The file is only ever complete: it is written under another name and renamed at the end. Every
// entry has a checksum; the file names the content it was made from. What does not fit is packed
// again and the file is replaced, with one warning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"

namespace carpool {

/// One user at a time. Never an error: a cache that cannot be read or written costs time, not the
/// model.
class PanelCache {
 public:
  /// `key` stands for the content the panels are made from.
  PanelCache(std::string path, uint64_t key);
  /// Removes what was begun but not finished.
  ~PanelCache();
  PanelCache(const PanelCache&) = delete;
  PanelCache& operator=(const PanelCache&) = delete;

  /// Fills `out` with entry `name`, in parallel. False: not there or not good; pack and Store.
  bool Load(std::string_view name, std::span<std::byte> out, ThreadPool& pool);
  void Store(std::string_view name, std::span<const std::byte> bytes, ThreadPool& pool);
  /// Makes what was stored, together with what was loaded, the file for the next start.
  void Finish();

 private:
  struct Entry {
    uint64_t offset = 0, bytes = 0, hash = 0;
  };
  void ReadTable();
  bool ReadEntry(const Entry& entry, std::span<std::byte> out, ThreadPool& pool) const;
  void Append(std::string_view name, std::span<const std::byte> bytes, uint64_t hash);
  void BeginWriting(ThreadPool& pool);
  void Write(const void* data, size_t bytes);
  void StopWriting();
  void WarnOnce(std::string_view what);

  std::string path_, new_path_;
  uint64_t key_;
  int old_ = -1, new_ = -1;
  uint64_t written_ = 0;
  bool warned_ = false, given_up_ = false;
  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<std::string> loaded_;
};

/// Of any bytes: not cryptographic, 8 bytes at a time.
uint64_t HashBytes(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace carpool
