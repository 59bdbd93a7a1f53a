// Errors: std::runtime_error whose text begins with the class name that the Python layer raises.
#pragma once

#include <cerrno>
#include <sstream>
#include <string>

namespace llcoll {

enum class ErrorKind { kError, kTimeout, kMismatch, kAborted };

// Throws std::runtime_error("LlcollError: <text>") and so on. The prefix is parsed by Python: never change it alone.
[[noreturn]] void fail(ErrorKind kind, const std::string& text);

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// The text is built only on failure, so a check costs one branch. Out of line, to keep the callers small.
template <class... Parts>
[[noreturn, gnu::noinline, gnu::cold]] void fail_with(const Parts&... parts) {
  fail(ErrorKind::kError, concat(parts...));
}

template <class... Parts>
inline void check_that(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fail_with(parts...);
}

// "No space left on device (errno 28)". Safe with threads.
std::string errno_text(int error);

// check_that for a system call: `ok` holds the call, and ": <text of errno>" is added to the parts.
template <class... Parts>
inline void check_errno(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]] {
    const int error = errno;
    fail_with(parts..., ": ", errno_text(error));
  }
}

// `text` without a leading "LlcollError: ", for errors that are wrapped in another.
std::string without_prefix(const std::string& text);

}  // namespace llcoll
