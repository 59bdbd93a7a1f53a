// A 128-byte line of 8 parts, and how parts are added: what memory policies and LL128 agree on.
//
//   add_parts<add>(line, first, parts)   adds parts [first, first + n) of a line, all 8 parts of a line as one
//   load_parts(line, first, parts)       reads them, all 8 as one
// On CUDA eight neighbouring lanes bring one part each, in one converged instruction.
#pragma once

#include "llcoll/word.h"

namespace llcoll {
inline namespace LLC_ISA {

inline constexpr int kLineParts = 8;
using LinePart = Bytes<16>;
static_assert(kLineParts * sizeof(LinePart) == 128);

enum class LineAdd { kFloat32, kFloat16, kBFloat16 };

}  // namespace LLC_ISA
}  // namespace llcoll
