#include "nccl/comms.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "nccl/bootstrap.h"
#include "nccl/counters.h"
#include "nccl/real.h"

namespace llcoll::nccl {
namespace {

constexpr size_t kDefaultMaxBytes = size_t{1} << 20;
constexpr size_t kScratchBytes = size_t{32} << 20;
constexpr int kMaxRanks = 72;

struct Table {
  std::mutex mutex;
  std::map<Comm, Entry*> entries;
};

// Never destroyed: threads may still call while the process ends.
Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

// Counts changes: what a thread remembers of an older generation is void.
std::atomic<uint64_t> generation{1};

struct LastFound {
  uint64_t generation = 0;
  Comm comm = nullptr;
  const Entry* entry = nullptr;
};
thread_local LastFound last_found;

bool is_on_host() {
  const char* text = std::getenv("LLCOLL_NCCL_TEST_HOST");
  return text != nullptr && *text == '1';
}

llcoll_comm_t make(Comm comm, const Entry& entry) {
  const bool on_host = is_on_host();
  int device = 0;
  if (!on_host && real().CommCuDevice(comm, &device) != kSuccess) return nullptr;
  const auto bootstrap = on_host ? make_host_bootstrap(comm) : make_gpu_bootstrap(comm, device, entry.num_ranks);
  if (bootstrap == nullptr) return nullptr;
  llcoll_config_t config = LLCOLL_CONFIG_INITIALIZER;
  config.device = on_host ? LLCOLL_HOST : device;
  config.name = "NCCL front";
  // As NCCL waits: for ever, unless the user sets a limit.
  if (std::getenv("LLCOLL_TIMEOUT") == nullptr) config.timeout_s = 0;
  if (std::getenv("LLCOLL_SCRATCH_BYTES") == nullptr && !on_host) config.scratch_bytes = kScratchBytes;
  llcoll_comm_t made = nullptr;
  if (llcoll_comm_create(&made, entry.rank, entry.num_ranks, &Bootstrap::all_gather, bootstrap.get(), &config) !=
      LLCOLL_SUCCESS) {
    log_line("a communicator of %d ranks stays with NCCL: %s", entry.num_ranks, llcoll_last_error());
    return nullptr;
  }
  log_line("a communicator of %d ranks: messages up to %zu bytes go to llcoll", entry.num_ranks, max_bytes());
  return made;
}

void remember(Comm comm, Entry* entry) {
  Table& t = table();
  const std::lock_guard<std::mutex> lock(t.mutex);
  Entry*& place = t.entries[comm];
  delete place;  // a communicator that NCCL destroyed without our seeing it, at the same address
  place = entry;
  generation.fetch_add(1, std::memory_order_release);
}

void join_one(Comm comm) {
  auto* entry = new Entry;
  const Real& r = real();
  const bool known = r.CommCount(comm, &entry->num_ranks) == kSuccess && r.CommUserRank(comm, &entry->rank) == kSuccess;
  if (known && entry->num_ranks > 1 && entry->num_ranks <= kMaxRanks) entry->comm = make(comm, *entry);
  entry->is_alone = known && entry->num_ranks == 1;
  remember(comm, entry);
}

Entry* take(Comm comm) {
  Table& t = table();
  const std::lock_guard<std::mutex> lock(t.mutex);
  const auto it = t.entries.find(comm);
  if (it == t.entries.end()) return nullptr;
  Entry* entry = it->second;
  t.entries.erase(it);
  generation.fetch_add(1, std::memory_order_release);
  return entry;
}

}  // namespace

bool may_take(Kind kind) {
  static const unsigned kinds = [] {
    const char* text = std::getenv("LLCOLL_NCCL_CALLS");
    if (text == nullptr || *text == '\0') return ~0u;
    unsigned wanted = 0;
    for (const char* at = text; *at != '\0';) {
      const size_t length = std::strcspn(at, ",");
      int kind = 0;
      while (kind < kNumKinds && std::string(at, length) != name_of(static_cast<Kind>(kind))) ++kind;
      if (kind == kNumKinds || kind == kSendRecv) {
        std::fprintf(stderr,
                     "llcoll: LLCOLL_NCCL_CALLS is '%s'; it must name some of AllReduce,Reduce,Broadcast,"
                     "AllGather,ReduceScatter\n",
                     text);
        std::exit(2);  // some ranks would wait for others otherwise
      }
      wanted |= 1u << kind;
      at += length + (at[length] == ',' ? 1 : 0);
    }
    return wanted;
  }();
  return (kinds >> kind & 1) != 0;
}

size_t max_bytes() {
  static const size_t value = [] {
    may_take(kAllReduce);  // its errors too come before any communicator is made
    const char* text = std::getenv("LLCOLL_NCCL_MAX_BYTES");
    if (text == nullptr || *text == '\0') return kDefaultMaxBytes;
    char* end = nullptr;
    const unsigned long long number = std::strtoull(text, &end, 10);
    int shift = 0;
    if (*end == 'k' || *end == 'K') shift = 10;
    if (*end == 'm' || *end == 'M') shift = 20;
    if (end == text || std::strlen(end) > (shift != 0 ? 1u : 0u) || number > (1u << 30)) {
      std::fprintf(stderr, "llcoll: LLCOLL_NCCL_MAX_BYTES is '%s'; it must be a number of bytes, or 64K\n", text);
      std::exit(2);  // some ranks would wait for others otherwise
    }
    return static_cast<size_t>(number) << shift;
  }();
  return value;
}

const Entry* find(Comm comm) {
  LastFound& last = last_found;
  const uint64_t now = generation.load(std::memory_order_acquire);
  if (last.generation == now && last.comm == comm) return last.entry;
  Table& t = table();
  const std::lock_guard<std::mutex> lock(t.mutex);
  const auto it = t.entries.find(comm);
  last = {generation.load(std::memory_order_relaxed), comm, it == t.entries.end() ? nullptr : it->second};
  return last.entry;
}

void join(const std::vector<Comm>& comms) {
  if (comms.size() == 1) return join_one(comms[0]);
  std::vector<std::thread> threads;
  threads.reserve(comms.size());
  for (Comm comm : comms) threads.emplace_back([comm] { join_one(comm); });
  for (std::thread& thread : threads) thread.join();
}

void leave_alone(Comm comm) {
  auto* entry = new Entry;
  entry->is_blocking = false;
  remember(comm, entry);
}

void forget(Comm comm) {
  Entry* entry = take(comm);
  if (entry == nullptr) return;
  if (entry->comm != nullptr) llcoll_comm_destroy(entry->comm);
  delete entry;
}

void abort(Comm comm) {
  Entry* entry = take(comm);
  if (entry == nullptr) return;
  if (entry->comm != nullptr) {
    int is_idle = 0;
    if (llcoll_comm_is_idle(entry->comm, &is_idle) != LLCOLL_SUCCESS || is_idle == 0) llcoll_comm_abort(entry->comm);
    llcoll_comm_destroy(entry->comm);
  }
  delete entry;
}

}  // namespace llcoll::nccl
