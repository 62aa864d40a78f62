#include "server/response_format.h"

#include <chrono>
#include <nlohmann/json.hpp>

namespace carpool {

std::string JsonString(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string DocumentHead(std::string_view id_prefix, uint64_t id, std::string_view object,
                         std::string_view model) {
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  return fmt::format(R"({{"id":"{}-{}{:08x}","object":"{}","created":{},"model":{})", id_prefix,
                     now, id, object, now, JsonString(model));
}

std::string TokenText(const Tokenizer& tokenizer, int32_t token) {
  const std::string_view bytes =
      tokenizer.IsSpecial(token) ? tokenizer.TokenString(token) : tokenizer.TokenBytes(token);
  StreamDecoder whole(tokenizer, /*skip_special=*/false, /*continues=*/true);
  const std::string text = whole.Feed(token) + whole.Finish();
  if (text.find("\uFFFD") == std::string::npos || text == bytes) return text;
  std::string shown = "bytes:";
  for (const char c : bytes) shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return shown;
}

std::string RoutedExperts(const RequestReport& report, size_t layers) {
  std::string out = "[";
  const size_t row = layers * report.expert_width;
  for (size_t t = 0; row > 0 && t < report.experts.size(); t += row) {
    out += t == 0 ? "[" : ",[";
    for (size_t l = 0; l < layers; ++l) {
      out += l == 0 ? "[" : ",[";
      bool first = true;
      for (size_t k = 0; k < report.expert_width; ++k) {
        const int32_t id = report.experts[t + l * report.expert_width + k];
        if (id < 0) continue;
        if (!first) out += ',';
        first = false;
        out += fmt::format("{}", id);
      }
      out += ']';
    }
    out += ']';
  }
  return out + "]";
}

}  // namespace carpool
