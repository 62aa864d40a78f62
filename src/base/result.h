// Result<T>: a value or an Error, for everything a user can get wrong (files, flags, requests,
// capacity).
//
// Bugs of our own abort through base/check.h instead. Member names are those of std::expected, so
// that the class can become an alias once the oldest supported compiler has <expected>.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <variant>

namespace carpool {

enum class ErrorCode {
  kInvalidArgument,  // a flag, field or request that can never work
  kNotFound,         // a file, name or route that is not there
  kUnsupported,      // well-formed, but outside what Carpool does
  kExhausted,        // memory, queue or cache full: may work later
  kCorrupt,          // a file that breaks its own format
  kCancelled,
  kInternal,
};

/// What went wrong. The message says what was wanted, what was got, and what to do about it.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

/// Error{code, fmt::format(...)}.
template <typename... Args>
[[nodiscard]] Error MakeError(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit on purpose
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

/// Success, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}  // NOLINT

  bool has_value() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const& { return error_; }
  Error&& error() && { return std::move(error_); }

 private:
  Error error_;
  bool ok_ = true;
};

using Status = Result<void>;

#define CARPOOL_CONCAT_INNER(a, b) a##b
#define CARPOOL_CONCAT(a, b) CARPOOL_CONCAT_INNER(a, b)

/// RETURN_IF_ERROR(expr): leaves the function with the error, if there is one.
#define RETURN_IF_ERROR(expr)                          \
  do {                                                 \
    if (auto status_ = (expr); !status_.has_value()) { \
      return std::move(status_).error();               \
    }                                                  \
  } while (false)

/// ASSIGN_OR_RETURN(auto x, expr): binds the value or leaves the function with the error.
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_IMPL(CARPOOL_CONCAT(result_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr)          \
  auto tmp = (expr);                                   \
  if (!tmp.has_value()) return std::move(tmp).error(); \
  lhs = std::move(tmp).value()

}  // namespace carpool
