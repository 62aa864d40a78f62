// What the decoder loop needs of an attention layer.
#pragma once

#include "layers/step.h"

namespace carpool {

class Attention {
 public:
  virtual ~Attention() = default;
  /// out[t, :] = attention of row t over its sequence, its own position included. h: normed hidden
  /// states [rows, hidden]; out: [rows, hidden], must not alias h. Writes the rows' cache entries
  /// first.
  virtual void Forward(MatView<const float> h, MatView<float> out, StepContext& step) const = 0;
};

}  // namespace carpool
