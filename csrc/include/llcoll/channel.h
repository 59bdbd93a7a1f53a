// One channel's record and its place in the scratch: all epoch discipline is here.
//
// A rank may send into a buffer again only once every peer has read it. Nobody acknowledges; the rule that stands for
// it: each rank receives from each peer in every epoch, by members ordered (kernel boundary or group barrier) before
// its next sends. So a rank that sends in epoch e knows that every peer has finished e - 1 - 2 * ahead, and the number
// of buffers follows: LL 2, sentinel 3 (one is being cleared), staged flag 2 * (ahead + 1).
#pragma once

#include "llcoll/layout.h"

namespace llcoll {
inline namespace LLC_ISA {

template <class Protocol, class Memory, class Group>
class Channel {
 public:
  // Every member reads the record; the barrier keeps the one that writes it in close() behind all of them.
  LLC_FN Channel(const Memory& mem, const Group& group, const Scratch& scratch)
      : record_(mem.load_record(scratch.record(group.channel))), slot_(scratch.record(group.channel)) {}

  LLC_FN bool failed() const { return record_.failed != 0; }
  LLC_FN uint64_t epoch() const { return record_.epoch; }
  LLC_FN uint32_t buffer() const { return record_.buffer; }
  LLC_FN uint32_t extent() const { return record_.extent; }

  // The next epoch begins: its number and buffer. The extent stays that of the epoch before, until retire().
  LLC_FN void advance(uint32_t num_buffers) {
    record_.epoch += 1;
    record_.buffer = static_cast<uint16_t>(record_.buffer + 1u == num_buffers ? 0 : record_.buffer + 1u);
  }
  LLC_FN void set_extent(uint32_t extent) { record_.extent = extent; }

  // Call behind a group barrier that came after every member's constructor.
  LLC_FN void close(const Memory& mem, const Group& group, bool failed) {
    record_.failed |= static_cast<uint16_t>(failed);
    if (group.rank == 0) mem.store_record(slot_, record_);
  }

 private:
  Record record_;
  Record* slot_;
};

}  // namespace LLC_ISA
}  // namespace llcoll
