// ResponseFormat: how a generation is written for its endpoint, as chunks or as one document.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "server/choice.h"

namespace carpool {

class ResponseFormat {
 public:
  virtual ~ResponseFormat() = default;
  /// Appends server-sent events for what is new in `choice`; nothing if nothing is.
  virtual void AppendChunks(Choice& choice, std::string& out) = 0;
  /// The whole answer. `usage` is a finished JSON document.
  virtual std::string Body(std::vector<std::unique_ptr<Choice>>& choices,
                           const std::string& usage) = 0;
  /// The last event of streams that asked for usage.
  virtual std::string UsageChunk(const std::string& usage) = 0;
};

/// What both formats start their documents with: {"id":...,"object":...,"created":...,"model":...
std::string DocumentHead(std::string_view id_prefix, uint64_t id, std::string_view object,
                         std::string_view model);
/// `text` as a JSON string, in quotes; invalid UTF-8 becomes U+FFFD.
std::string JsonString(std::string_view text);
/// A token's text; tokens that are no UTF-8 on their own read "bytes:\xe2\x80".
std::string TokenText(const Tokenizer& tokenizer, int32_t token);
/// Experts of a choice as JSON [tokens][layers][k].
std::string RoutedExperts(const RequestReport& report, size_t layers);

std::unique_ptr<ResponseFormat> MakeCompletionFormat(const EngineLoop& loop,
                                                     const GenerationSpec& spec, uint64_t id);
std::unique_ptr<ResponseFormat> MakeChatFormat(const EngineLoop& loop, const GenerationSpec& spec,
                                               uint64_t id);

}  // namespace carpool
