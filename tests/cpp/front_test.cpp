// A program that speaks NCCL, on the host with fake_nccl.cpp: front_test MODE RANK WORLD_SIZE ID. Linked with the fake
// library alone; the front comes before it by LD_PRELOAD. Modes: collectives | group | split | threads | nonblocking |
// abort | timeout | cost | alone. Prints "ok"; checks what reached llcoll by its results, the fake writes down the
// rest.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "nccl/abi.h"

using namespace llcoll::nccl;

#define LLC_DECLARE(name, parameters) extern "C" Result nccl##name parameters;
LLC_NCCL_FUNCTIONS(LLC_DECLARE)
extern "C" Result ncclGetUniqueId(UniqueId* id);
extern "C" const char* ncclGetLastError(Comm comm);
// Older than the front, as a library may be: it has no CommGrow and no CommRevoke, so nothing here calls them.

namespace {

const Stream kStream = reinterpret_cast<Stream>(0x10);
const Stream kOther = reinterpret_cast<Stream>(0x20);
int rank = 0;
int world_size = 1;

#define REQUIRE(condition)                                                                                        \
  do {                                                                                                            \
    if (!(condition)) {                                                                                           \
      std::fprintf(stderr, "rank %d, line %d: %s (%s)\n", rank, __LINE__, #condition, ncclGetLastError(nullptr)); \
      std::exit(1);                                                                                               \
    }                                                                                                             \
  } while (0)
#define OK(call) REQUIRE((call) == kSuccess)

UniqueId id_from(const char* text) {
  UniqueId id{};
  std::snprintf(id.internal, sizeof id.internal, "%s", text);
  return id;
}

// Out of place, in place by NCCL's rules, all roots. `me` and `n` are the communicator's.
void run_collectives(Comm comm, int me, int n, Stream stream) {
  for (const size_t count : {size_t{1}, size_t{5}, size_t{1000}}) {
    std::vector<double> in(count), out(count, -1);
    for (size_t i = 0; i < count; ++i) in[i] = me + static_cast<double>(i);
    const double ranks = n * (n - 1) / 2.0;
    OK(ncclAllReduce(in.data(), out.data(), count, kFloat64, kSum, comm, stream));
    for (size_t i = 0; i < count; ++i) REQUIRE(out[i] == ranks + n * static_cast<double>(i));
    OK(ncclAllReduce(in.data(), out.data(), count, kFloat64, kAvg, comm, stream));
    for (size_t i = 0; i < count; ++i) REQUIRE(out[i] == ranks / n + static_cast<double>(i));
    out = in;
    OK(ncclAllReduce(out.data(), out.data(), count, kFloat64, kMax, comm, stream));
    for (size_t i = 0; i < count; ++i) REQUIRE(out[i] == n - 1 + static_cast<double>(i));

    for (int root = 0; root < n; ++root) {
      std::fill(out.begin(), out.end(), -1);
      OK(ncclReduce(in.data(), me == root ? out.data() : nullptr, count, kFloat64, kMin, root, comm, stream));
      for (size_t i = 0; i < count; ++i) REQUIRE(out[i] == (me == root ? static_cast<double>(i) : -1));
      out = in;
      OK(ncclReduce(out.data(), out.data(), count, kFloat64, kSum, root, comm, stream));
      for (size_t i = 0; me == root && i < count; ++i) REQUIRE(out[i] == ranks + n * static_cast<double>(i));
      OK(ncclBroadcast(in.data(), out.data(), count, kFloat64, root, comm, stream));
      for (size_t i = 0; i < count; ++i) REQUIRE(out[i] == root + static_cast<double>(i));
      out = in;
      OK(ncclBcast(out.data(), count, kFloat64, root, comm, stream));
      for (size_t i = 0; i < count; ++i) REQUIRE(out[i] == root + static_cast<double>(i));
    }

    std::vector<double> all(count * n, -1);
    OK(ncclAllGather(in.data(), all.data(), count, kFloat64, comm, stream));
    for (int r = 0; r < n; ++r) {
      for (size_t i = 0; i < count; ++i) REQUIRE(all[r * count + i] == r + static_cast<double>(i));
    }
    std::fill(all.begin(), all.end(), -1);
    std::copy(in.begin(), in.end(), all.begin() + static_cast<std::ptrdiff_t>(me * count));
    OK(ncclAllGather(all.data() + me * count, all.data(), count, kFloat64, comm, stream));
    for (int r = 0; r < n; ++r) REQUIRE(all[r * count] == r);
    OK(ncclReduceScatter(all.data(), out.data(), count, kFloat64, kSum, comm, stream));
    for (size_t i = 0; i < count; ++i) REQUIRE(out[i] == n * (me + static_cast<double>(i)));
    OK(ncclReduceScatter(all.data(), all.data() + me * count, count, kFloat64, kSum, comm, stream));
    for (size_t i = 0; i < count; ++i) REQUIRE(all[me * count + i] == n * (me + static_cast<double>(i)));
  }
  // Unsigned sums and products by the signed types' bits; a copy of 8-bit floats byte by byte.
  uint32_t u = 0xF0000000u + static_cast<uint32_t>(me);
  uint32_t expected = 0;
  for (int r = 0; r < n; ++r) expected += 0xF0000000u + static_cast<uint32_t>(r);
  OK(ncclAllReduce(&u, &u, 1, kUint32, kSum, comm, stream));
  REQUIRE(u == expected);
  unsigned char f8[3] = {static_cast<unsigned char>(me), 0x7F, 0xFF};
  OK(ncclBroadcast(f8, f8, 3, kFloat8e4m3, n - 1, comm, stream));
  REQUIRE(f8[0] == n - 1 && f8[1] == 0x7F && f8[2] == 0xFF);
}

// What must reach NCCL, each once.
void run_forwarded(Comm comm, Stream stream) {
  std::vector<char> large(4 << 20);
  OK(ncclAllReduce(large.data(), large.data(), 4 << 20, kInt8, kSum, comm, stream));
  OK(ncclAllReduce(large.data(), large.data(), 1, kInt32, kAvg, comm, stream));
  OK(ncclAllReduce(large.data(), large.data(), 1, kUint32, kMax, comm, stream));
  OK(ncclAllReduce(large.data(), large.data(), 1, kFloat8e5m2, kSum, comm, stream));
  OK(ncclAllReduce(large.data(), large.data(), 1, kFloat32, 5, comm, stream));
  OK(ncclAllReduce(large.data(), large.data(), 0, kFloat32, kSum, comm, stream));
  OK(ncclAllReduce(large.data(), large.data(), SIZE_MAX / 4, kFloat32, kSum, comm, stream));
  OK(ncclBroadcast(large.data(), large.data(), 4, kInt8, 99, comm, stream));
  OK(ncclBcast(large.data(), 4 << 20, kInt8, 0, comm, stream));
  OK(ncclAllGather(large.data(), large.data(), 1 << 20, kInt8, comm, stream));
  OK(ncclReduceScatter(large.data(), large.data(), 1 << 20, kInt8, kSum, comm, stream));
  OK(ncclReduce(large.data(), large.data(), 4 << 20, kInt8, kSum, 1, comm, stream));
  OK(ncclSend(large.data(), 4, kInt8, 0, comm, stream));
  OK(ncclRecv(large.data(), 4, kInt8, 0, comm, stream));
}

// One rank. In place nothing is to be done, in a group neither; the rest is NCCL's, each once.
void run_alone(Comm comm) {
  std::vector<char> a(64), b(64);
  for (Type type : {kInt8, kFloat64, kFloat8e4m3}) {
    for (Op op : {kSum, kAvg}) OK(ncclAllReduce(a.data(), a.data(), 4, type, op, comm, kStream));
  }
  OK(ncclGroupStart());
  OK(ncclReduce(a.data(), a.data(), 4, kInt8, kMax, 0, comm, kStream));
  OK(ncclBroadcast(a.data(), a.data(), 4, kInt8, 0, comm, kOther));
  OK(ncclGroupEnd());
  OK(ncclBcast(a.data(), 4, kInt8, 0, comm, kStream));
  OK(ncclAllGather(a.data(), a.data(), 4, kInt8, comm, kStream));
  OK(ncclReduceScatter(a.data(), a.data(), 4, kInt8, kProd, comm, kStream));
  // Moved, scaled by an operator of the program's own, empty, of no type, to a root that is none, nowhere.
  OK(ncclAllReduce(a.data(), b.data(), 4, kInt8, kSum, comm, kStream));
  OK(ncclAllReduce(a.data(), a.data(), 4, kInt8, 5, comm, kStream));
  OK(ncclAllReduce(a.data(), a.data(), 0, kInt8, kSum, comm, kStream));
  OK(ncclAllReduce(a.data(), a.data(), 4, 12, kSum, comm, kStream));
  OK(ncclReduce(a.data(), a.data(), 4, kInt8, kSum, 1, comm, kStream));
  OK(ncclAllGather(nullptr, nullptr, 4, kInt8, comm, kStream));
  OK(ncclSend(a.data(), 4, kInt8, 0, comm, kStream));
}

void run_groups(Comm comm) {
  std::vector<char> large(4 << 20);
  double a = rank + 1, b = 0, c = 0;
  const double sum = world_size * (world_size + 1) / 2.0;
  OK(ncclGroupStart());
  OK(ncclAllReduce(&a, &b, 1, kFloat64, kSum, comm, kStream));
  REQUIRE(b == 0);  // nothing starts before the end
  OK(ncclAllReduce(large.data(), large.data(), 4 << 20, kInt8, kSum, comm, kStream));
  OK(ncclGroupStart());
  OK(ncclAllReduce(&b, &c, 1, kFloat64, kSum, comm, kOther));  // behind the first: calls keep their order
  OK(ncclSend(large.data(), 4, kInt8, (rank + 1) % world_size, comm, kStream));
  OK(ncclRecv(large.data(), 4, kInt8, (rank + world_size - 1) % world_size, comm, kStream));
  OK(ncclGroupEnd());
  REQUIRE(b == 0 && c == 0);
  OK(ncclGroupEnd());
  REQUIRE(b == sum && c == world_size * sum);
  OK(ncclGroupStart());
  OK(ncclGroupEnd());
}

void run_splits(Comm comm) {
  Comm half = nullptr, none = &half, grouped = nullptr, shrunk = nullptr;
  OK(ncclCommSplit(comm, rank % 2, -rank, &half, nullptr));
  // In the order of the keys, that is, backwards.
  const int n = (world_size + 1 - rank % 2) / 2;
  int me = 0;
  OK(ncclCommUserRank(half, &me));
  run_collectives(half, me, n, kStream);
  OK(ncclCommSplit(comm, rank == 0 ? -1 : 0, 0, &none, nullptr));
  REQUIRE((none == nullptr) == (rank == 0));
  OK(ncclGroupStart());
  OK(ncclCommSplit(comm, 0, rank, &grouped, nullptr));
  OK(ncclGroupEnd());
  run_collectives(grouped, rank, world_size, kStream);
  if (rank != 0) {
    int excluded = 0;
    OK(ncclCommShrink(comm, &excluded, 1, &shrunk, nullptr, 0));
    run_collectives(shrunk, rank - 1, world_size - 1, kStream);
    OK(ncclCommDestroy(shrunk));
    OK(ncclCommDestroy(none));
  }
  OK(ncclCommFinalize(half));
  OK(ncclCommDestroy(half));
  OK(ncclCommDestroy(grouped));
  run_collectives(comm, rank, world_size, kOther);
}

// All ranks in one process: several GPUs of one program.
void run_threads() {
  constexpr int kRanks = 3;
  Comm comms[kRanks];
  OK(ncclCommInitAll(comms, kRanks, nullptr));
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] { run_collectives(comms[r], r, kRanks, kStream); });
  }
  for (std::thread& thread : threads) thread.join();
  // One thread makes them in a group, as programs with one thread for all GPUs do.
  UniqueId id;
  Comm more[kRanks];
  OK(ncclGetUniqueId(&id));
  OK(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r) OK(ncclCommInitRank(more + r, kRanks, id, r));
  OK(ncclGroupEnd());
  threads.clear();
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] { run_collectives(more[r], r, kRanks, kStream); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int r = 0; r < kRanks; ++r) {
    OK(ncclCommDestroy(comms[r]));
    OK(ncclCommDestroy(more[r]));
  }
}

void run_nonblocking(UniqueId id) {
  Config config{sizeof(Config), 0, 0, 0};
  Comm comm = nullptr, child = nullptr;
  REQUIRE(ncclCommInitRankConfig(&comm, world_size, id, rank, &config) == kInProgress);
  double a = 1;
  OK(ncclAllReduce(&a, &a, 1, kFloat64, kSum, comm, kStream));
  REQUIRE(a == 1);
  OK(ncclCommSplit(comm, 0, rank, &child, nullptr));  // inherits it
  OK(ncclAllReduce(&a, &a, 1, kFloat64, kSum, child, kStream));
  REQUIRE(a == 1);
  OK(ncclCommDestroy(child));
  OK(ncclCommDestroy(comm));
}

// Rank 0 leaves by abort while the others wait for it in a call.
void run_abort(Comm comm) {
  double a = rank;
  OK(ncclAllReduce(&a, &a, 1, kFloat64, kSum, comm, kStream));
  if (rank == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    OK(ncclCommAbort(comm));  // idle: a plain destroy, which ends nobody's wait
    return;
  }
  OK(ncclCommAbort(comm));
}

// LLCOLL_TIMEOUT is set: the last rank stays away, the others hear of it through NCCL's own ways.
void run_timeout(Comm comm) {
  if (rank == world_size - 1) {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    return;
  }
  double a = rank;
  Result error = kSuccess;
  REQUIRE(ncclAllReduce(&a, &a, 1, kFloat64, kSum, comm, kStream) == kRemoteError);
  OK(ncclCommGetAsyncError(comm, &error));
  REQUIRE(error == kRemoteError);
  REQUIRE(std::strstr(ncclGetLastError(comm), "did not arrive") != nullptr);
}

// ns of a call that the library behind returns from at once: what is added by the front shows in a run without it.
void run_cost(Comm comm) {
  constexpr int kCalls = 2'000'000;
  Result error = kSuccess;
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) ncclAllReduce(nullptr, nullptr, 4, kInt8, kSum, comm, kStream);
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
    best = std::min(best, taken.count() / kCalls);
  }
  OK(ncclCommGetAsyncError(comm, &error));
  std::printf("%.1f ns, ", best);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string mode = argv[1];
  rank = std::atoi(argv[2]);
  world_size = std::atoi(argv[3]);
  const UniqueId id = id_from(argv[4]);
  if (mode == "threads") {
    run_threads();
  } else if (mode == "nonblocking") {
    run_nonblocking(id);
  } else {
    Comm comm = nullptr;
    if (mode == "scalable") {
      UniqueId ids[1] = {id};
      OK(ncclCommInitRankScalable(&comm, world_size, rank, 1, ids, nullptr));
    } else {
      OK(ncclCommInitRank(&comm, world_size, id, rank));
    }
    if (mode == "collectives" || mode == "scalable") run_collectives(comm, rank, world_size, kStream);
    if (mode == "forwarded") run_forwarded(comm, kStream);
    if (mode == "alone") run_alone(comm);
    if (mode == "group") run_groups(comm);
    if (mode == "split") run_splits(comm);
    if (mode == "timeout") run_timeout(comm);
    if (mode == "cost") run_cost(comm);
    if (mode == "abort") {
      run_abort(comm);
    } else {
      OK(ncclCommDestroy(comm));
    }
  }
  std::printf("ok\n");
  return 0;
}
