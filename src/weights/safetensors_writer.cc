#include "weights/safetensors_writer.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/file_writer.h"

namespace carpool {
namespace {

/// The header, padded with spaces so that data starts on a multiple of 64.
std::string Header(std::span<const PlannedTensor> tensors) {
  nlohmann::ordered_json json;
  json["__metadata__"] = {{"format", "pt"}};
  uint64_t offset = 0;
  for (const auto& t : tensors) {
    json[t.name] = {{"dtype", DtypeName(t.dtype)},
                    {"shape", t.shape},
                    {"data_offsets", {offset, offset + t.bytes}}};
    offset += t.bytes;
  }
  std::string text = json.dump();
  text.append((64 - (text.size() + 8) % 64) % 64, ' ');
  return text;
}

}  // namespace

uint64_t SafetensorsFileBytes(std::span<const PlannedTensor> tensors) {
  uint64_t bytes = 8 + Header(tensors).size();
  for (const auto& t : tensors) bytes += t.bytes;
  return bytes;
}

Status WriteSafetensors(const std::string& path, std::span<const PlannedTensor> tensors,
                        const std::function<Status(const ByteSink& sink)>& write) {
  const std::string temporary = path + ".tmp";
  const auto all = [&]() -> Status {
    FileWriter file(temporary);
    const std::string header = Header(tensors);
    const uint64_t size = header.size();
    RETURN_IF_ERROR(file.Write(&size, sizeof(size)));
    RETURN_IF_ERROR(file.Write(header.data(), header.size()));
    uint64_t left = 0;
    for (const auto& t : tensors) left += t.bytes;
    RETURN_IF_ERROR(write([&](std::span<const std::byte> bytes) -> Status {
      left -= bytes.size();
      return file.Write(bytes.data(), bytes.size());
    }));
    CARPOOL_CHECK_EQ(left, uint64_t{0});
    return file.Close();
  };
  return CommitFile(temporary, path, all());
}

}  // namespace carpool
