// Shared memory of the CPU backend: each rank makes one sealed memfd segment and maps those of its peers.
// No file has a name and no descriptor outlives set-up, so a process killed at any moment leaks nothing.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cpu/rendezvous.h"

namespace llcoll {

// A file descriptor with an owner.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

// One mapping, page aligned, read and write. A fork()ed child shares it (no MADV_DONTFORK: a child that only reads
// tensors or exits must not fault); the child must not call llcoll on it.
class Segment {
 public:
  Segment() = default;  // empty: data() is null, bytes() 0
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // A new zeroed segment. Its pages are reserved and mapped before this returns: too little memory (the machine's or
  // the cgroup's) is an error here, never SIGBUS or the OOM killer later. `num_segments`: how many such segments the
  // ranks of this host are about to make, so that they are judged together.
  static Segment create(size_t bytes, int num_segments = 1);

  // Maps a peer's segment of exactly `bytes`. Throws unless it is a memfd that `owner` owns, of that size, sealed
  // against resizing (or touching it could raise SIGBUS). Takes no ownership of fd, keeps none.
  static Segment map_fd(int fd, size_t bytes, uid_t owner);

  // The same memory without ownership: valid until the owner (whatever it was moved to) is destroyed.
  Segment view() const;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }  // -1 once closed, and for peers' segments and views
  void close_fd() { fd_.reset(); }      // the mapping stays

 private:
  void unmap() noexcept;

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  bool owns_mapping_ = false;
  Fd fd_;
};

// Collective over `all_gather` (three rounds; none at world size 1). Gives every rank's segment, by rank; [rank] is a
// view of `own`, which must outlive it. Sizes may differ. Closes own.fd() on success. Throws the same text on every
// rank; nothing stays open or mapped then, but `own`. Ranks must share host, network and user namespace and user.
// Each rank waits at most timeout_s (<= 0: kDefaultExchangeTimeout) besides the all_gathers' own limit; `interrupted`
// (may be empty) is asked now and then and after each signal: true ends the wait with an error.
constexpr double kDefaultExchangeTimeout = 300;
constexpr int kMaxWorldSize = 72;
std::vector<Segment> exchange_segments(Segment& own, int rank, int world_size, const AllGather& all_gather,
                                       double timeout_s, const std::function<bool()>& interrupted = {});

}  // namespace llcoll
