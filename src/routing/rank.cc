#include "routing/rank.h"

namespace carpool {

size_t TopKScalar(const uint32_t* keys, const uint32_t* mask, size_t n, size_t k, int32_t* ids) {
  size_t count = 0;
  uint32_t worst = 0;  // key of ids[count - 1] once full
  for (size_t e = 0; e < n; ++e) {
    const uint32_t key = mask == nullptr ? keys[e] : keys[e] & mask[e];
    if (key == kIneligibleKey || (count == k && key <= worst)) continue;
    size_t at = count < k ? count++ : k - 1;
    // Equal keys stay behind: ids arrive ascending.
    for (; at > 0 && keys[ids[at - 1]] < key; --at) ids[at] = ids[at - 1];
    ids[at] = static_cast<int32_t>(e);
    worst = keys[ids[count - 1]];
  }
  return count;
}

}  // namespace carpool
