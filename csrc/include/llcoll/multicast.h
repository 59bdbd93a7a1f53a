// LL and sentinel whose broadcasts are ONE store to the group's multicast address (NVLink SHARP), which every rank's
// memory receives, this rank's own too: its own region is written and never read. What is sent to one peer alone goes
// as before, and so does everything that is received, so ranks and launches may mix both forms.
#pragma once

#include "llcoll/sentinel.h"

namespace llcoll {
inline namespace LLC_ISA {

// `multicast` of the scratch is the address of all ranks' scratches; only where there is one.
template <class Memory>
struct LlMulticast : Ll<Memory> {
  using Unit = typename Ll<Memory>::Unit;

  template <class Type, class Group>
  struct Stage : Ll<Memory>::template Stage<Type, Group> {
    // relaxed.sys; pairs with the load in try_recv as send() does. That 16 bytes arrive whole is not in the model for
    // multicast stores: init tests it, and does without multicast where they tear.
    LLC_FN void bcast(int phase, uint32_t i, Unit w, int) const {
      const uint32_t region = push_region(phase, this->scratch.rank, this->scratch.shape.num_ranks);
      this->mem.multicast_packet(reinterpret_cast<Packet*>(this->scratch.multicast + this->slot(region, i)),
                                 Packet{bits_as<uint64_t>(w), this->epoch});
    }
  };
};

template <class Memory>
struct SentinelMulticast : Sentinel<Memory> {
  using Unit = typename Sentinel<Memory>::Unit;

  template <class Type, class Group>
  struct Stage : Sentinel<Memory>::template Stage<Type, Group> {
    // relaxed.sys per word, as send(): words may arrive in any order. retire() clears this rank's own region too.
    LLC_FN void bcast(int phase, uint32_t i, Unit w, int) const {
      const uint32_t region = push_region(phase, this->scratch.rank, this->scratch.shape.num_ranks);
      char* at = this->scratch.multicast + this->base + (uint64_t{region} * this->stride + i) * sizeof(Unit);
      this->mem.multicast_unit(reinterpret_cast<Unit*>(at), without_sentinel<Type>(w));
    }
  };
};

}  // namespace LLC_ISA
}  // namespace llcoll
