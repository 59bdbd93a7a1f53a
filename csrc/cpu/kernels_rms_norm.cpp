// The norm of rows for one instruction set (llcoll/rms_norm.h has the arithmetic). Compiled once per set.
#include "cpu/rms_norm.h"

#include <cstring>

#include "llcoll/rms_norm.h"

namespace llcoll {
inline namespace LLC_ISA {
namespace {

using Unit = Bytes<64>;
using W = Lanes<uint32_t, kNumLanes<uint32_t, Unit::kBytes>>;
using F = Rebind<float, W>;
constexpr int kVectors = sizeof(Unit) / sizeof(W);
constexpr int kWords = Unit::kWords;
struct Split {
  W w[kVectors];
};

// A unit of a row; what lies past its end is zero, and is not written.
Split load(const char* row, uint32_t at, uint32_t row_bytes) {
  Split unit{};
  const uint32_t left = row_bytes - at;
  if (LLC_LIKELY(left >= sizeof(unit))) {
    std::memcpy(&unit, row + at, sizeof(unit));
  } else {
    std::memcpy(&unit, row + at, left);
  }
  return unit;
}
void store(char* row, uint32_t at, uint32_t row_bytes, const Split& unit) {
  const uint32_t left = row_bytes - at;
  if (LLC_LIKELY(left >= sizeof(unit))) {
    std::memcpy(row + at, &unit, sizeof(unit));
  } else {
    std::memcpy(row + at, &unit, left);
  }
}

// One level of the tree; `to` and `from` do not overlap.
void halve(float* __restrict to, const float* __restrict from, uint32_t num_results) {
  for (uint32_t i = 0; i < num_results; ++i) to[i] = from[2 * i] + from[2 * i + 1];
}

// `parts` holds n values behind the first levels of the tree; `other` is as large. Both have room for the power of two.
float tree_sum(float* parts, float* other, uint32_t n) {
  uint32_t size = 1;
  while (size < n) size *= 2;
  for (uint32_t i = n; i < size; ++i) parts[i] = 0;
  for (; size > 1; size /= 2) {
    halve(other, parts, size / 2);
    float* const swap = parts;
    parts = other;
    other = swap;
  }
  return parts[0];
}

// work: three buffers of work_floats(num_columns) each.
template <class Type>
void norm_row(const NormCall& call, size_t row, float* work, uint32_t work_floats) {
  constexpr uint32_t kBytes = 4 / Type::kPerWord;
  const uint32_t row_bytes = call.num_columns * kBytes;
  const size_t offset = row * row_bytes;
  const char* input = static_cast<const char*>(call.input) + offset;
  const char* weight = static_cast<const char*>(call.weight);
  float* squares = work;
  const char* rows = input;  // what is normalised
  if (call.residual != nullptr) rows = static_cast<char*>(call.residual_out) + offset;
  uint32_t num_words = 0;
  for (uint32_t at = 0; at < row_bytes; at += sizeof(Unit), num_words += kWords) {
    Split unit = load(input, at, row_bytes);
    if (call.residual != nullptr) {
      const Split residual = load(static_cast<const char*>(call.residual) + offset, at, row_bytes);
      for (int v = 0; v < kVectors; ++v) {
        W sum{};
        LLC_UNROLL
        for (int k = 0; k < Type::kPerWord; ++k) {
          sum |= Type::template pack<W>(
              Type::template unpack<W>(unit.w[v], k) + Type::template unpack<W>(residual.w[v], k), k);
        }
        unit.w[v] = sum;
      }
      store(static_cast<char*>(call.residual_out) + offset, at, row_bytes, unit);
    }
    for (int v = 0; v < kVectors; ++v) {
      const F first = Type::template unpack<W>(unit.w[v], 0);
      F square = first * first;
      if constexpr (Type::kPerWord == 2) {  // the first level of the tree: neighbours share a word
        const F second = Type::template unpack<W>(unit.w[v], 1);
        square = square + second * second;
      }
      std::memcpy(squares + num_words + v * (kWords / kVectors), &square, sizeof(square));
    }
  }
  const float total = tree_sum(squares, work + work_floats, num_words);
  const float scale = inverse_root(total, call.num_columns, call.eps);
  float* y_row = work + 2 * work_floats;  // fp8: the row before its rounding
  for (uint32_t at = 0; at < row_bytes; at += sizeof(Unit)) {
    const Split unit = load(rows, at, row_bytes);
    const Split factor = load(weight, at, row_bytes);
    Split out{};
    for (int v = 0; v < kVectors; ++v) {
      LLC_UNROLL
      for (int k = 0; k < Type::kPerWord; ++k) {
        const F y = (Type::template unpack<W>(unit.w[v], k) * scale) *
                    (Type::template unpack<W>(factor.w[v], k) + call.weight_bias);
        if (call.kind == NormOutput::kSame) {
          out.w[v] |= Type::template pack<W>(y, k);
        } else {
          float lanes[kWords / kVectors];
          std::memcpy(lanes, &y, sizeof(y));
          float* to = y_row + at / kBytes + v * (kWords / kVectors) * Type::kPerWord + k;
          for (int l = 0; l < kWords / kVectors; ++l) to[l * Type::kPerWord] = lanes[l];
        }
      }
    }
    if (call.kind == NormOutput::kSame) store(static_cast<char*>(call.output) + offset, at, row_bytes, out);
  }
  if (call.kind == NormOutput::kSame) return;
  float divisor = 1;
  if (call.kind == NormOutput::kFp8) {
    divisor = *call.scale;
  } else {
    float largest = 0;
    for (uint32_t i = 0; i < call.num_columns; ++i) {
      const float magnitude = __builtin_fabsf(y_row[i]);
      largest = magnitude > largest ? magnitude : largest;
    }
    divisor = call.scales[row] = row_scale(largest);
  }
  auto* output = static_cast<uint8_t*>(call.output) + row * call.num_columns;
  for (uint32_t i = 0; i < call.num_columns; ++i) output[i] = static_cast<uint8_t>(fp8_of(y_row[i], divisor));
}

template <class Type>
void norm_rows(const NormCall& call, float* work, uint32_t work_floats) {
  for (size_t row = 0; row < call.num_rows; ++row) norm_row<Type>(call, row, work, work_floats);
}

}  // namespace

void cpu_rms_norm(const NormCall& call, float* work, uint32_t work_floats) {
  switch (call.dtype) {
    case DType::kFloat32:
      return norm_rows<Float32>(call, work, work_floats);
    case DType::kFloat16:
      return norm_rows<Float16>(call, work, work_floats);
    default:
      return norm_rows<BFloat16>(call, work, work_floats);
  }
}

}  // namespace LLC_ISA
}  // namespace llcoll
