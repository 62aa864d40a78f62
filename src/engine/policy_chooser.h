// PolicyChooser: who picks the routing policy of each step, when it is not one policy for all.
#pragma once

#include <cstddef>
#include <memory>

#include "layers/step.h"
#include "routing/router.h"

namespace carpool {

class PolicyChooser {
 public:
  virtual ~PolicyChooser() = default;
  /// The policy of the coming step of `decode_rows` decode rows. `decode`: the engine's sums over
  /// its pure-decode steps so far. Never null; the same pointer as last time means no change.
  /// Called on the thread that steps the engine.
  virtual std::shared_ptr<const PolicySpec> Choose(size_t decode_rows, const StepStats& decode) = 0;
};

}  // namespace carpool
