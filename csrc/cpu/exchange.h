// The wire of exchange_segments; of interest to its sources and to tests that play the stranger.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "cpu/rendezvous.h"

namespace llcoll::exchange {

using Random = std::array<unsigned char, 16>;

constexpr uint64_t kMagic = 0x31'68'63'78'65'63'6c'6cULL;  // "llcexch1": changes with the layouts below

// What each rank publishes through the bootstrap all_gather.
struct Announcement {
  uint64_t magic = kMagic;
  int32_t rank = -1;
  int32_t world_size = 0;
  int32_t pid = 0;
  uint32_t uid = 0;
  uint64_t segment_bytes = 0;
  uint64_t network_namespace = 0;  // inode numbers; abstract sockets live in a network namespace
  uint64_t user_namespace = 0;
  uint64_t pid_namespace = 0;
  Random socket_name{};
  Random token{};  // rank 0's is the group's
  std::array<char, 40> boot_id{};
  std::array<char, 64> host_name{};
};

// First message on a connection, both ways; the acceptor's carries its segment's descriptor. The connector then sends
// it a second time, with its own descriptor.
struct Hello {
  uint64_t magic = kMagic;
  Random token{};
  int32_t from = -1;
  int32_t to = -1;
};

static_assert(std::is_trivially_copyable_v<Announcement> && std::has_unique_object_representations_v<Announcement>);
static_assert(std::is_trivially_copyable_v<Hello> && std::has_unique_object_representations_v<Hello>);

// A rank's own, with a fresh socket name and token.
Announcement announce(int rank, int world_size, size_t segment_bytes);

// Throws where the ranks cannot share memory. Deterministic in `all`, so that every rank throws the same text without
// another round.
std::vector<Announcement> parse_announcements(const std::vector<std::string>& all);

// Called once for each peer, with its descriptor, which is closed after it. May throw.
using TakeDescriptor = std::function<void(int peer, int fd, const Announcement& announced)>;

}  // namespace llcoll::exchange

namespace llcoll {

// Collective, as exchange_segments (shm.h), for descriptors of any kind: memory of a GPU. `bytes` is what peers find in
// Announcement::segment_bytes. Keeps no descriptor.
void exchange_descriptors(int own_fd, size_t bytes, int rank, int world_size, const AllGather& all_gather,
                          double timeout_s, const exchange::TakeDescriptor& take,
                          const std::function<bool()>& interrupted = {});

}  // namespace llcoll
