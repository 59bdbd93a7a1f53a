// How an addition to a line changes one word: what memories that only imitate the L2 add by.
#pragma once

#include <type_traits>

#include "llcoll/element.h"
#include "llcoll/line.h"

namespace llcoll {

template <LineAdd add>
uint32_t add_words(uint32_t a, uint32_t b) {
  if constexpr (add == LineAdd::kFloat32) {
    return bits_as<uint32_t>(bits_as<float>(a) + bits_as<float>(b));
  } else {
    using Type = std::conditional_t<add == LineAdd::kFloat16, Float16, BFloat16>;
    uint32_t sum = 0;
    for (int k = 0; k < 2; ++k) {
      sum |= Type::template pack<uint32_t>(
          Type::template unpack<uint32_t>(a, k) + Type::template unpack<uint32_t>(b, k), k);
    }
    return sum;
  }
}

}  // namespace llcoll
