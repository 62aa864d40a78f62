#include <cstring>

#include "lab/torch_file.h"

namespace carpool {
namespace {

template <typename T>
T Load(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

constexpr size_t kEndSize = 22, kEntrySize = 46, kLocalSize = 30;

}  // namespace

Result<std::vector<std::pair<std::string, std::string_view>>> ReadStoredZip(
    std::string_view bytes, const std::string& name) {
  const auto bad = [&](const char* what) {
    return MakeError(ErrorCode::kCorrupt, "{}: not a file that torch.save wrote: {}", name, what);
  };
  const size_t end = bytes.rfind("PK\x05\x06");
  if (end == std::string_view::npos || end + kEndSize > bytes.size())
    return bad("the archive's directory is missing");
  const size_t count = Load<uint16_t>(bytes, end + 10);
  size_t at = Load<uint32_t>(bytes, end + 16);
  if (count == 0xFFFF || at == 0xFFFFFFFF) return bad("archives above 4 GB are not read");
  std::vector<std::pair<std::string, std::string_view>> members;
  for (size_t i = 0; i < count; ++i) {
    if (at > bytes.size() || bytes.size() - at < kEntrySize ||
        bytes.substr(at, 4) != std::string_view("PK\x01\x02", 4))
      return bad("its directory is damaged");
    const size_t stored = Load<uint32_t>(bytes, at + 20), size = Load<uint32_t>(bytes, at + 24);
    const size_t name_size = Load<uint16_t>(bytes, at + 28);
    const size_t skip = size_t{Load<uint16_t>(bytes, at + 30)} + Load<uint16_t>(bytes, at + 32);
    const size_t local = Load<uint32_t>(bytes, at + 42);
    if (Load<uint16_t>(bytes, at + 10) != 0 || stored != size) return bad("a member is compressed");
    if (bytes.size() - at - kEntrySize < name_size || local > bytes.size() ||
        bytes.size() - local < kLocalSize)
      return bad("its directory is damaged");
    const size_t data =
        local + kLocalSize + Load<uint16_t>(bytes, local + 26) + Load<uint16_t>(bytes, local + 28);
    if (data > bytes.size() || bytes.size() - data < size) return bad("a member is cut short");
    const std::string_view path = bytes.substr(at + kEntrySize, name_size);
    const size_t slash = path.find('/');
    members.emplace_back(path.substr(slash == path.npos ? 0 : slash + 1), bytes.substr(data, size));
    at += kEntrySize + name_size + skip;
  }
  return members;
}

}  // namespace carpool
