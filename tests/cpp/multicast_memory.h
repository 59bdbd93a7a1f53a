// Host memory with a multicast address: what is stored there goes to every rank, one after the other, in an order that
// differs from store to store; a sum is taken from the last rank down.
#pragma once

#include "llcoll/element.h"
#include "llcoll/host_memory.h"

namespace {

using namespace llcoll;

struct MulticastMemory : HostMemory {
  // Never dereferenced.
  static char* base() { return reinterpret_cast<char*>(uintptr_t{1} << 46); }

  char* const* memory;
  int num_ranks;
  mutable uint32_t turn = 0;

  MulticastMemory(HostWait* w, char* const* m, int n) : HostMemory{w}, memory(m), num_ranks(n) {}

  template <class T, class Store>
  void at_each(T* at, Store&& store) const {
    const auto offset = reinterpret_cast<char*>(at) - base();
    ++turn;
    for (int r = 0; r < num_ranks; ++r) store(reinterpret_cast<T*>(memory[(r + turn) % num_ranks] + offset));
  }
  void multicast_packet(Packet* at, Packet packet) const {
    at_each(at, [&](Packet* p) { store_packet(p, packet); });
  }
  template <class Unit>
  void multicast_unit(Unit* at, const Unit& unit) const {
    at_each(at, [&](Unit* p) { store_unit(p, unit); });
  }
  template <class Type, class Unit>
  Unit multicast_sum(const Unit* at) const {
    static_assert(Type::kDType == DType::kFloat32);
    const auto offset = reinterpret_cast<const char*>(at) - base();
    float sum[sizeof(Unit) / 4] = {};
    for (int r = num_ranks - 1; r >= 0; --r) {
      float one[sizeof(Unit) / 4];
      std::memcpy(one, memory[r] + offset, sizeof one);
      for (unsigned k = 0; k < sizeof(Unit) / 4; ++k) sum[k] += one[k];
    }
    return __builtin_bit_cast(Unit, sum);
  }
};

}  // namespace
