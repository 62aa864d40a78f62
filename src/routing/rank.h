// Rank keys: the total order of routing as plain unsigned integers.
//
// key(a) > key(b) exactly when choice a ranks above choice b; equal keys are decided by the lower
// id. NaN is above "ineligible" and below everything else, so a row always has enough experts and
// ids stay distinct and in range whatever the logits were. Policies compare keys and never meet a
// NaN.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace carpool {

/// An expert that may not be chosen for this row (outside its kept groups, or padding of the row
/// buffer).
inline constexpr uint32_t kIneligibleKey = 0;
inline constexpr uint32_t kNanKey = 1;

/// Choice descending, NaN lowest, -0 == +0.
inline uint32_t RankKey(float choice) {
  if (choice != choice) return kNanKey;
  const auto bits = std::bit_cast<uint32_t>(choice == 0.0f ? 0.0f : choice);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
/// The order of kernels that compare transformed bits: NaN highest, -0 < +0.
inline uint32_t RawRankKey(float choice) {
  const auto bits = std::bit_cast<uint32_t>(choice != choice ? __builtin_nanf("") : choice);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// NaN and +inf count as -inf.
inline uint32_t FiniteRankKey(float choice) {
  return RankKey(choice <= 3.402823466e38f ? choice : -__builtin_inff());
}

/// Row buffers are padded to whole blocks of this many experts, with ineligible keys.
inline constexpr size_t kRowBlock = 16;

/// The best `k` eligible experts of keys[n] (n a multiple of kRowBlock), by descending key then
/// ascending id. `mask` (all ones or 0 per expert; may be null) restricts the choice. Returns how
/// many there were, <= k. ids: room for k.
size_t TopK(const uint32_t* keys, const uint32_t* mask, size_t n, size_t k, int32_t* ids);

/// The same by plain insertion: the readable twin, and the path of very long rows.
size_t TopKScalar(const uint32_t* keys, const uint32_t* mask, size_t n, size_t k, int32_t* ids);

}  // namespace carpool
