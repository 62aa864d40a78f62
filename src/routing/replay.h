// Replay: routes a step again with recorded ids (level 2 of a trace) instead of a policy.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "routing/policy.h"
#include "routing/router.h"

namespace carpool {

struct RecordedRow {
  std::vector<int32_t> ids;  // routed experts, fused shared slots left out
  std::vector<std::string> reasons;
  uint64_t logits = 0;  // LogitsHash
};

/// The rows of one step and layer of a trace, by row number.
using RecordedStep = std::map<size_t, RecordedRow>;

/// Reads the records of (step, layer). Errors name the file and line: not JSON, a record without
/// its fields, no level 2.
Result<RecordedStep> ReadRecordedStep(const std::string& path, uint64_t step, size_t layer);

/// A router whose decode rows take the recorded ids; weights are computed anew. Errors: an id out
/// of range or twice in a row, an empty set.
Result<std::unique_ptr<Router>> MakeReplayRouter(const GateSpec& gate, RecordedStep recorded,
                                                 size_t max_rows);

}  // namespace carpool
