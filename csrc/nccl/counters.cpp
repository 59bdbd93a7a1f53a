#include "nccl/counters.h"

#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "nccl/real.h"

namespace llcoll::nccl {
namespace {

constexpr int kNumSizes = 65;  // by powers of two: [i] holds sizes above 2^(i-1) up to 2^i

struct Counts {
  std::atomic<uint64_t> taken;
  std::atomic<uint64_t> forwarded;
};
Counts counts[kNumKinds][kNumSizes];
Counts calls_of_one;  // taken: in place, nothing was to be done

int size_of(size_t bytes) {
  int size = 0;
  while (size < 64 && (size_t{1} << size) < bytes) ++size;
  return size;
}

void print_size(char (&text)[32], int size) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::snprintf(text, sizeof text, "%d %s", 1 << size % 10, units[size / 10]);
}

// At exit, where the program may have closed stderr or be in any state: no allocation, no lock of ours.
struct Printer {
  const bool on = [] {
    const char* log = std::getenv("LLCOLL_LOG");
    return log != nullptr && *log != '\0' && std::strcmp(log, "0") != 0;
  }();
  ~Printer() {
    if (!on) return;
    uint64_t all_taken = 0;
    uint64_t all = 0;
    for (int kind = 0; kind < kNumKinds; ++kind) {
      for (int size = 0; size < kNumSizes; ++size) {
        const uint64_t taken = counts[kind][size].taken.load(std::memory_order_relaxed);
        const uint64_t forwarded = counts[kind][size].forwarded.load(std::memory_order_relaxed);
        if (taken + forwarded == 0) continue;
        char text[32];
        print_size(text, size);
        std::fprintf(stderr, "llcoll: pid %d: nccl%-13s up to %8s: %10llu by llcoll, %10llu by NCCL\n", getpid(),
                     name_of(static_cast<Kind>(kind)), text, static_cast<unsigned long long>(taken),
                     static_cast<unsigned long long>(forwarded));
        all_taken += taken;
        all += taken + forwarded;
      }
    }
    const uint64_t done = calls_of_one.taken.load(std::memory_order_relaxed);
    const uint64_t of_one = done + calls_of_one.forwarded.load(std::memory_order_relaxed);
    if (of_one != 0) {
      std::fprintf(stderr, "llcoll: pid %d: besides %llu calls of communicators with one rank, %llu of them in place\n",
                   getpid(), static_cast<unsigned long long>(of_one), static_cast<unsigned long long>(done));
    }
    std::fprintf(stderr, "llcoll: pid %d: %llu of %llu calls by llcoll (%.1f %%), the rest by %s\n", getpid(),
                 static_cast<unsigned long long>(all_taken), static_cast<unsigned long long>(all),
                 all == 0 ? 0.0 : 100.0 * static_cast<double>(all_taken) / static_cast<double>(all), real_path());
  }
};
const Printer printer;

}  // namespace

bool counts_calls() { return printer.on; }

void count_call_of_one(bool is_done) {
  (is_done ? calls_of_one.taken : calls_of_one.forwarded).fetch_add(1, std::memory_order_relaxed);
}

void count_call(Kind kind, size_t bytes, bool is_taken) {
  Counts& c = counts[kind][size_of(bytes)];
  (is_taken ? c.taken : c.forwarded).fetch_add(1, std::memory_order_relaxed);
}

void log_line(const char* format, ...) {
  if (!printer.on) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "llcoll: pid %d: %s\n", getpid(), text);
}

}  // namespace llcoll::nccl
