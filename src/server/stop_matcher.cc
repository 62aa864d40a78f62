#include "server/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace carpool {

std::string StopMatcher::Feed(std::string_view text) {
  if (matched_) return {};
  held_ += text;
  if (stops_.empty()) return std::exchange(held_, {});
  size_t first = std::string::npos;
  size_t hold = 0;
  for (const std::string& stop : stops_) {
    first = std::min(first, held_.find(stop));
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > hold; --n) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) hold = n;
    }
  }
  if (first != std::string::npos) {
    matched_ = true;
    return std::exchange(held_, {}).substr(0, first);
  }
  std::string out = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return out;
}

std::string StopMatcher::Finish() { return matched_ ? std::string() : std::exchange(held_, {}); }

}  // namespace carpool
