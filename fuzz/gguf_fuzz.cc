// Any bytes as a GGUF file: an error, or a header whose tensors lie inside the file and decode.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "weights/gguf.h"
#include "weights/gguf_names.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const auto header = ParseGguf({bytes, size}, "fuzz");
  if (!header) {
    CARPOOL_CHECK(header.error().message.find('\n') == std::string::npos);
    return 0;
  }
  for (const GgufEntry& entry : header->entries) {
    CARPOOL_CHECK(header->Find(entry.key) == &entry);
    if (const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&entry.value)) {
      for (size_t i = 0; i < (*array)->count; ++i) (void)(*array)->At(i);
    }
  }
  for (const GgufTensor& t : header->tensors) {
    CARPOOL_CHECK(t.data >= bytes && t.data + t.bytes <= bytes + size);
    (void)HfNameOf(t.name, GgufMoeNamesOf("mixtral"));
    if (!IsGgufBlock(*t.type->storage)) continue;
    std::vector<float> row(std::min<uint64_t>(t.dims[0], 4096) / t.type->block_inputs *
                           t.type->block_inputs);
    DecodeGgufBlocks(*t.type->storage, t.data, row.size(), row.data());
  }
  return 0;
}
