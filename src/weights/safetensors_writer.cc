#include "weights/safetensors_writer.h"

#include <nlohmann/json.hpp>

#include "base/check.h"

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
  return WriteFile(path, [&](const ByteSink& sink) -> Status {
    const std::string header = Header(tensors);
    const uint64_t size = header.size();
    RETURN_IF_ERROR(sink(std::as_bytes(std::span(&size, 1))));
    RETURN_IF_ERROR(sink(std::as_bytes(std::span(header))));
    uint64_t left = 0;
    for (const auto& t : tensors) left += t.bytes;
    RETURN_IF_ERROR(write([&](std::span<const std::byte> bytes) -> Status {
      left -= bytes.size();
      return sink(bytes);
    }));
    CARPOOL_CHECK_EQ(left, uint64_t{0});
    return {};
  });
}

Status WriteTextFile(const std::string& path, const std::string& text) {
  return WriteFile(path,
                   [&](const ByteSink& sink) { return sink(std::as_bytes(std::span(text))); });
}

}  // namespace carpool
