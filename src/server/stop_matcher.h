// StopMatcher: finds stop strings in streamed text, across token borders.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace carpool {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// The text that can be given out now: what may yet become a stop string is held back. After a
  /// match: the text before the stop string, and from then on nothing.
  std::string Feed(std::string_view text);
  /// What was held back, at the end of the stream.
  std::string Finish();
  bool matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace carpool
