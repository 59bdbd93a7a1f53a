// Memory policy for CUDA: the only file with PTX. Orders and scopes are named at each access; the algorithms pair them.
#pragma once

#include "llcoll/device_wait.h"
#include "llcoll/lanes.h"
#include "llcoll/layout.h"
#include "llcoll/line.h"
#include "llcoll/wait.h"

namespace llcoll {
inline namespace LLC_ISA {

namespace ptx {

LLC_FN uint64_t global_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// One access of 16 bytes (sm_70, PTX 8.3): single-copy atomic on one GPU and over NVLink. A .v2.b64 would formally be
// two accesses, and a flag could be seen before its payload.
LLC_FN void store_relaxed_16(void* at, uint64_t low, uint64_t high) {
  asm volatile("{ .reg .b128 t; mov.b128 t, {%1, %2}; st.relaxed.sys.global.b128 [%0], t; }" ::"l"(at), "l"(low),
               "l"(high)
               : "memory");
}
LLC_FN void load_relaxed_16(const void* at, uint64_t& low, uint64_t& high) {
  asm volatile("{ .reg .b128 t; ld.relaxed.sys.global.b128 t, [%2]; mov.b128 {%0, %1}, t; }"
               : "=l"(low), "=l"(high)
               : "l"(at)
               : "memory");
}
// Orders what the same thread, and behind a CTA barrier its CTA, reads after it: no fence besides.
LLC_FN void load_acquire_16(const void* at, uint64_t& low, uint64_t& high) {
  asm volatile("{ .reg .b128 t; ld.acquire.sys.global.b128 t, [%2]; mov.b128 {%0, %1}, t; }"
               : "=l"(low), "=l"(high)
               : "l"(at)
               : "memory");
}
// The same within one GPU.
LLC_FN void store_relaxed_gpu_16(void* at, uint64_t low, uint64_t high) {
  asm volatile("{ .reg .b128 t; mov.b128 t, {%1, %2}; st.relaxed.gpu.global.b128 [%0], t; }" ::"l"(at), "l"(low),
               "l"(high)
               : "memory");
}
LLC_FN void load_relaxed_gpu_16(const void* at, uint64_t& low, uint64_t& high) {
  asm volatile("{ .reg .b128 t; ld.relaxed.gpu.global.b128 t, [%2]; mov.b128 {%0, %1}, t; }"
               : "=l"(low), "=l"(high)
               : "l"(at)
               : "memory");
}
LLC_FN void store_relaxed_4(uint32_t* at, uint32_t value) {
  asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
LLC_FN uint32_t load_relaxed_4(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

LLC_FN void store_relaxed_8(void* at, uint64_t value) {
  asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
LLC_FN uint64_t load_relaxed_8(const void* at) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

// To all ranks' memory at once. 16 bytes have the form of four words only: that they stay together is the hardware's
// doing, not the model's; sentinel words and narrow packets do not need it. The words are moved, never computed with.
LLC_FN void multicast_4(void* at, uint32_t value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("multimem.st.relaxed.sys.global.b32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#else
  __trap();
#endif
}
LLC_FN void multicast_8(void* at, uint64_t value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("multimem.st.relaxed.sys.global.b64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
  __trap();
#endif
}
LLC_FN void multicast_16(void* at, Bytes<16> u) {
#if __CUDA_ARCH__ >= 900
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at),
               "f"(__uint_as_float(u.words[0])), "f"(__uint_as_float(u.words[1])), "f"(__uint_as_float(u.words[2])),
               "f"(__uint_as_float(u.words[3]))
               : "memory");
#else
  __trap();
#endif
}

// 16 bytes of a line, added in place. A whole line's 8 lanes must come in one instruction: a scalar or narrower form
// would let a reader see the count of an addition whose elements are still on their way. add.f32 flushes subnormals.
template <LineAdd add>
LLC_FN void add_16(LinePart* at, const LinePart& u) {
#if __CUDA_ARCH__ >= 900
  if constexpr (add == LineAdd::kFloat32) {
    asm volatile("red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at),
                 "f"(__uint_as_float(u.words[0])), "f"(__uint_as_float(u.words[1])), "f"(__uint_as_float(u.words[2])),
                 "f"(__uint_as_float(u.words[3]))
                 : "memory");
  } else if constexpr (add == LineAdd::kFloat16) {
    asm volatile("red.relaxed.sys.global.add.noftz.v4.f16x2 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(u.words[0]),
                 "r"(u.words[1]), "r"(u.words[2]), "r"(u.words[3])
                 : "memory");
  } else {
    asm volatile("red.relaxed.sys.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(u.words[0]),
                 "r"(u.words[1]), "r"(u.words[2]), "r"(u.words[3])
                 : "memory");
  }
#else
  __trap();  // never launched: Topology::line_atomics
#endif
}

// The sum of all ranks' units at a multicast address, added by the switch in an order of its own; 16-bit types in
// float32.
#if __CUDA_ARCH__ >= 900
#define LLC_MULTICAST_SUM(type)                                                            \
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add" type " {%0, %1, %2, %3}, [%4];" \
               : "=r"(u.words[0]), "=r"(u.words[1]), "=r"(u.words[2]), "=r"(u.words[3])    \
               : "l"(at)                                                                   \
               : "memory")
#else
#define LLC_MULTICAST_SUM(type) __trap()
#endif
template <DType dtype>
LLC_FN Bytes<16> multicast_sum_16([[maybe_unused]] const void* at) {
  static_assert(dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16);
  Bytes<16> u{};
  if constexpr (dtype == DType::kFloat32) {
#if __CUDA_ARCH__ >= 900
    float f[4];
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(f[0]), "=f"(f[1]), "=f"(f[2]), "=f"(f[3])
                 : "l"(at)
                 : "memory");
    for (int k = 0; k < 4; ++k) u.words[k] = __float_as_uint(f[k]);
#else
    __trap();
#endif
  } else if constexpr (dtype == DType::kFloat16) {
    LLC_MULTICAST_SUM(".acc::f32.v4.f16x2");
  } else {
    LLC_MULTICAST_SUM(".acc::f32.v4.bf16x2");
  }
  return u;
}
#undef LLC_MULTICAST_SUM

// Plain accesses; volatile, so that the compiler keeps a load above the wait that hides its latency.
LLC_FN Bytes<16> load_plain(const void* at, Bytes<16>*) {
  Bytes<16> u;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(u.words[0]), "=r"(u.words[1]), "=r"(u.words[2]), "=r"(u.words[3])
               : "l"(at));
  return u;
}
LLC_FN Bytes<8> load_plain(const void* at, Bytes<8>*) {
  Bytes<8> u;
  asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(u.words[0]), "=r"(u.words[1]) : "l"(at));
  return u;
}
LLC_FN void store_plain(void* at, Bytes<16> u) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(u.words[0]), "r"(u.words[1]), "r"(u.words[2]),
               "r"(u.words[3])
               : "memory");
}
LLC_FN void store_plain(void* at, Bytes<8> u) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(u.words[0]), "r"(u.words[1]) : "memory");
}

LLC_FN void fence_acq_rel_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

}  // namespace ptx

// The tail of a message and unaligned user data: element by element, out of the way of the aligned path.
template <class T>
LLC_FN uint64_t gather_elements(const char* from, uint64_t offset, uint64_t num_bytes) {
  uint64_t word = 0;
  for (unsigned b = 0; b < 8; b += sizeof(T)) {
    if (offset + b < num_bytes) {
      word |= static_cast<uint64_t>(*reinterpret_cast<const volatile T*>(from + offset + b)) << (8 * b);
    }
  }
  return word;
}
LLC_COLD_FN uint64_t gather_word(const char* from, uint64_t offset, uint64_t num_bytes, uint32_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return gather_elements<uint8_t>(from, offset, num_bytes);
    case 2:
      return gather_elements<uint16_t>(from, offset, num_bytes);
    case 4:
      return gather_elements<uint32_t>(from, offset, num_bytes);
    default:
      return gather_elements<uint64_t>(from, offset, num_bytes);
  }
}
template <class T>
LLC_FN void scatter_elements(char* to, uint64_t offset, uint64_t num_bytes, uint64_t word) {
  for (unsigned b = 0; b < 8; b += sizeof(T)) {
    if (offset + b < num_bytes) *reinterpret_cast<volatile T*>(to + offset + b) = static_cast<T>(word >> (8 * b));
  }
}
LLC_COLD_FN void scatter_word(char* to, uint64_t offset, uint64_t num_bytes, uint32_t element_bytes, uint64_t word) {
  switch (element_bytes) {
    case 1:
      return scatter_elements<uint8_t>(to, offset, num_bytes, word);
    case 2:
      return scatter_elements<uint16_t>(to, offset, num_bytes, word);
    case 4:
      return scatter_elements<uint32_t>(to, offset, num_bytes, word);
    default:
      return scatter_elements<uint64_t>(to, offset, num_bytes, word);
  }
}

// State of a long wait in one register pair, so that the call out of line takes nothing's address: bit 63 stop, bit 62
// published, the rest the time it began.
inline constexpr uint64_t kStopWaiting = uint64_t{1} << 63;
inline constexpr uint64_t kPublished = uint64_t{1} << 62;
inline constexpr uint64_t kPublishAfterNs = 1'000'000;
inline constexpr uint64_t kGraceNs = 200'000'000;
inline constexpr uint64_t kBeatNs = 20'000'000;
inline constexpr uint64_t kWorkNs = 1'000'000;
inline constexpr uint64_t kDrainNs = 50'000;

LLC_COLD_FN void tell_host(const DeviceWait& wait, int culprit, int source, uint64_t epoch) {
  volatile FailureRecord* record = wait.record;
  if (record->valid != 0) return;
  record->culprit = culprit;
  record->source = source;
  record->algorithm = wait.algorithm;
  record->epoch = epoch;
  ptx::fence_acq_rel_sys();
  record->valid = 1;
}

// Whoever learns of an abort tells the others before it leaves: a peer that reads this rank's memory must know of it by
// the time that it sees what is written there afterwards. The first word stays.
LLC_COLD_FN void pass_on_abort(const DeviceWait& wait, uint32_t word) {
  for (int r = 0; r < wait.num_ranks; ++r) {
    uint32_t* at = &wait.controls[r]->aborted;
    if (ptx::load_relaxed_4(at) == 0) ptx::store_relaxed_4(at, word);
  }
  ptx::fence_acq_rel_sys();
}

// Whom `rank` awaits, 0 where it awaits nobody or does not live: a living waiter's beat changes every 1024 polls.
LLC_COLD_FN int living_awaits(const DeviceWait& wait, int rank) {
  const uint32_t beat = ptx::load_relaxed_4(&wait.controls[rank]->beat);
  for (const uint64_t start = ptx::global_ns(); ptx::load_relaxed_4(&wait.controls[rank]->beat) == beat;) {
    if (ptx::global_ns() - start > kBeatNs) return 0;
  }
  return static_cast<int>(ptx::load_relaxed_4(&wait.controls[rank]->awaited));
}

LLC_COLD_FN uint64_t wait_longer(const DeviceWait& wait, uint64_t state, int source, uint64_t epoch) {
  const uint32_t aborted = ptx::load_relaxed_4(&wait.controls[wait.rank]->aborted);
  if (aborted != 0) {
    pass_on_abort(wait, aborted);
    tell_host(wait, static_cast<int>(aborted) - 1, source, epoch);
    return state | kStopWaiting;
  }
  const uint64_t now = ptx::global_ns();
  if (state == 0) return now;
  const uint64_t waited = now - (state & ~kPublished);
  if (waited > kPublishAfterNs) {  // again each time: of a batch of sources, the one still missing changes
    ptx::store_relaxed_4(&wait.controls[wait.rank]->awaited, static_cast<uint32_t>(source + 1));
    ptx::store_relaxed_4(&wait.controls[wait.rank]->beat, static_cast<uint32_t>(now));
    state |= kPublished;
  }
  if (wait.timeout_ns == 0 || waited < wait.timeout_ns + kGraceNs) return state;
  const int found = find_culprit(wait.rank, source, wait.num_ranks, [&](int r) { return living_awaits(wait, r); });
  // A peer that gave up meanwhile does not live either, but has said whom it found.
  const uint32_t told = ptx::load_relaxed_4(&wait.controls[wait.rank]->aborted);
  const uint32_t word = told != 0 ? told : static_cast<uint32_t>(found + 1);
  pass_on_abort(wait, word);
  const int culprit = static_cast<int>(word) - 1;
  tell_host(wait, culprit, source, epoch);
  return state | kStopWaiting;
}

// For waits that cannot tell whom they miss: a peer that awaits nobody.
LLC_COLD_FN int find_idle(const DeviceWait& wait) {
  for (int r = 0; r < wait.num_ranks; ++r) {
    if (r != wait.rank && ptx::load_relaxed_4(&wait.controls[r]->awaited) == 0) return r;
  }
  return wait.rank;
}

// The launch before is at work: waits for its record, then until its other stores (outputs, clears) have drained. Its
// threads issued them before the record, but nothing orders them for us here, and a fence over there would cost each
// call more than its dependents gain: so the last step is a wait of time. A launch that never ran (a graph's branch
// that was not taken) ends the first step by time too: what is left to do behind the trigger waits for nobody.
LLC_COLD_FN Record await_record_of(const Record* at, uint32_t launch) {
  Record record{};
  uint64_t until = ptx::global_ns() + kWorkNs;
  do {
    uint64_t low, high;
    ptx::load_relaxed_gpu_16(at, low, high);
    record = bits_as<Record>(Packet{low, high});
  } while (record.launch() != launch && ptx::global_ns() < until);
  for (until = ptx::global_ns() + kDrainNs; ptx::global_ns() < until;) {
  }
  ptx::fence_acq_rel_sys();
  return record;
}

struct DeviceMemory {
  static constexpr int kWidestUnit = 16;
  static constexpr int kFlagAhead = 0;
  static constexpr int kFlagBuffers = 2;
  static constexpr uint32_t kPollsPerBurst = 1024;
  static constexpr int kPeerBatch = 4;  // peers that one item of a phase loop serves: their round trips overlap
  static constexpr bool kGridEndReleases = true;
  struct Patience {
    uint64_t state = 0;
    uint32_t polls = 0;
  };

  const DeviceWait& wait;

  LLC_FN void store_packet(Packet* at, Packet packet) const { ptx::store_relaxed_16(at, packet.payload, packet.flag); }
  LLC_FN Packet load_packet(const Packet* at) const {
    Packet p;
    ptx::load_relaxed_16(at, p.payload, p.flag);
    return p;
  }
  LLC_FN void store_narrow(NarrowPacket* at, NarrowPacket packet) const {
    ptx::store_relaxed_8(at, __builtin_bit_cast(uint64_t, packet));
  }
  LLC_FN NarrowPacket load_narrow(const NarrowPacket* at) const {
    return __builtin_bit_cast(NarrowPacket, ptx::load_relaxed_8(at));
  }
  LLC_FN void multicast_packet(Packet* at, Packet packet) const {
    ptx::multicast_16(at, __builtin_bit_cast(Bytes<16>, packet));
  }
  LLC_FN void multicast_narrow(NarrowPacket* at, NarrowPacket packet) const {
    ptx::multicast_8(at, __builtin_bit_cast(uint64_t, packet));
  }
  template <class Type>
  LLC_FN Bytes<16> multicast_sum(const Bytes<16>* at) const {
    return ptx::multicast_sum_16<Type::kDType>(at);
  }
  LLC_FN void multicast_unit(Bytes<16>* at, Bytes<16> u) const { ptx::multicast_16(at, u); }
  LLC_FN void multicast_unit(Bytes<8>* at, Bytes<8> u) const { ptx::multicast_8(at, __builtin_bit_cast(uint64_t, u)); }
  LLC_FN void multicast_unit(Bytes<4>* at, Bytes<4> u) const { ptx::multicast_4(at, u.words[0]); }

  LLC_FN void store_unit(Bytes<4>* at, Bytes<4> u) const { ptx::store_relaxed_4(&at->words[0], u.words[0]); }
  LLC_FN Bytes<4> load_unit(const Bytes<4>* at) const { return {{ptx::load_relaxed_4(&at->words[0])}}; }
  LLC_FN void store_unit(Bytes<8>* at, Bytes<8> u) const { ptx::store_relaxed_8(at, __builtin_bit_cast(uint64_t, u)); }
  LLC_FN Bytes<8> load_unit(const Bytes<8>* at) const { return __builtin_bit_cast(Bytes<8>, ptx::load_relaxed_8(at)); }
  LLC_FN Packet load_packet_acquire(const Packet* at) const {
    Packet p;
    ptx::load_acquire_16(at, p.payload, p.flag);
    return p;
  }
  LLC_FN void store_unit(Bytes<16>* at, Bytes<16> u) const {
    ptx::store_relaxed_16(at, u.words[0] | uint64_t{u.words[1]} << 32, u.words[2] | uint64_t{u.words[3]} << 32);
  }
  LLC_FN Bytes<16> load_unit(const Bytes<16>* at) const {
    uint64_t low, high;
    ptx::load_relaxed_16(at, low, high);
    return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
             static_cast<uint32_t>(high >> 32)}};
  }
  template <LineAdd add>
  LLC_FN void add_parts(LinePart* line, uint32_t first, const LinePart (&parts)[1]) const {
    ptx::add_16<add>(line + first, parts[0]);
  }
  LLC_FN void load_parts(const LinePart* line, uint32_t first, LinePart (&parts)[1]) const {
    parts[0] = load_unit(line + first);
  }
  template <class Unit>
  LLC_FN void put(Unit* at, Unit u) const {
    ptx::store_plain(at, u);
  }
  template <class Unit>
  LLC_FN Unit get(const Unit* at) const {
    return ptx::load_plain(at, static_cast<Unit*>(nullptr));
  }
  LLC_FN void fence_release() const { ptx::fence_acq_rel_sys(); }
  LLC_FN void fence_acquire() const { ptx::fence_acq_rel_sys(); }
  LLC_FN void fence() const { ptx::fence_acq_rel_sys(); }

  template <class Unit>
  LLC_FN bool can_access(const char* at) const {
    return reinterpret_cast<uintptr_t>(at) % Unit::kBytes == 0;
  }
  template <class Unit>
  LLC_FN Unit read(const char* at) const {
    return ptx::load_plain(at, static_cast<Unit*>(nullptr));
  }
  template <class Unit>
  LLC_FN void write(char* at, Unit u) const {
    ptx::store_plain(at, u);
  }
  template <class Unit>
  LLC_FN Unit read_part(const char* from, uint64_t offset, uint64_t num_bytes, uint32_t element_bytes) const {
    Unit u;
    for (int w = 0; w < Unit::kWords; w += 2) {
      const uint64_t word = gather_word(from, offset + 4 * w, num_bytes, element_bytes);
      u.words[w] = static_cast<uint32_t>(word);
      u.words[w + 1] = static_cast<uint32_t>(word >> 32);
    }
    return u;
  }
  template <class Unit>
  LLC_FN void write_part(char* to, uint64_t offset, uint64_t num_bytes, uint32_t element_bytes, Unit u) const {
    for (int w = 0; w < Unit::kWords; w += 2) {
      scatter_word(to, offset + 4 * w, num_bytes, element_bytes, u.words[w] | uint64_t{u.words[w + 1]} << 32);
    }
  }

  // The record is private to one channel of one rank. Kernel boundaries order its launches, but for those that overlap:
  // relaxed, one access, so that await_record() may look at it while the launch before still writes.
  template <class R>
  LLC_FN R load_record(const R* at) const {
    uint64_t low, high;
    ptx::load_relaxed_gpu_16(at, low, high);
    return bits_as<R>(Packet{low, high});
  }
  template <class R>
  LLC_FN void store_record(R* at, R record) const {
    const Packet bits = bits_as<Packet>(record);
    ptx::store_relaxed_gpu_16(at, bits.payload, bits.flag);
  }
  LLC_FN Record await_record(const Record* at, uint32_t launch) const { return await_record_of(at, launch); }

  // The load goes out beside the record's and is awaited behind the first sends. A rank that comes late must not find
  // its peers' old packets and go on alone.
  LLC_FN uint32_t load_abort() const { return ptx::load_relaxed_4(wait.own_abort); }
  LLC_FN bool aborted(uint32_t word) const {
    if (LLC_LIKELY(word == 0)) return false;
    pass_on_abort(wait, word);
    tell_host(wait, static_cast<int>(word) - 1, wait.rank, 0);
    return true;
  }
  LLC_FN int find_idle_peer() const { return find_idle(wait); }
  LLC_FN bool keep_polling(Patience& patience) const { return ++patience.polls % kPollsPerBurst != 0; }
  LLC_FN bool wait_on(Patience& patience, int source, uint64_t epoch) const {
    patience.state = wait_longer(wait, patience.state, source, epoch);
    return (patience.state & kStopWaiting) == 0;
  }
  LLC_FN void stop_waiting(const Patience& patience) const {
    if (patience.state & kPublished) ptx::store_relaxed_4(&wait.controls[wait.rank]->awaited, 0);
  }
};

}  // namespace LLC_ISA
}  // namespace llcoll
