// Units, packets and bit patterns that travel. Everything a protocol stores is one of these.
#pragma once

#include <cstddef>
#include <cstdint>

#include "llcoll/types.h"

// LLC_ISA names an inline namespace, so that one program can hold the same templates compiled for several instruction
// sets: without it the linker would keep one copy of each and could pick one that this machine cannot run.
#ifndef LLC_ISA
#define LLC_ISA portable
#endif

// LLC_FN: code that runs where the collective runs. LLC_SHARED_FN: arithmetic that host and device must agree on.
// LLC_COLD_FN: the way out of a failed wait, kept out of the instruction stream of the good path. LLC_UNROLL: short
// constant loops.
#if defined(__CUDACC__)
#define LLC_FN __device__ __forceinline__
#define LLC_COLD_FN inline __device__ __noinline__
#define LLC_SHARED_FN __host__ __device__ constexpr
#define LLC_UNROLL _Pragma("unroll")
#else
#define LLC_FN inline __attribute__((always_inline))
#define LLC_COLD_FN inline __attribute__((noinline, cold))
#define LLC_SHARED_FN constexpr
#define LLC_UNROLL _Pragma("GCC unroll 16")
#endif

// Moves the other way out of the instruction stream: at this scale a kernel waits for its own code.
#define LLC_LIKELY(condition) __builtin_expect(static_cast<bool>(condition), true)
#define LLC_UNLIKELY(condition) __builtin_expect(static_cast<bool>(condition), false)

namespace llcoll {
inline namespace LLC_ISA {

// One unit of payload: what one slot carries. The words are the grain of the sentinel test.
template <int num_bytes>
struct alignas(num_bytes) Bytes {
  static_assert(num_bytes >= 4 && (num_bytes & (num_bytes - 1)) == 0);
  static constexpr int kBytes = num_bytes;
  static constexpr int kWords = num_bytes / 4;
  uint32_t words[kWords];
};

// 8 bytes of payload and an 8-byte flag. A reader may trust the payload once it saw the flag only because both travel
// in ONE 16-byte access (CUDA) or because the flag is a release store behind the payload (CPU). Two separate words
// would be wrong data: the flag can overtake.
struct alignas(16) Packet {
  uint64_t payload;
  uint64_t flag;
};
static_assert(sizeof(Packet) == 16 && sizeof(Bytes<8>) == 8 && sizeof(Bytes<16>) == 16);

// The same where a link keeps only 8 bytes together. Its flag wraps: see LLBuffer.
struct alignas(8) NarrowPacket {
  uint32_t payload;
  uint32_t flag;
};
static_assert(sizeof(NarrowPacket) == 8);

// The empty sentinel slot: all ones in every byte, a NaN in every floating type, so one cleared buffer serves all.
inline constexpr uint32_t kSentinelWord = 0xFFFFFFFFu;

}  // namespace LLC_ISA
}  // namespace llcoll
