// An NCCL for tests of the front, on the host: its "device" memory is malloc's, a stream is a number. It runs
// all-gathers (over files below FAKE_NCCL_DIR, so that ranks may be threads or processes) and writes down every other
// call, a line each, in FAKE_NCCL_LOG.<pid>; collectives but the all-gather change nothing.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "nccl/abi.h"

using namespace llcoll::nccl;

namespace {

struct FakeComm {
  std::string id;
  int num_ranks = 0;
  int rank = 0;
  int num_gathers = 0;
  int num_children = 0;
};

FakeComm* of(Comm comm) { return static_cast<FakeComm*>(comm); }

const char* setting(const char* name, const char* otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : text;
}

std::mutex log_mutex;
thread_local int group_depth = 0;

void record(const char* format, ...) __attribute__((format(printf, 1, 2)));
void record(const char* format, ...) {
  static const bool is_on = std::getenv("FAKE_NCCL_LOG") != nullptr;
  if (!is_on) return;
  const std::lock_guard<std::mutex> lock(log_mutex);
  const std::string path = std::string(setting("FAKE_NCCL_LOG", "/dev/null")) + "." + std::to_string(getpid());
  FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) return;
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(file, format, arguments);
  va_end(arguments);
  std::fputc('\n', file);
  std::fclose(file);
}

std::string path_of(const FakeComm& comm, int round, int rank) {
  std::ostringstream path;
  path << setting("FAKE_NCCL_DIR", ".") << "/" << comm.id << "." << round << "." << rank;
  return path.str();
}

// Every rank's bytes; false after 30 s.
bool exchange(FakeComm& comm, const void* own, size_t bytes, void* all) {
  const int round = comm.num_gathers++;
  const std::string path = path_of(comm, round, comm.rank);
  {
    std::ofstream file(path + ".new", std::ios::binary);
    file.write(static_cast<const char*>(own), static_cast<std::streamsize>(bytes));
  }
  std::rename((path + ".new").c_str(), path.c_str());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int r = 0; r < comm.num_ranks; ++r) {
    std::ifstream file;
    while (file.open(path_of(comm, round, r), std::ios::binary), !file.is_open()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    file.read(static_cast<char*>(all) + bytes * static_cast<size_t>(r), static_cast<std::streamsize>(bytes));
  }
  return true;
}

Comm make(const std::string& id, int num_ranks, int rank) {
  auto* comm = new FakeComm;
  comm->id = id;
  comm->num_ranks = num_ranks;
  comm->rank = rank;
  return comm;
}

Result finish(const char* what, const Config* config) {
  record("%s", what);
  return config != nullptr && config->blocking == 0 ? kInProgress : kSuccess;
}

}  // namespace

#define FAKE(name) extern "C" __attribute__((visibility("default"))) Result nccl##name

FAKE(GetUniqueId)(UniqueId* id) {
  static std::atomic<int> counter{0};
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "id%d.%d", getpid(), counter++);
  return kSuccess;
}
FAKE(CommInitRank)(Comm* comm, int num_ranks, UniqueId id, int rank) {
  *comm = make(id.internal, num_ranks, rank);
  return finish("CommInitRank", nullptr);
}
FAKE(CommInitRankConfig)(Comm* comm, int num_ranks, UniqueId id, int rank, Config* config) {
  *comm = make(id.internal, num_ranks, rank);
  return finish("CommInitRankConfig", config);
}
FAKE(CommInitRankScalable)(Comm* comm, int num_ranks, int rank, int, UniqueId* ids, Config* config) {
  *comm = make(ids[0].internal, num_ranks, rank);
  return finish("CommInitRankScalable", config);
}
extern "C" Result ncclGroupStart();
extern "C" Result ncclGroupEnd();
FAKE(CommInitAll)(Comm* comms, int num_devices, const int*) {
  UniqueId id;
  ncclGetUniqueId(&id);
  // By the public names, as a library may: the front must not mistake it for the program.
  ncclGroupStart();
  for (int i = 0; i < num_devices; ++i) ncclCommInitRank(comms + i, num_devices, id, i);
  ncclGroupEnd();
  return finish("CommInitAll", nullptr);
}
FAKE(CommSplit)(Comm comm, int color, int key, Comm* made, Config* config) {
  FakeComm& parent = *of(comm);
  const int own[2] = {color, key};
  std::vector<int> all(2 * static_cast<size_t>(parent.num_ranks));
  if (!exchange(parent, own, sizeof own, all.data())) return kSystemError;
  int num_ranks = 0;
  int rank = 0;
  for (int r = 0; r < parent.num_ranks; ++r) {
    if (all[2 * r] != color) continue;
    ++num_ranks;
    const bool before = all[2 * r + 1] < key || (all[2 * r + 1] == key && r < parent.rank);
    rank += before ? 1 : 0;
  }
  const int child = parent.num_children++;
  *made = nullptr;
  if (color >= 0) {
    *made = make(parent.id + ".s" + std::to_string(child) + "c" + std::to_string(color), num_ranks, rank);
  }
  return finish("CommSplit", config);
}
FAKE(CommShrink)(Comm comm, int* excluded, int num_excluded, Comm* made, Config* config, int) {
  FakeComm& parent = *of(comm);
  int num_ranks = 0;
  int rank = 0;
  for (int r = 0; r < parent.num_ranks; ++r) {
    bool is_out = false;
    for (int i = 0; i < num_excluded; ++i) is_out = is_out || excluded[i] == r;
    if (is_out) continue;
    rank += r < parent.rank ? 1 : 0;
    ++num_ranks;
  }
  *made = make(parent.id + ".shrunk" + std::to_string(parent.num_children++), num_ranks, rank);
  return finish("CommShrink", config);
}
FAKE(CommFinalize)(Comm) {
  record("CommFinalize");
  return kSuccess;
}
FAKE(CommDestroy)(Comm comm) {
  record("CommDestroy");
  delete of(comm);
  return kSuccess;
}
FAKE(CommAbort)(Comm comm) {
  record("CommAbort");
  delete of(comm);
  return kSuccess;
}
FAKE(CommGetAsyncError)(Comm, Result* error) {
  *error = kSuccess;
  return kSuccess;
}
FAKE(CommCount)(const Comm comm, int* count) {
  *count = of(comm)->num_ranks;
  return kSuccess;
}
FAKE(CommUserRank)(const Comm comm, int* rank) {
  *rank = of(comm)->rank;
  return kSuccess;
}
FAKE(CommCuDevice)(const Comm, int* device) {
  *device = 0;
  return kSuccess;
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetLastError(Comm) { return "fake"; }

FAKE(AllReduce)(const void*, void*, size_t count, Type type, Op op, Comm, Stream) {
  record("AllReduce count=%zu type=%d op=%d group=%d", count, type, op, group_depth);
  return kSuccess;
}
FAKE(Reduce)(const void*, void*, size_t count, Type type, Op op, int root, Comm, Stream) {
  record("Reduce count=%zu type=%d op=%d root=%d group=%d", count, type, op, root, group_depth);
  return kSuccess;
}
FAKE(Broadcast)(const void*, void*, size_t count, Type type, int root, Comm, Stream) {
  record("Broadcast count=%zu type=%d root=%d group=%d", count, type, root, group_depth);
  return kSuccess;
}
FAKE(Bcast)(void* buffer, size_t count, Type type, int root, Comm comm, Stream stream) {
  record("Bcast");
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);  // by its public name too
}
FAKE(AllGather)(const void* send, void* recv, size_t count, Type type, Comm comm, Stream stream) {
  if (stream == nullptr) {  // the front's own: it has no stream on the host
    return exchange(*of(comm), send, count, recv) ? kSuccess : kSystemError;
  }
  record("AllGather count=%zu type=%d group=%d", count, type, group_depth);
  return kSuccess;
}
FAKE(ReduceScatter)(const void*, void*, size_t count, Type type, Op op, Comm, Stream) {
  record("ReduceScatter count=%zu type=%d op=%d group=%d", count, type, op, group_depth);
  return kSuccess;
}
FAKE(Send)(const void*, size_t count, Type type, int peer, Comm, Stream) {
  record("Send count=%zu type=%d peer=%d group=%d", count, type, peer, group_depth);
  return kSuccess;
}
FAKE(Recv)(void*, size_t count, Type type, int peer, Comm, Stream) {
  record("Recv count=%zu type=%d peer=%d group=%d", count, type, peer, group_depth);
  return kSuccess;
}
FAKE(GroupStart)() {
  ++group_depth;
  record("GroupStart");
  return kSuccess;
}
FAKE(GroupEnd)() {
  --group_depth;
  record("GroupEnd");
  return kSuccess;
}
