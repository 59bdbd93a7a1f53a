// A network of hosts with a delay, where the kernel has no netem: one TUN device in each network namespace, and this
// program, which hands each IPv4 packet to the host it is for after a fixed time.
//
//   delay_relay DELAY_US NAMESPACE...
//
// The i-th namespace (a name of `ip netns`) gets a device net0, for the address 10.213.0.i (from 1), which the caller
// sets up once this program has printed "ready". It ends with its standard input.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

namespace {

constexpr size_t kMaxPacket = 65536;
constexpr size_t kMaxQueued = 64 << 20;  // bytes; beyond it packets are lost, as in a switch

struct Packet {
  int64_t due_ns;
  size_t host;
  std::vector<char> data;
};

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * int64_t{1000000000} + t.tv_nsec;
}

[[noreturn]] void fail(const std::string& what) {
  std::perror(what.c_str());
  std::exit(1);
}

// A TUN device net0 inside a namespace, where this thread goes for a moment.
int open_tun(const char* name_space) {
  const int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  const int there = open((std::string("/run/netns/") + name_space).c_str(), O_RDONLY | O_CLOEXEC);
  if (home < 0 || there < 0 || setns(there, CLONE_NEWNET) != 0) fail(name_space);
  const int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tun < 0) fail("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strcpy(request.ifr_name, "net0");
  if (ioctl(tun, TUNSETIFF, &request) != 0) fail("TUNSETIFF");
  if (setns(home, CLONE_NEWNET) != 0) fail("setns home");
  close(home);
  close(there);
  return tun;
}

// The host that an IPv4 packet is for; num_hosts where it is for none.
size_t host_of(const char* packet, size_t size, size_t num_hosts) {
  if (size < 20 || (packet[0] & 0xF0) != 0x40) return num_hosts;
  const auto* to = reinterpret_cast<const unsigned char*>(packet) + 16;
  if (to[0] != 10 || to[1] != 213 || to[2] != 0 || to[3] == 0 || to[3] > num_hosts) return num_hosts;
  return to[3] - 1u;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: delay_relay DELAY_US NAMESPACE...\n");
    return 2;
  }
  const auto delay_ns = static_cast<int64_t>(1000 * std::atof(argv[1]));
  const size_t num_hosts = static_cast<size_t>(argc - 2);
  // The default slack of timers, 50 us, would be added to each delay.
  prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
  std::vector<pollfd> files;
  for (size_t host = 0; host < num_hosts; ++host) files.push_back({open_tun(argv[2 + host]), POLLIN, 0});
  files.push_back({STDIN_FILENO, POLLIN, 0});
  std::printf("ready\n");
  std::fflush(stdout);

  std::deque<Packet> queue;  // one delay for all: first in, first out
  size_t num_queued = 0;
  std::vector<char> buffer(kMaxPacket);
  for (;;) {
    timespec limit{3600, 0};
    if (!queue.empty()) {
      const int64_t left = std::max<int64_t>(0, queue.front().due_ns - now_ns());
      limit = {left / 1000000000, left % 1000000000};
    }
    if (ppoll(files.data(), files.size(), &limit, nullptr) < 0) fail("ppoll");
    if (files[num_hosts].revents != 0) return 0;
    for (size_t host = 0; host < num_hosts; ++host) {
      if (files[host].revents == 0) continue;
      for (int i = 0; i < 64; ++i) {
        const ssize_t size = read(files[host].fd, buffer.data(), buffer.size());
        if (size <= 0) break;
        const size_t target = host_of(buffer.data(), static_cast<size_t>(size), num_hosts);
        if (target == num_hosts || num_queued > kMaxQueued) continue;
        num_queued += static_cast<size_t>(size);
        queue.push_back({now_ns() + delay_ns, target, {buffer.data(), buffer.data() + size}});
      }
    }
    while (!queue.empty() && queue.front().due_ns <= now_ns()) {
      const Packet& packet = queue.front();
      // A full device loses the packet, as a full port does: TCP sends it again.
      if (write(files[packet.host].fd, packet.data.data(), packet.data.size()) < 0 && errno != EAGAIN && errno != EIO) {
        std::perror("write");
      }
      num_queued -= packet.data.size();
      queue.pop_front();
    }
  }
}
