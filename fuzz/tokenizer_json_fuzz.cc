// Any bytes as a tokenizer.json: an error of one line, or a tokenizer that encodes and decodes
// without going outside its vocabulary.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  const auto tokenizer =
      Tokenizer::LoadFromJson({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!tokenizer) {
    CARPOOL_CHECK(tokenizer.error().message.find('\n') == std::string::npos);
    return 0;
  }
  for (const std::string_view text :
       {std::string_view("Hello, world's 123  ab\n"),
        std::string_view("\xc3\xa9\xe4\xb8\xad<|end|> a"),
        std::string_view(data == nullptr ? "" : reinterpret_cast<const char*>(data), size)}) {
    const auto ids = tokenizer->Encode(text);
    if (!ids) continue;
    for (const int32_t id : *ids) CARPOOL_CHECK(tokenizer->HasToken(id));
    CARPOOL_CHECK(tokenizer->Decode(*ids, false).has_value());
  }
  return 0;
}
