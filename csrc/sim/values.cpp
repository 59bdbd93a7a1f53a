#include "sim/values.h"

#include <stdexcept>

#include "llcoll/reduce.h"

namespace llcoll::sim {
namespace {

template <class Type>
uint32_t encode(uint32_t number) {
  if constexpr (kFloating<Type>) {
    const float value = static_cast<float>(number);
    return Type::template pack<uint32_t>(value, 0);
  } else {
    return number;
  }
}

template <class Type>
void reduce_as(ReduceOp op, const std::vector<const uint32_t*>& inputs, uint32_t* out, uint32_t num_words) {
  using Unit = Bytes<8>;
  for (uint32_t at = 0; at < num_words; at += 2) {
    Accumulator<Type, AnyOp, Unit> sum(AnyOp{op});
    for (size_t r = 0; r < inputs.size(); ++r) {
      const Unit unit{{inputs[r][at], inputs[r][at + 1]}};
      if (r == 0) {
        sum.first(unit);
      } else {
        sum.next(unit);
      }
    }
    const Unit result = sum.result(static_cast<int>(inputs.size()));
    out[at] = result.words[0];
    out[at + 1] = result.words[1];
  }
}

}  // namespace

void reduce_words(DType dtype, ReduceOp op, const std::vector<const uint32_t*>& inputs, uint32_t* out,
                  uint32_t num_words) {
  switch (dtype) {
    case DType::kFloat32:
      return reduce_as<Float32>(op, inputs, out, num_words);
    case DType::kFloat64:
      return reduce_as<Float64>(op, inputs, out, num_words);
    case DType::kBFloat16:
      return reduce_as<BFloat16>(op, inputs, out, num_words);
    case DType::kFloat16:
      return reduce_as<Float16>(op, inputs, out, num_words);
    case DType::kInt32:
      return reduce_as<Int32>(op, inputs, out, num_words);
    case DType::kInt64:
      return reduce_as<Int64>(op, inputs, out, num_words);
    case DType::kUInt8:
      return reduce_as<UInt8>(op, inputs, out, num_words);
    default:
      throw std::invalid_argument("llcoll._sim: this type has no row in the simulator");
  }
}

void fill_words(DType dtype, Values values, Random& random, uint32_t* words, uint32_t num_words) {
  const bool odd_values = values == Values::kOdd;
  for (uint32_t i = 0; i < num_words; ++i) {
    const uint32_t bits = random.below(1u << 20);
    switch (dtype) {
      case DType::kFloat32:
        words[i] = __builtin_bit_cast(uint32_t, static_cast<float>(bits));
        if (values == Values::kInexact) {  // both signs, exponents far apart
          words[i] = static_cast<uint32_t>(random.next()) & 0x807FFFFFu;
          words[i] |= (100 + random.below(30)) << 23;
        }
        break;
      case DType::kFloat64: {
        const uint64_t wide = __builtin_bit_cast(uint64_t, static_cast<double>(bits) * 1.37);
        words[i] = static_cast<uint32_t>(i % 2 == 0 ? wide : wide >> 32);
        if (i % 2 == 1) {  // both halves of one number
          words[i - 1] = static_cast<uint32_t>(wide);
          if (odd_values && random.one_in(4)) words[i - 1] = ~0u;  // a finite double may have such a half
        }
        break;
      }
      case DType::kBFloat16:
        words[i] = encode<BFloat16>(bits & 127) | encode<BFloat16>(bits >> 7 & 127) << 16;
        break;
      case DType::kFloat16:
        words[i] = encode<Float16>(bits & 1023) | encode<Float16>(bits >> 10) << 16;
        break;
      default:
        words[i] = static_cast<uint32_t>(random.next());
        if (dtype == DType::kBool) words[i] &= 0x01010101u;
    }
    if (odd_values && dtype != DType::kBool && dtype != DType::kFloat64 && random.one_in(4)) words[i] = ~0u;
    if (odd_values && dtype == DType::kFloat64 && i % 2 == 1 && random.one_in(6)) words[i - 1] = words[i] = ~0u;
  }
}

}  // namespace llcoll::sim
