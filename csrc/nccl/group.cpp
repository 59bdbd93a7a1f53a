#include "nccl/group.h"

#include <string>

#include "nccl/counters.h"

namespace llcoll::nccl {
namespace {

thread_local std::string error_text;

}  // namespace

thread_local Group group;
thread_local constinit int num_inside_real = 0;

Result result_of(llcoll_result_t result) {
  if (result == LLCOLL_SUCCESS) return kSuccess;
  error_text = std::string("llcoll: ") + llcoll_last_error();
  log_line("%s", error_text.c_str());
  return result == LLCOLL_ERROR ? kInvalidUsage : kRemoteError;
}

const char* last_error() { return error_text.empty() ? nullptr : error_text.c_str(); }

InOrder::InOrder(const Entry* entry, Stream stream) {
  if (entry == nullptr || entry->comm == nullptr || num_inside_real != 0) return;
  if (group.depth == 0) {
    begin({entry->comm, stream});
    return;
  }
  std::vector<HandedOn>& all = group.handed_on;
  if (all.empty() || all.back().comm != entry->comm || all.back().stream != stream) {
    all.push_back({entry->comm, stream});
  }
}

InOrder::InOrder(const std::vector<HandedOn>& calls) {
  for (const HandedOn& call : calls) begin(call);
}

// Of each communicator the stream that was entered last: NCCL's part of a group ends on all of its streams at once.
InOrder::~InOrder() {
  for (size_t i = 0; i < begun_.size(); ++i) {
    bool is_last = true;
    for (size_t j = i + 1; j < begun_.size(); ++j) is_last = is_last && begun_[j].comm != begun_[i].comm;
    if (is_last) result_of(llcoll_order_end(begun_[i].comm, begun_[i].stream));
  }
}

void InOrder::begin(const HandedOn& call) {
  if (result_of(llcoll_order_begin(call.comm, call.stream)) == kSuccess) begun_.push_back(call);
}

}  // namespace llcoll::nccl
