// What the calls between ncclGroupStart and ncclGroupEnd leave to its end, and the order of llcoll's and NCCL's calls.
#pragma once

#include <vector>

#include "llcoll/llcoll.h"
#include "nccl/abi.h"
#include "nccl/comms.h"

namespace llcoll::nccl {

// A call that llcoll has.
struct Taken {
  llcoll_comm_t comm;
  llcoll_call_t call;
};

// A call that NCCL has, of a communicator that llcoll joined.
struct HandedOn {
  llcoll_comm_t comm;
  Stream stream;
};

struct Group {
  int depth = 0;
  std::vector<Taken> calls;
  std::vector<HandedOn> handed_on;  // in the order of the calls; what follows its like is left out
  std::vector<Comm*> made;          // where NCCL writes the communicators of this group
  std::vector<Comm*> left_alone;
};
extern thread_local Group group;
extern thread_local constinit int num_inside_real;  // NCCL's own functions may call each other by their public names

class InsideReal {
 public:
  InsideReal() { ++num_inside_real; }
  ~InsideReal() { --num_inside_real; }
  InsideReal(const InsideReal&) = delete;
  InsideReal& operator=(const InsideReal&) = delete;
};

// In NCCL's terms; an error becomes last_error() of this thread.
Result result_of(llcoll_result_t result);
// nullptr: there was none.
const char* last_error();

// NCCL runs the calls of a communicator in their order whatever their streams. So a call that it gets takes its place
// among those that llcoll gets: a rank where the two ran side by side might leave neither the room that it needs.
class InOrder {
 public:
  // Around one call; in a group it is noted for the end. `entry` may be null.
  InOrder(const Entry* entry, Stream stream);
  // Around the end of a group.
  explicit InOrder(const std::vector<HandedOn>& calls);
  ~InOrder();
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;

 private:
  void begin(const HandedOn& call);
  std::vector<HandedOn> begun_;
};

}  // namespace llcoll::nccl
