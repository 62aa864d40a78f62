// CHECKs for our own mistakes: they print both values and abort. Never for anything a user can
// send.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace carpool::internal {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* text,
                                     const std::string& values) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s\n", file, line, text, values.c_str());
  std::abort();
}

}  // namespace carpool::internal

#define CARPOOL_CHECK(condition)                                                       \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      ::carpool::internal::CheckFailed(__FILE__, __LINE__, #condition, std::string()); \
  } while (false)

#define CARPOOL_CHECK_OP(a, op, b)                                                      \
  do {                                                                                  \
    const auto& check_a_ = (a);                                                         \
    const auto& check_b_ = (b);                                                         \
    if (!(check_a_ op check_b_)) [[unlikely]]                                           \
      ::carpool::internal::CheckFailed(__FILE__, __LINE__, #a " " #op " " #b,           \
                                       fmt::format(" ({} vs {})", check_a_, check_b_)); \
  } while (false)

#define CARPOOL_CHECK_EQ(a, b) CARPOOL_CHECK_OP(a, ==, b)
#define CARPOOL_CHECK_LE(a, b) CARPOOL_CHECK_OP(a, <=, b)
#define CARPOOL_CHECK_LT(a, b) CARPOOL_CHECK_OP(a, <, b)

#ifdef CARPOOL_DEBUG
#define CARPOOL_DCHECK(condition) CARPOOL_CHECK(condition)
#else
#define CARPOOL_DCHECK(condition) \
  do {                            \
  } while (false)
#endif
