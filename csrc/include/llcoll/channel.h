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
  static_assert(Protocol::kBuffers < Record::kFailed);

  // Every member reads the record; a barrier keeps the one that writes it behind all of them.
  LLC_FN Channel(const Memory& mem, const Group& group, const Scratch& scratch)
      : slot_(scratch.record(group.channel)), record_(mem.load_record(slot_)), buffer_(record_.buffer()) {}

  LLC_FN bool failed() const { return buffer_ == Record::kFailed; }
  LLC_FN uint64_t epoch() const { return record_.epoch; }
  LLC_FN uint32_t buffer() const { return buffer_; }
  LLC_FN uint32_t extent() const { return record_.extent; }

  // A launch that lets its dependents start before its end may still be at work when the next one over this scratch
  // begins, if a kernel that waited for nobody ran in between: that one would run the same epoch again. So a launch
  // knows the id of the one before it where the two may overlap. True: it was at work, and has ended now; whatever was
  // read before must be read again. Each member asks for itself.
  LLC_FN bool await_last_launch(const Memory& mem, const Group& group) {
    if (LLC_LIKELY(!group.may_overlap() || record_.launch() == group.last_launch)) return false;
    record_ = mem.await_record(slot_, group.last_launch);
    buffer_ = record_.buffer();
    return true;
  }

  // The next epoch begins: its number and buffer. The extent stays that of the epoch before, until retire().
  LLC_FN void advance() {
    buffer_ = next(buffer_);
    record_.epoch += 1;
  }
  // The buffer after `buffer`.
  LLC_FN static uint32_t next(uint32_t buffer) { return buffer + 1 == Protocol::kBuffers ? 0 : buffer + 1; }
  LLC_FN void set_extent(uint32_t extent) { record_.extent = extent; }

  // Call behind a group barrier that came after every member's constructor.
  LLC_FN void close(const Memory& mem, const Group& group, bool failed) {
    if (group.rank == 0) {
      const uint32_t buffer = failed ? Record::kFailed : buffer_;
      mem.store_record(slot_, Record::make(record_.epoch, record_.extent, buffer, group.launch));
    }
  }

 private:
  Record* slot_;
  Record record_;
  uint32_t buffer_;
};

}  // namespace LLC_ISA
}  // namespace llcoll
