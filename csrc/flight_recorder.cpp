#include "flight_recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check.h"
#include "communicator.h"

namespace llcoll {
namespace {

constexpr const char* kStateNames[] = {"running", "done", "enqueued", "captured", "failed"};

// Fields of Entry::what_.
constexpr int kOpShift = 4, kDTypeShift = 8, kAlgorithmShift = 12, kRootShift = 16, kUnevenShift = 24;
static_assert(kNumCollectives <= 16 && kNumReduceOps <= 16 && kNumDTypes <= 16 && kNumAlgorithms <= 16);
static_assert(kMaxRanks <= 256);

uint32_t pack(const CollectiveCall& call, bool is_uneven) {
  return static_cast<uint32_t>(call.kind) | static_cast<uint32_t>(call.op) << kOpShift |
         static_cast<uint32_t>(call.dtype) << kDTypeShift | static_cast<uint32_t>(call.algorithm) << kAlgorithmShift |
         static_cast<uint32_t>(call.root) << kRootShift | static_cast<uint32_t>(is_uneven) << kUnevenShift;
}

bool is_uneven(const CollectiveCall& call) { return call.input_splits != nullptr || call.output_splits != nullptr; }

uint64_t elements_of(const CollectiveCall& call, int world_size) {
  const size_t* splits = call.kind == Collective::kAllGather ? call.output_splits : call.input_splits;
  uint64_t sum = 0;
  for (int r = 0; splits != nullptr && r < world_size; ++r) sum += splits[r];
  return sum;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      result += escape;
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string number_or_null(bool is_known, uint64_t number) { return is_known ? std::to_string(number) : "null"; }

// For a file's name: group names are the user's.
std::string tame(const std::string& text) {
  std::string result = text.substr(0, 64);
  for (char& c : result) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_') c = '_';
  }
  return result;
}

bool write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

const char* name_of(CallState state) { return kStateNames[static_cast<int>(state)]; }

FlightRecorder::Entry& FlightRecorder::begin(const CollectiveCall& call, int world_size, uint64_t position) {
  const uint64_t sequence = num_calls_.load(std::memory_order_relaxed) + 1;
  num_calls_.store(sequence, std::memory_order_relaxed);
  Entry& entry = entries_[sequence % kCapacity];
  const bool uneven = is_uneven(call);
  // A reader that sees any of what follows sees the 0 or the new number, too: pairs with the fence in snapshot().
  entry.sequence_.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.numel_.store(uneven ? elements_of(call, world_size) : call.numel, std::memory_order_relaxed);
  entry.position_.store(position, std::memory_order_relaxed);
  entry.what_.store(pack(call, uneven), std::memory_order_relaxed);
  entry.state_.store(static_cast<uint32_t>(CallState::kRunning), std::memory_order_relaxed);
  entry.sequence_.store(sequence, std::memory_order_release);  // pairs with the acquire in snapshot()
  return entry;
}

std::vector<CallRecord> FlightRecorder::snapshot() const {
  std::vector<CallRecord> calls;
  for (const Entry& entry : entries_) {
    const uint64_t sequence = entry.sequence_.load(std::memory_order_acquire);
    if (sequence == 0) continue;
    const uint64_t numel = entry.numel_.load(std::memory_order_relaxed);
    const uint64_t position = entry.position_.load(std::memory_order_relaxed);
    const uint32_t what = entry.what_.load(std::memory_order_relaxed);
    const uint32_t state = entry.state_.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (entry.sequence_.load(std::memory_order_relaxed) != sequence) continue;
    calls.push_back({sequence, numel, position, static_cast<Collective>(what & 15),
                     static_cast<ReduceOp>(what >> kOpShift & 15), static_cast<DType>(what >> kDTypeShift & 15),
                     static_cast<Algorithm>(what >> kAlgorithmShift & 15), static_cast<int>(what >> kRootShift & 255),
                     (what >> kUnevenShift & 1) != 0, static_cast<CallState>(state)});
  }
  std::sort(calls.begin(), calls.end(),
            [](const CallRecord& a, const CallRecord& b) { return a.sequence < b.sequence; });
  return calls;
}

std::string dump_to_json(const DumpHeader& header, const std::vector<CallRecord>& calls) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  char time_text[32];
  std::snprintf(time_text, sizeof time_text, "%lld.%03ld", static_cast<long long>(now.tv_sec), now.tv_nsec / 1000000);
  const bool is_cuda = std::strcmp(header.device, "cuda") == 0;
  std::string text = concat(
      "{\"version\": 1, \"group\": ", quoted(header.group_name), ", \"rank\": ", header.rank,
      ", \"world_size\": ", header.world_size, ", \"device\": ", quoted(header.device), ", \"host\": ", quoted(host),
      ", \"pid\": ", getpid(), ", \"time\": ", time_text, ", \"timeout_s\": ", header.timeout_s,
      ", \"awaited\": ", number_or_null(header.awaited >= 0, static_cast<uint64_t>(header.awaited)),
      ", \"reason\": ", quoted(header.reason), ", \"num_calls\": ", header.num_calls, ",\n \"calls\": [");
  const char* separator = "\n";
  for (const CallRecord& call : calls) {
    const bool has_root = call.kind == Collective::kBroadcast || call.kind == Collective::kReduce;
    const bool is_torch = call.algorithm == Algorithm::kTorch;
    const bool is_barrier = call.kind == Collective::kAllReduce && call.numel == 0;  // an empty call never runs
    text += concat(separator, "  {\"sequence\": ", call.sequence,
                   ", \"collective\": ", quoted(is_barrier ? "barrier" : name_of(call.kind)),
                   ", \"op\": ", quoted(name_of(call.op)), ", \"dtype\": ", quoted(name_of(call.dtype)),
                   ", \"numel\": ", call.numel, ", \"bytes\": ", call.numel * element_bytes(call.dtype),
                   ", \"uneven\": ", call.is_uneven ? "true" : "false",
                   ", \"root\": ", number_or_null(has_root, static_cast<uint64_t>(call.root)),
                   ", \"algorithm\": ", quoted(name_of(call.algorithm)),
                   ", \"epoch\": ", number_or_null(!is_cuda && !is_torch, call.position),
                   ", \"launch\": ", number_or_null(is_cuda && !is_torch, call.position),
                   ", \"state\": ", quoted(name_of(call.state)), "}");
    separator = ",\n";
  }
  return text + "\n ]}\n";
}

void write_record(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR);
  check_errno(fd >= 0, "cannot open ", path, " for the flight record");
  const bool is_written = write_all(fd, text);
  const int error = errno;
  close(fd);
  check_that(is_written, "cannot write the flight record ", path, ": ", errno_text(error));
}

std::string write_dump_file(const DumpHeader& header, const std::string& text) {
  const char* chosen = std::getenv("LLCOLL_DUMP_DIR");
  if (chosen != nullptr && std::strcmp(chosen, "none") == 0) return "";
  const char* temporary = std::getenv("TMPDIR");
  std::string path = chosen != nullptr && *chosen != 0         ? chosen
                     : temporary != nullptr && *temporary != 0 ? temporary
                                                               : "/tmp";
  path += concat("/llcoll-", tame(header.group_name), "-", header.device, "-rank", header.rank, "-", getpid(),
                 "-XXXXXX.json");
  // Mode 600, a fresh name: others of this machine can neither read it nor have put a link there.
  const int fd = mkostemps(path.data(), 5, O_CLOEXEC);
  const bool is_written = fd >= 0 && write_all(fd, text);
  if (!is_written) {
    std::fprintf(stderr, "llcoll: rank %d: cannot write the flight record %s: %s\n", header.rank, path.c_str(),
                 errno_text(errno).c_str());
  }
  if (fd >= 0) close(fd);
  if (is_written) {
    std::fprintf(stderr, "llcoll: rank %d: flight record in %s (python -m llcoll.diagnose reads all ranks')\n",
                 header.rank, path.c_str());
  }
  return is_written ? path : "";
}

}  // namespace llcoll
