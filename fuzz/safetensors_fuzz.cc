// Any bytes as a safetensors file: an error of one line, or tensors that lie inside the file, in
// order and without overlap.
#include <cstdint>

#include "base/check.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const auto header = ParseSafetensorsHeader({bytes, size}, "fuzz");
  if (!header) {
    CARPOOL_CHECK(header.error().message.find('\n') == std::string::npos);
    return 0;
  }
  const std::byte* at = bytes + 8 + header->header_bytes;
  for (const TensorInfo& t : header->tensors) {
    CARPOOL_CHECK(t.data >= at && t.data + t.bytes <= bytes + size);
    at = t.data + t.bytes;
    size_t sum = 0;
    for (size_t i = 0; i < t.bytes; ++i)
      sum += static_cast<size_t>(t.data[i]);  // all of it can be read
    CARPOOL_CHECK(sum <= t.bytes * 255);
  }
  return 0;
}
