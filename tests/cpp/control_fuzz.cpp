// Hostile bytes for everything that reads what a peer sent in set-up: announcements, outcomes of steps, hellos on a
// socket. Nothing but a std::runtime_error may come of them. One entry for libFuzzer; with -DLLCOLL_OWN_DRIVER a
// seeded driver of its own: control_fuzz SECONDS SEED.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "cpu/exchange.h"
#include "cpu/rendezvous.h"
#include "cpu/socket.h"

using namespace llcoll;

namespace {

// Byte 0 says what is read; the rest is laid over a valid message: offset, length, bytes.
std::string lay_over(std::string valid, const uint8_t* data, size_t size) {
  while (size >= 2) {
    const size_t at = data[0] % (valid.size() + 1), length = data[1] % 17;
    data += 2;
    size -= 2;
    const size_t count = std::min(length, size);
    if (length == 16) {
      valid.resize(at);
    } else {
      valid.replace(at, count, reinterpret_cast<const char*>(data), count);
    }
    data += count;
    size -= count;
  }
  return valid;
}

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

void read_announcements(const uint8_t* data, size_t size) {
  static const exchange::Announcement first = exchange::announce(0, 2, 4096);
  exchange::Announcement second = first;
  second.rank = 1;
  const auto parsed = exchange::parse_announcements({bytes_of(first), lay_over(bytes_of(second), data, size)});
  // What passed is fit for use.
  if (parsed.size() != 2 || parsed[1].rank != 1 || parsed[1].segment_bytes == 0) abort();
  if (parsed[1].uid != first.uid || parsed[1].world_size != 2) abort();
}

void read_outcome(const uint8_t* data, size_t size) {
  const std::string hostile = lay_over(std::string("ostep\0text", 10), data, size);
  agree([&](const std::string& own) { return std::vector<std::string>{own, hostile}; }, 0, "step", [] {});
}

void read_hello(const uint8_t* data, size_t size) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) abort();
  const std::string bytes = lay_over(bytes_of(exchange::Hello{}), data, size);
  const bool with_fd = size > 0 && (data[size - 1] & 1) != 0;
  if (send(ends[0], bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0 && !bytes.empty()) abort();
  const exchange::Received received = exchange::receive_hello(ends[1], with_fd);
  if (received.is_hello && (with_fd || bytes.size() != sizeof(exchange::Hello))) abort();
  close(ends[0]);
  close(ends[1]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    switch (data[0] % 3) {
      case 0:
        read_announcements(data + 1, size - 1);
        break;
      case 1:
        read_outcome(data + 1, size - 1);
        break;
      default:
        read_hello(data + 1, size - 1);
    }
  } catch (const std::runtime_error&) {
  }
  return 0;
}

#if defined(LLCOLL_OWN_DRIVER)
#include <chrono>
#include <cstdio>
#include <random>

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  std::mt19937_64 random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  const auto start = std::chrono::steady_clock::now();
  uint64_t runs = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
    uint8_t data[96];
    const size_t size = 1 + random() % sizeof data;
    for (size_t i = 0; i < size; ++i) {
      // Small and extreme bytes more often than others: they are counts, ranks and offsets.
      const uint64_t draw = random();
      data[i] = static_cast<uint8_t>((draw & 3) == 0   ? draw >> 8 & 3
                                     : (draw & 3) == 1 ? 255 - (draw >> 8 & 1)
                                                       : draw >> 16);
    }
    LLVMFuzzerTestOneInput(data, size);
    ++runs;
  }
  std::printf("%llu inputs\n", static_cast<unsigned long long>(runs));
  return 0;
}
#endif
