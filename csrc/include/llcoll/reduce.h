// Operators and the accumulator of one unit. Bits are the contract: accumulate in rank order starting from rank 0's
// value (not from zero: -0 + -0 is -0), no contraction, one rounding at the end; the same on CPU and GPU.
#pragma once

#include "llcoll/element.h"

namespace llcoll {
inline namespace LLC_ISA {

// The operator fixed at compile time: what almost every call uses.
struct SumOp {
  static constexpr ReduceOp value = ReduceOp::kSum;
};
// The operator known at run time.
struct AnyOp {
  ReduceOp value = ReduceOp::kSum;
};

template <class Type>
inline constexpr bool kFloating = is_floating(Type::kDType);

// Order of floating point with -0 below +0 and NaN winning (pack() makes it canonical).
template <class Word, class F>
LLC_FN F float_min_max(F a, F b, bool want_max) {
  using W = Rebind<Word, F>;
  const F ordered = want_max ? choose(a > b, a, b) : choose(a < b, a, b);
  const W a_bits = bits_as<W>(a), b_bits = bits_as<W>(b);
  const F if_equal = bits_as<F>(want_max ? W(a_bits & b_bits) : W(a_bits | b_bits));
  return choose(a != a, a, choose(a == b, if_equal, ordered));
}

template <class Type, class A>
LLC_FN A combine(ReduceOp op, A a, A b) {
  if constexpr (std::is_same_v<Type, Bool>) {
    return op == ReduceOp::kProd || op == ReduceOp::kMin ? A(a & b) : A(a | b);
  } else {
    switch (op) {
      case ReduceOp::kProd:
        return a * b;
      case ReduceOp::kMin:
      case ReduceOp::kMax:
        if constexpr (kFloating<Type>) {
          return float_min_max<typename Type::Word>(a, b, op == ReduceOp::kMax);
        } else {
          const auto sa = Type::signed_of(a), sb = Type::signed_of(b);
          return op == ReduceOp::kMax ? choose(sa > sb, a, b) : choose(sa < sb, a, b);
        }
      default:
        return a + b;
    }
  }
}

// avg: the accumulator divided by N in its own type; integers truncate toward zero.
template <class Type, class A>
LLC_FN A finish(ReduceOp op, A a, int num_ranks) {
  if constexpr (!std::is_same_v<Type, Bool>) {
    if (op == ReduceOp::kAvg) {
      if constexpr (kFloating<Type>) {
        using T = std::conditional_t<sizeof(typename Type::Word) == 8, double, float>;
        return a / static_cast<T>(num_ranks);
      } else {
        using T = std::make_signed_t<typename Type::Word>;
        return bits_as<A>(Type::signed_of(a) / static_cast<T>(num_ranks));
      }
    }
  }
  return a;
}

template <class Type, class Op, class Unit>
class Accumulator {
  using Word = typename Type::Word;
  using W = Lanes<Word, kNumLanes<Word, Unit::kBytes>>;
  static constexpr int kVectors = Unit::kBytes / int{sizeof(W)};
  struct Split {
    W w[kVectors];
  };
  static_assert(sizeof(Split) == sizeof(Unit));

 public:
  LLC_FN explicit Accumulator(Op op = {}) : op_(op) {}

  LLC_FN void first(Unit unit) {
    const Split in = bits_as<Split>(unit);
    LLC_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      LLC_UNROLL
      for (int k = 0; k < Type::kPerWord; ++k) acc_[v][k] = Type::template unpack<W>(in.w[v], k);
    }
  }

  LLC_FN void next(Unit unit) {
    const Split in = bits_as<Split>(unit);
    LLC_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      LLC_UNROLL
      for (int k = 0; k < Type::kPerWord; ++k) {
        acc_[v][k] = combine<Type>(op_.value, acc_[v][k], Type::template unpack<W>(in.w[v], k));
      }
    }
  }

  LLC_FN Unit result(int num_ranks) const {
    Split out;
    LLC_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      out.w[v] = Type::template pack<W>(finish<Type>(op_.value, acc_[v][0], num_ranks), 0);
      LLC_UNROLL
      for (int k = 1; k < Type::kPerWord; ++k) {
        out.w[v] |= Type::template pack<W>(finish<Type>(op_.value, acc_[v][k], num_ranks), k);
      }
    }
    return bits_as<Unit>(out);
  }

 private:
  Op op_;
  typename Type::template Acc<W> acc_[kVectors][Type::kPerWord]{};
};

// What a failed call leaves in the output: NaN for floating types, 0 for integers.
template <class Type, class Unit>
LLC_FN Unit poison() {
  Unit unit{};
  for (int i = 0; i < Unit::kWords; ++i) {
    unit.words[i] = sizeof(typename Type::Word) == 8 ? static_cast<uint32_t>(uint64_t{Type::kNan} >> (32 * (i & 1)))
                                                     : static_cast<uint32_t>(Type::kNan);
  }
  return unit;
}

}  // namespace LLC_ISA
}  // namespace llcoll
