#include "weights/content_key.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include "quant/panel_cache.h"

namespace carpool {

uint64_t ContentKey(const Checkpoint& checkpoint, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ec;
  std::vector<fs::path> files;
  if (fs::is_directory(path, ec)) {
    for (const auto& entry : fs::directory_iterator(path, ec)) {
      const auto extension = entry.path().extension();
      if (extension == ".safetensors" || extension == ".gguf") files.push_back(entry.path());
    }
  } else {
    files.emplace_back(path);
  }
  std::sort(files.begin(), files.end());
  uint64_t key = 0;
  const auto add = [&key](const void* data, size_t bytes) {
    key = HashBytes({static_cast<const std::byte*>(data), bytes}, key);
  };
  for (const auto& file : files) {
    const std::string name = file.filename().string();
    add(name.data(), name.size());
    const uint64_t size = fs::file_size(file, ec);
    const auto changed = fs::last_write_time(file, ec).time_since_epoch().count();
    add(&size, sizeof(size));
    add(&changed, sizeof(changed));
  }
  constexpr uint64_t kSample = 64;
  for (const TensorInfo& t : checkpoint.tensors()) {
    add(t.name.data(), t.name.size());
    add(&t.dtype, sizeof(t.dtype));
    add(t.shape, sizeof(t.shape));
    add(&t.bytes, sizeof(t.bytes));
    if (t.bytes > 0) add(t.data + t.bytes / 2, std::min(kSample, t.bytes - t.bytes / 2));
  }
  return key;
}

}  // namespace carpool
