#include "cpu/cpu_wait.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "llcoll/wait.h"

namespace llcoll {
namespace {

constexpr uint64_t kUs = 1000;
constexpr uint64_t kMs = 1000 * kUs;
constexpr uint64_t kPatientNs = 50 * kUs;
constexpr double kGraceSeconds = 0.2;  // in which waiting ranks publish whom they await

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

}  // namespace

double warn_after_from_environment() {
  const char* text = std::getenv("LLCOLL_WARN_AFTER");
  const double seconds = text == nullptr ? 0 : std::atof(text);
  return seconds > 0 ? seconds : 30.0;
}

CpuWait::CpuWait(const Options& options, std::vector<Control*> controls)
    : rank_(options.rank),
      world_size_(options.world_size),
      timeout_s_(options.timeout_s),
      sleep_after_ns_(options.patient ? kPatientNs : 1000 * kMs),
      warn_after_s_(warn_after_from_environment()),
      controls_(std::move(controls)) {
  oversubscribed_ = world_size_ > sysconf(_SC_NPROCESSORS_ONLN);
  // Whoever is awaited may need this very core: a pause is some 50 ns, a switch of processes 1 us.
  if (oversubscribed_) burst_mask = 3;
}

// Called between bursts of polls, some 3 us apart at first; with more ranks than cores, some 0.2 us.
bool CpuWait::wait_on(Patience& patience, int source, uint64_t epoch) {
  if (aborted()) return false;
  const uint64_t now = now_ns();
  if (patience.start_ns == 0) patience.start_ns = now;
  const uint64_t waited = now - patience.start_ns;
  // A spinning rank may hold the very core that the awaited one needs.
  if (oversubscribed_ || waited > 20 * kUs) sched_yield();
  if (waited > sleep_after_ns_) usleep(50);
  if (waited < kMs) return true;
  // Again each time: of a batch of sources, the one that is still missing changes.
  patience.published = true;
  controls_[rank_]->awaited.store(static_cast<uint32_t>(source + 1), std::memory_order_release);
  controls_[rank_]->beat.fetch_add(1, std::memory_order_relaxed);
  if (interrupted()) {
    failure_ = concat("LlcollError: interrupted while rank ", rank_, " waited for rank ", source, " in ", what_);
    abort_all({ErrorKind::kAborted, rank_, rank_});
    return false;
  }
  const double seconds = 1e-9 * double(waited);
  if (!patience.warned && seconds > warn_after_s_) {
    patience.warned = true;
    std::fprintf(stderr, "llcoll: rank %d has waited %.0f s for rank %d in %s (%s)\n", rank_, seconds, source, what_,
                 detail_);
  }
  if (timeout_s_ <= 0 || seconds < timeout_s_) return true;
  return give_up(patience, source, epoch);
}

bool CpuWait::give_up(Patience& patience, int source, uint64_t epoch) {
  // Grace begins when this rank sees the limit: had it not run for a while itself (a stopped process, a suspended
  // machine), its peers' beats and messages would have had no time to come.
  const uint64_t now = now_ns();
  if (!patience.at_limit) {
    patience.at_limit = true;
    limit_seen_ns_ = now;
    last_beats_.clear();
    for (const Control* control : controls_) last_beats_.push_back(control->beat.load(std::memory_order_relaxed));
  }
  if (1e-9 * double(now - limit_seen_ns_) < kGraceSeconds) return true;
  const int culprit = find_culprit(rank_, source, world_size_, [&](int r) {
    const bool alive = controls_[r]->beat.load(std::memory_order_relaxed) != last_beats_[r];
    return alive ? static_cast<int>(controls_[r]->awaited.load(std::memory_order_acquire)) : 0;
  });
  failure_ = concat("CollectiveTimeout: rank ", culprit, " did not arrive: rank ", rank_, " waited ", timeout_s_,
                    " s in ", what_, " (", detail_, ", epoch ", epoch, ", awaited rank ", source, ")");
  abort_all({ErrorKind::kTimeout, rank_, culprit});
  return false;
}

void CpuWait::stop_waiting() { controls_[rank_]->awaited.store(0, std::memory_order_release); }

void CpuWait::abort_all(AbortWord word) {
  for (Control* control : controls_) {
    uint32_t expected = 0;
    control->aborted.compare_exchange_strong(expected, word.pack(), std::memory_order_acq_rel);
  }
}

void CpuWait::throw_if_failed() {
  const uint32_t packed = controls_[rank_]->aborted.load(std::memory_order_acquire);
  if (packed == 0) return;
  if (!failure_.empty()) {
    const std::string text = failure_;
    throw std::runtime_error(text);
  }
  const AbortWord word = AbortWord::unpack(packed);
  if (word.kind == ErrorKind::kTimeout) {
    fail(ErrorKind::kTimeout, concat("rank ", word.culprit, " did not arrive", word.culprit == rank_ ? " in time" : "",
                                     ", as rank ", word.reporter, " found; this is rank ", rank_, ", in ", what_));
  }
  fail(ErrorKind::kAborted, concat("rank ", word.reporter, " ended the group's collectives; this is rank ", rank_));
}

}  // namespace llcoll
