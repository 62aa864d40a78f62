// MatView: a row-major matrix somebody else owns. Passed by value; `MatView<const T>` for inputs.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "base/check.h"

namespace carpool {

/// [rows, cols], `stride` elements between the starts of consecutive rows. Valid as long as its
/// owner says.
template <typename T>
struct MatView {
  T* data = nullptr;
  size_t rows = 0;
  size_t cols = 0;
  size_t stride = 0;

  MatView() = default;
  MatView(T* d, size_t r, size_t c) : data(d), rows(r), cols(c), stride(c) {}
  MatView(T* d, size_t r, size_t c, size_t s) : data(d), rows(r), cols(c), stride(s) {}
  /// A writable view is also a readable one.
  template <typename U>
  requires std::is_same_v<const U, T> MatView(const MatView<U>& o)  // NOLINT: implicit on purpose
      : data(o.data), rows(o.rows), cols(o.cols), stride(o.stride) {}

  T* Row(size_t r) const {
    CARPOOL_DCHECK(r < rows);
    return data + r * stride;
  }
  std::span<T> RowSpan(size_t r) const { return {Row(r), cols}; }
  /// Rows [first, first + count).
  MatView Rows(size_t first, size_t count) const {
    CARPOOL_DCHECK(first + count <= rows);
    return MatView(data + first * stride, count, cols, stride);
  }
};

}  // namespace carpool
