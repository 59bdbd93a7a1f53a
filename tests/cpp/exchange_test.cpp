// The exchange of segments: every rank sees every segment, or all fail alike and leave nothing behind.
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

#include "check.h"
#include "cpu/exchange.h"
#include "cpu/shm.h"
#include "ranks.h"

namespace {

size_t bytes_of(int rank) { return 8192 + 4096 * static_cast<size_t>(rank % 3) + 8; }

unsigned char pattern(int writer, int owner) { return static_cast<unsigned char>(writer * 7 + owner * 31 + 1); }

// Each rank writes one byte into each segment; then each sees all that was written, through its own mappings.
std::string exchange_and_check(Rank& self, const AllGather& all_gather, size_t other_mappings = 0) {
  const size_t num_fds = count_fds();
  {
    Segment own = Segment::create(bytes_of(self.rank), self.world_size);
    std::vector<Segment> all = exchange_segments(own, self.rank, self.world_size, all_gather, 20);
    EXPECT_EQ(all.size(), static_cast<size_t>(self.world_size));
    EXPECT_EQ(own.fd(), -1);
    EXPECT_EQ(count_fds(), num_fds);
    EXPECT_EQ(all[self.rank].data(), own.data());
    for (int owner = 0; owner < self.world_size; ++owner) {
      EXPECT_EQ(all[owner].bytes(), bytes_of(owner));
      const size_t last = all[owner].bytes() - 1;
      EXPECT(all[owner].data()[last] == std::byte{0});
      all[owner].data()[self.rank] = std::byte{pattern(self.rank, owner)};
    }
    self.barrier();
    for (int owner = 0; owner < self.world_size; ++owner) {
      for (int writer = 0; writer < self.world_size; ++writer) {
        EXPECT(all[owner].data()[writer] == std::byte{pattern(writer, owner)});
      }
    }
    EXPECT_EQ(count_mappings(), static_cast<size_t>(self.world_size) + other_mappings);
  }
  EXPECT_EQ(count_mappings(), other_mappings);
  EXPECT_EQ(count_fds(), num_fds);
  return "ok";
}

std::string exchange_plainly(Rank& self) { return exchange_and_check(self, self.bootstrap()); }

// As exchange_and_check, for exchanges that fail: the error passes through once nothing is found to have leaked.
std::string fail_cleanly(Rank& self, const AllGather& all_gather, double timeout_s = 20,
                         const std::function<bool()>& interrupted = {}) {
  const size_t num_fds = count_fds();
  const std::string error = error_of([&] {
    Segment own = Segment::create(bytes_of(self.rank), self.world_size);
    exchange_segments(own, self.rank, self.world_size, all_gather, timeout_s, interrupted);
  });
  EXPECT_EQ(count_mappings(), size_t{0});
  EXPECT_EQ(count_fds(), num_fds);
  return "error: " + error;
}

exchange::Announcement parse(const std::string& bytes) {
  exchange::Announcement one;
  EXPECT_EQ(bytes.size(), sizeof one);
  std::memcpy(&one, bytes.data(), sizeof one);
  return one;
}

template <class Change>
void tamper(std::string& bytes, Change change) {
  exchange::Announcement one = parse(bytes);
  change(one);
  bytes.assign(reinterpret_cast<const char*>(&one), sizeof one);
}

// exchange_segments makes three all_gathers; this is the one with the announcements.
constexpr int kAnnounceCall = 1;

int connect_to(const exchange::Random& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string text = "llcoll-";
  for (const unsigned char byte : name) {
    char hex[3];
    snprintf(hex, sizeof hex, "%02x", byte);
    text += hex;
  }
  text.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), length), 0);
  return fd;
}

// Sends with `num_fds` copies of a descriptor attached.
void send_bytes(int fd, const void* bytes, size_t count, int num_fds = 0) {
  iovec part{const_cast<void*>(bytes), count};
  alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (num_fds > 0) {
    const std::vector<int> fds(static_cast<size_t>(num_fds), fd);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  EXPECT_EQ(sendmsg(fd, &message, MSG_NOSIGNAL), static_cast<ssize_t>(count));
}

// The other side closed without a word: no descriptor was handed out.
void expect_refused(int fd) {
  timeval limit{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  char bytes[256];
  const ssize_t count = recv(fd, bytes, sizeof bytes, 0);
  EXPECT(count == 0 || (count < 0 && errno == ECONNRESET));
  close(fd);
}

void test_exchange_1() { expect_all(run_ranks(1, exchange_plainly), "ok"); }
void test_exchange_2() { expect_all(run_ranks(2, exchange_plainly), "ok"); }
void test_exchange_5() { expect_all(run_ranks(5, exchange_plainly), "ok"); }
void test_exchange_16() { expect_all(run_ranks(16, exchange_plainly), "ok"); }
void test_exchange_72() { expect_all(run_ranks(72, exchange_plainly, 100), "ok"); }

void test_exchange_in_threads() {
  constexpr int kRanks = 4;
  BoardOwner owner;
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      Rank self{owner.board, rank, kRanks};
      errors[rank] = error_of([&] {
        Segment own = Segment::create(bytes_of(rank), kRanks);
        exchange_segments(own, rank, kRanks, self.bootstrap(), 20);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_all(errors, "no error");
}

void test_bad_arguments() {
  Segment own = Segment::create(4096);
  const AllGather none = [](const std::string&) -> std::vector<std::string> { throw std::runtime_error("called"); };
  for (const auto& [rank, world_size] : {std::pair(0, 0), {0, 73}, {2, 2}, {-1, 2}}) {
    EXPECT_IN("are supported", error_of([&] { exchange_segments(own, rank, world_size, none, 1); }));
  }
}

void test_wrong_size_announced() {
  const auto body = [](Rank& self) {
    return fail_cleanly(self, self.bootstrap([&](int call, std::vector<std::string>& all) {
      if (call == kAnnounceCall) tamper(all[1], [](auto& one) { one.segment_bytes += 4096; });
    }));
  };
  const std::string error = expect_same_error(run_ranks(3, body));
  EXPECT_IN("segment of rank 1: a peer's segment has 12296 bytes, announced were 16392", error);
}

template <class Change>
std::string error_of_tampering(int victim, Change change) {
  return expect_same_error(run_ranks(4, [&](Rank& self) {
    return fail_cleanly(self, self.bootstrap([&](int call, std::vector<std::string>& all) {
      if (call == kAnnounceCall) change(all[victim]);
    }));
  }));
}

void test_bad_announcements() {
  const auto other_host = [](std::string& bytes) { tamper(bytes, [](auto& one) { one.boot_id[3] = '!'; }); };
  const std::string hosts = error_of_tampering(2, other_host);
  EXPECT_IN("all ranks must be of one host and namespace", hosts);
  EXPECT_IN("ranks 0, 1, 3 on host '", hosts);
  EXPECT_IN("rank 2 on host '", hosts);
  EXPECT_IN("namespace", error_of_tampering(0, [](std::string& bytes) {
              tamper(bytes, [](auto& one) { one.network_namespace += 1; });
            }));
  EXPECT_IN("one user",
            error_of_tampering(3, [](std::string& bytes) { tamper(bytes, [](auto& one) { one.uid += 1; }); }));
  EXPECT_IN("rank 1 announced 3 bytes", error_of_tampering(1, [](std::string& bytes) { bytes = "abc"; }));
  EXPECT_IN("rank 1 announced protocol", error_of_tampering(1, [](std::string& bytes) { bytes[0] ^= 1; }));
  EXPECT_IN("segment of 0 bytes",
            error_of_tampering(1, [](std::string& bytes) { tamper(bytes, [](auto& one) { one.segment_bytes = 0; }); }));
  EXPECT_IN("rank 1 of 4 believes to be rank 2 of 4",
            error_of_tampering(1, [](std::string& bytes) { tamper(bytes, [](auto& one) { one.rank = 2; }); }));
  EXPECT_IN("rank 1 of 4 believes to be rank 1 of 5",
            error_of_tampering(1, [](std::string& bytes) { tamper(bytes, [](auto& one) { one.world_size = 5; }); }));
}

void test_wrong_pid_announced() {
  const std::string error =
      error_of_tampering(1, [](std::string& bytes) { tamper(bytes, [](auto& one) { one.pid = 1; }); });
  // Either end may notice first; the other then finds the connection closed.
  EXPECT_IN(" instead of 1", error);
}

// Strangers of the same user are in rank 0's queue before its peers are.
void test_strangers_are_refused() {
  const auto body = [](Rank& self) {
    std::vector<int> strangers;
    const auto act = [&](int call, std::vector<std::string>& all) {
      if (call != kAnnounceCall) return;
      if (self.rank == 0) {
        const exchange::Announcement group = parse(all[0]);
        const auto add = [&] { return strangers.emplace_back(connect_to(group.socket_name)); };
        exchange::Hello hello;
        hello.from = 1;
        hello.to = 0;
        send_bytes(add(), &hello, sizeof hello);  // a token of zeros
        send_bytes(add(), &hello, sizeof hello, 16);
        hello.token = group.token;
        send_bytes(add(), &hello, sizeof hello - 1);
        send_bytes(add(), &hello, sizeof hello, 1);  // all but the process id, which is rank 0's
        hello.from = 0;
        send_bytes(add(), &hello, sizeof hello);
        hello.from = 3;
        send_bytes(add(), &hello, sizeof hello);
        hello.from = 1;
        hello.to = 2;
        send_bytes(add(), &hello, sizeof hello);
        send_bytes(add(), "GET / HTTP/1.1", 14);
        close(connect_to(group.socket_name));
        for (int i = 0; i < 100; ++i) add();  // silent
      }
      self.barrier();
    };
    const size_t num_fds = count_fds();
    Segment own = Segment::create(bytes_of(self.rank), self.world_size);
    const auto all = exchange_segments(own, self.rank, self.world_size, self.bootstrap(act), 20);
    EXPECT_EQ(all.size(), size_t{3});
    for (const int fd : strangers) expect_refused(fd);
    EXPECT_EQ(count_fds(), num_fds);
    return "ok";
  };
  expect_all(run_ranks(3, body), "ok");
}

// Another user who knows all, the token too. Needs root to change the user; without it there is nothing to try.
void test_other_user_is_refused() {
  if (geteuid() != 0) return;
  const auto body = [](Rank& self) {
    const auto act = [&](int call, std::vector<std::string>& all) {
      if (call != kAnnounceCall) return;
      if (self.rank == 0) {
        const exchange::Announcement group = parse(all[0]);
        const pid_t child = fork();
        if (child == 0) {
          const bool is_other = setuid(65534) == 0;
          const int fd = connect_to(group.socket_name);
          exchange::Hello hello;
          hello.token = group.token;
          hello.from = 1;
          hello.to = 0;
          send_bytes(fd, &hello, sizeof hello);
          put(self.board->slots[kMaxRounds - 1][0], is_other ? "sent" : "not another user");
          try {
            expect_refused(fd);
          } catch (const std::exception& error) {
            put(self.board->slots[kMaxRounds - 1][1], error.what());
            _exit(1);
          }
          put(self.board->slots[kMaxRounds - 1][1], "refused");
          _exit(0);
        }
        for (int i = 0; i < 10000 && get(self.board->slots[kMaxRounds - 1][0]).empty(); ++i) usleep(1000);
        EXPECT_EQ(get(self.board->slots[kMaxRounds - 1][0]), std::string("sent"));
      }
      self.barrier();
    };
    Segment own = Segment::create(bytes_of(self.rank), self.world_size);
    exchange_segments(own, self.rank, self.world_size, self.bootstrap(act), 20);
    if (self.rank == 0) {
      for (int i = 0; i < 10000 && waitpid(-1, nullptr, WNOHANG) == 0; ++i) usleep(1000);
      EXPECT_EQ(get(self.board->slots[kMaxRounds - 1][1]), std::string("refused"));
    }
    return "ok";
  };
  expect_all(run_ranks(2, body), "ok");
}

void test_late_rank() {
  const auto body = [](Rank& self) {
    return fail_cleanly(self, self.bootstrap([&](int call, std::vector<std::string>&) {
      if (call == kAnnounceCall && self.rank == 2) sleep(2);
    }),
                        0.5);
  };
  const auto start = Clock::now();
  const std::string error = expect_same_error(run_ranks(3, body));
  EXPECT_IN("ranks 0, 1: CollectiveTimeout: waited 0.5 s for the segments of rank 2; rank 2: rank 0: cannot connect",
            error);
  EXPECT(Clock::now() - start < std::chrono::seconds(10));
}

void test_killed_rank() {
  const auto body = [](Rank& self) {
    self.limit_s = 1;
    return fail_cleanly(self, self.bootstrap([&](int call, std::vector<std::string>&) {
      if (call == kAnnounceCall && self.rank == 1) kill(getpid(), SIGKILL);
    }),
                        1);
  };
  const auto results = run_ranks(4, body);
  EXPECT_EQ(results[1], std::string());
  for (const int rank : {0, 2, 3}) {
    EXPECT_IN("rank 1", results[rank]);
    EXPECT_IN("error: LlcollError: set-up failed in exchanging the segments", results[rank]);
  }
}

// A rank that fails ends the others' waits at once, not at their limit.
void test_failure_spreads() {
  const auto body = [](Rank& self) {
    return fail_cleanly(self, self.bootstrap([&](int call, std::vector<std::string>& all) {
      if (call == kAnnounceCall && self.rank == 2) tamper(all[0], [](auto& one) { one.segment_bytes += 1; });
    }));
  };
  const auto start = Clock::now();
  const std::string error = expect_same_error(run_ranks(5, body));
  EXPECT_IN("rank 2: segment of rank 0: a peer's segment has", error);
  EXPECT(Clock::now() - start < std::chrono::seconds(10));
}

void test_interrupt() {
  const auto body = [](Rank& self) {
    const auto start = Clock::now();
    return fail_cleanly(self, self.bootstrap([&](int call, std::vector<std::string>&) {
      if (call == kAnnounceCall && self.rank == 1) sleep(1);
    }),
                        20, [&] { return Clock::now() - start > std::chrono::milliseconds(300); });
  };
  EXPECT_IN("rank 0: interrupted while waiting for rank 1", expect_same_error(run_ranks(2, body)));
}

// A profiler's timer: every system call may be cut short at any moment.
void test_signals() {
  const auto body = [](Rank& self) -> std::string {
    struct sigaction action {};
    action.sa_handler = [](int) {};  // without SA_RESTART
    EXPECT_EQ(sigaction(SIGALRM, &action, nullptr), 0);
    const itimerval every_ms{{0, 1000}, {0, 1000}};
    EXPECT_EQ(setitimer(ITIMER_REAL, &every_ms, nullptr), 0);
    const Segment large = Segment::create(size_t{40} << 20, self.world_size);
    return exchange_and_check(self, self.bootstrap(), 1);
  };
  expect_all(run_ranks(3, body), "ok");
}

constexpr Test kTests[] = {
    TEST(exchange_1),
    TEST(exchange_2),
    TEST(exchange_5),
    TEST(exchange_16),
    TEST(exchange_72),
    TEST(exchange_in_threads),
    TEST(bad_arguments),
    TEST(wrong_size_announced),
    TEST(bad_announcements),
    TEST(wrong_pid_announced),
    TEST(strangers_are_refused),
    TEST(other_user_is_refused),
    TEST(late_rank),
    TEST(killed_rank),
    TEST(failure_spreads),
    TEST(interrupt),
    TEST(signals),
};

}  // namespace

int main(int argc, char** argv) { return run_main(kTests, argc, argv); }
