#include "cpu/cross_check.h"

#include <algorithm>
#include <cstring>

#include "check.h"
#include "exchange_plan.h"
#include "llcoll/wait.h"

namespace llcoll {
namespace {

void set_text(Mail& mail, const std::string& text) {
  const size_t length = std::min(text.size(), sizeof(mail.text) - 1);
  std::memcpy(mail.text, text.data(), length);
  mail.text[length] = 0;
}

std::string list_text(const char* what, const size_t* splits, int num_ranks) {
  if (splits == nullptr) return "";
  std::string text = what;
  for (int r = 0; r < num_ranks; ++r) text += concat(r == 0 ? " [" : ", ", splits[r]);
  return text + "]";
}

std::string describe(const CollectiveCall& call, uint64_t epoch, int num_ranks) {
  const bool has_splits = call.input_splits != nullptr || call.output_splits != nullptr;
  const bool has_root = call.kind == Collective::kBroadcast || call.kind == Collective::kReduce;
  const std::string count = has_splits ? "" : concat(call.numel, " ");
  return concat(name_of(call.kind), " of ", count, name_of(call.dtype), ", ", name_of(call.op), ", ",
                name_of(call.algorithm), has_root ? concat(", root ", call.root) : "", ", epoch ", epoch,
                list_text(", elements out", call.input_splits, num_ranks),
                list_text(", elements in", call.output_splits, num_ranks));
}

// The poll of a mailbox is an ordinary bounded wait.
struct MailMemory {
  using Patience = HostWait::Patience;
  CpuWait& wait;
  bool keep_polling(Patience& patience) const { return ++patience.polls % 64 != 0; }
  bool wait_on(Patience& patience, int source, uint64_t epoch) const { return wait.wait_on(patience, source, epoch); }
  void stop_waiting(const Patience& patience) const {
    if (patience.published) wait.stop_waiting();
  }
};

}  // namespace

bool CrossCheck::exchange(const Mail& own) {
  const uint64_t call = ++num_calls_;
  Mail& mine = boxes_[rank_]->mail[call & 1];
  mine.numel = own.numel;
  mine.epoch = own.epoch;
  mine.dtype = own.dtype;
  mine.op = own.op;
  mine.algorithm = own.algorithm;
  mine.raised = own.raised;
  mine.kind = own.kind;
  mine.root = own.root;
  std::memcpy(mine.gives, own.gives, sizeof(mine.gives));
  std::memcpy(mine.takes, own.takes, sizeof(mine.takes));
  std::memcpy(mine.text, own.text, sizeof(mine.text));
  mine.call.store(call, std::memory_order_release);  // pairs with the acquire below
  const MailMemory mem{wait_};
  for (size_t r = 0; r < boxes_.size(); ++r) {
    const Mail& theirs = boxes_[r]->mail[call & 1];
    if (!wait_until(
            mem, call, [&] { return theirs.call.load(std::memory_order_acquire) >= call; },
            [&] { return static_cast<int>(r); })) {
      return false;
    }
  }
  return true;
}

void CrossCheck::compare(const CollectiveCall& call, uint64_t epoch) {
  Mail own{};
  // With splits, or a root, the pairs' sizes tell; `numel` would differ for no reason.
  own.numel = call.kind == Collective::kAllReduce ? call.numel : 0;
  own.kind = static_cast<int32_t>(call.kind);
  own.root = call.root;
  pair_sizes(call, rank_, static_cast<int>(boxes_.size()), own.gives, own.takes);
  own.epoch = epoch;
  own.dtype = static_cast<int32_t>(call.dtype);
  own.op = static_cast<int32_t>(call.op);
  own.algorithm = static_cast<int32_t>(call.algorithm);
  set_text(own, describe(call, epoch, static_cast<int>(boxes_.size())));
  if (!exchange(own)) {
    wait_.throw_if_failed();
    return;
  }
  const uint64_t parity = num_calls_ & 1;
  const Mail& first = boxes_[0]->mail[parity];
  bool same = true;
  std::string texts;
  for (size_t r = 0; r < boxes_.size(); ++r) {
    const Mail& m = boxes_[r]->mail[parity];
    same = same && m.raised == 0 && m.numel == first.numel && m.epoch == first.epoch && m.dtype == first.dtype &&
           m.op == first.op && m.algorithm == first.algorithm && m.kind == first.kind && m.root == first.root;
    for (size_t peer = 0; peer < boxes_.size(); ++peer) {
      same = same && m.gives[peer] == boxes_[peer]->mail[parity].takes[r];
    }
    texts += concat(r == 0 ? "" : "; ", "rank ", r, ": ", m.raised ? "raised " : "",
                    std::string(m.text, strnlen(m.text, sizeof(m.text))));
  }
  if (!same) fail(ErrorKind::kMismatch, concat("ranks differ in call ", num_calls_, ": ", texts));
}

void CrossCheck::announce(const std::string& what) {
  Mail own{};
  own.raised = 1;
  set_text(own, what);
  exchange(own);
}

}  // namespace llcoll
