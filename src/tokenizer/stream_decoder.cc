#include "tokenizer/stream_decoder.h"

namespace carpool {

std::string StreamDecoder::Feed(int32_t id) {
  std::string out;
  if (skip_special_ && tokenizer_->IsSpecial(id)) return out;
  std::string_view bytes = tokenizer_->TokenBytes(id);
  if (strip_space_ && !bytes.empty()) {
    if (bytes.front() == ' ') bytes.remove_prefix(1);
    strip_space_ = false;
  }
  utf8_.Feed(bytes, out);
  return out;
}

std::string StreamDecoder::Finish() {
  std::string out;
  utf8_.Finish(out);
  return out;
}

}  // namespace carpool
