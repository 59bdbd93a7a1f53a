#include "check.h"

#include <stdexcept>
#include <system_error>

namespace llcoll {
namespace {

const char* prefix_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kTimeout:
      return "CollectiveTimeout: ";
    case ErrorKind::kMismatch:
      return "CollectiveMismatch: ";
    case ErrorKind::kAborted:
      return "CollectiveAborted: ";
    case ErrorKind::kError:
      break;
  }
  return "LlcollError: ";
}

}  // namespace

void fail(ErrorKind kind, const std::string& text) { throw std::runtime_error(prefix_of(kind) + text); }

std::string errno_text(int error) { return concat(std::generic_category().message(error), " (errno ", error, ")"); }

std::string without_prefix(const std::string& text) {
  const std::string prefix = prefix_of(ErrorKind::kError);
  return text.compare(0, prefix.size(), prefix) == 0 ? text.substr(prefix.size()) : text;
}

}  // namespace llcoll
