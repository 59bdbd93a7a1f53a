// Errors, agreement between ranks, and segments.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "check.h"
#include "cpu/rendezvous.h"
#include "cpu/shm.h"
#include "ranks.h"

namespace {

void test_text() {
  EXPECT_EQ(concat("a", 1, 'b', 2.5), std::string("a1b2.5"));
  EXPECT_EQ(error_of([] { fail(ErrorKind::kError, "x"); }), std::string("LlcollError: x"));
  EXPECT_EQ(error_of([] { fail(ErrorKind::kTimeout, "x"); }), std::string("CollectiveTimeout: x"));
  EXPECT_EQ(error_of([] { fail(ErrorKind::kMismatch, "x"); }), std::string("CollectiveMismatch: x"));
  EXPECT_EQ(error_of([] { fail(ErrorKind::kAborted, "x"); }), std::string("CollectiveAborted: x"));
  EXPECT_EQ(error_of([] { check_that(1 + 1 == 2, "not reached"); }), std::string("no error"));
  EXPECT_EQ(error_of([] { check_that(false, "got ", 3); }), std::string("LlcollError: got 3"));
  EXPECT_EQ(errno_text(ENOSPC), concat("No space left on device (errno ", ENOSPC, ")"));
  EXPECT_EQ(error_of([] { check_errno(close(-1) == 0, "close"); }),
            concat("LlcollError: close: Bad file descriptor (errno ", EBADF, ")"));
  EXPECT_EQ(rank_list({4}), std::string("rank 4"));
  EXPECT_EQ(rank_list({0, 1}), std::string("ranks 0, 1"));
  EXPECT_EQ(rank_list({0, 2, 3, 4, 7}), std::string("ranks 0, 2-4, 7"));
}

void test_agree() {
  expect_all(run_ranks(3,
                       [](Rank& self) {
                         int runs = 0;
                         agree(self.bootstrap(), self.rank, "counting", [&] { ++runs; });
                         EXPECT_EQ(runs, 1);
                         return "ok";
                       }),
             "ok");
  const auto failing = [](Rank& self) -> std::string {
    agree(self.bootstrap(), self.rank, "loading", [&] {
      check_that(self.rank != 1, "no ", "room");
      if (self.rank == 2) throw 7;
      if (self.rank >= 3) fail(ErrorKind::kTimeout, "too late");
    });
    return "ok";
  };
  EXPECT_EQ(expect_same_error(run_ranks(5, failing)),
            std::string("LlcollError: set-up failed in loading: rank 1: no room; rank 2: an exception that is not a "
                        "std::exception; ranks 3, 4: CollectiveTimeout: too late"));
}

void test_agree_on_different_steps() {
  const auto body = [](Rank& self) -> std::string {
    agree(self.bootstrap(), self.rank, self.rank == 1 ? "b" : "a", [] {});
    return "ok";
  };
  EXPECT_EQ(
      expect_same_error(run_ranks(3, body)),
      std::string("LlcollError: set-up failed: the ranks make different calls: ranks 0, 2: in step 'a'; rank 1: in "
                  "step 'b'"));
}

void test_agree_without_bootstrap() {
  const AllGather broken = [](const std::string&) -> std::vector<std::string> {
    throw std::runtime_error("store down");
  };
  EXPECT_EQ(error_of([&] { agree(broken, 0, "a", [] {}); }), std::string("store down"));
  const std::string both = error_of([&] { agree(broken, 0, "a", [] { fail(ErrorKind::kError, "no room"); }); });
  EXPECT_IN("rank 0: no room", both);
  EXPECT_IN("store down", both);
  const AllGather empty = [](const std::string&) { return std::vector<std::string>(); };
  EXPECT_IN("0 answers", error_of([&] { agree(empty, 0, "a", [] {}); }));
  EXPECT_IN("0 answers", error_of([&] { gather(empty, 2, "a"); }));
  const AllGather odd = [](const std::string&) { return std::vector<std::string>{"", "x"}; };
  EXPECT_IN("rank 0: sent 0 bytes that are not an outcome; rank 1: sent 1",
            error_of([&] { agree(odd, 0, "a", [] {}); }));
}

void test_segment() {
  const size_t num_fds = count_fds();
  {
    Segment segment = Segment::create(100001);
    EXPECT_EQ(segment.bytes(), size_t{100001});
    EXPECT_EQ(fcntl(segment.fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    EXPECT(ftruncate(segment.fd(), 5) != 0);
    EXPECT(ftruncate(segment.fd(), 1 << 20) != 0);
    for (size_t i = 0; i < segment.bytes(); ++i) EXPECT(segment.data()[i] == std::byte{0});
    const Segment peer = Segment::map_fd(segment.fd(), 100001, geteuid());
    EXPECT(peer.data() != segment.data());
    segment.data()[100000] = std::byte{9};
    EXPECT(peer.data()[100000] == std::byte{9});
    std::byte* const data = segment.data();
    Segment moved = std::move(segment);
    EXPECT(moved.data() == data && segment.data() == nullptr && segment.fd() == -1);
    segment = std::move(moved);
    EXPECT(segment.data() == data && moved.bytes() == 0);
    segment = Segment::create(8);
    EXPECT_EQ(count_mappings(), size_t{2});
    {
      const Segment view = segment.view();
      EXPECT(view.data() == segment.data() && view.fd() == -1);
    }
    segment.data()[7] = std::byte{1};
    Segment large = Segment::create((size_t{5} << 20) + 3);  // takes the path of huge pages
    large.data()[large.bytes() - 1] = std::byte{1};
  }
  EXPECT_EQ(count_mappings(), size_t{0});
  EXPECT_EQ(count_fds(), num_fds);
}

void test_segment_too_large() {
  const size_t num_fds = count_fds();
  EXPECT_IN("a segment of 0 bytes", error_of([] { Segment::create(0); }));
  EXPECT_IN("a segment of 18446744073709551615 bytes", error_of([] { Segment::create(~size_t{0}); }));
  EXPECT_IN("too little memory for 1 segment of 35184372088832 bytes",
            error_of([] { Segment::create(size_t{1} << 45); }));
  EXPECT_IN("too little memory for 72 segments", error_of([] { Segment::create(size_t{1} << 42, 72); }));
  EXPECT_IN("num_segments is 73", error_of([] { Segment::create(4096, 73); }));
  EXPECT_EQ(count_mappings(), size_t{0});
  EXPECT_EQ(count_fds(), num_fds);
}

void test_map_fd_refuses() {
  const uid_t user = geteuid();
  const Segment segment = Segment::create(8192);
  EXPECT_IN("has 8192 bytes, announced were 8193", error_of([&] { Segment::map_fd(segment.fd(), 8193, user); }));
  EXPECT_IN("has 8192 bytes, announced were 4096", error_of([&] { Segment::map_fd(segment.fd(), 4096, user); }));
  EXPECT_IN("owner", error_of([&] { Segment::map_fd(segment.fd(), 8192, user + 1); }));
  EXPECT_IN("not a sealed segment", error_of([&] { Segment::map_fd(-1, 8192, user); }));
  const Fd unsealed(memfd_create("stranger", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_IN("not a sealed segment", error_of([&] { Segment::map_fd(unsealed.get(), 8192, user); }));
  EXPECT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL), 0);
  EXPECT_IN("not a sealed segment", error_of([&] { Segment::map_fd(unsealed.get(), 8192, user); }));
  const Fd device(open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_IN("not a sealed segment", error_of([&] { Segment::map_fd(device.get(), 8192, user); }));
}

void test_one_rank_cannot_create() {
  const auto body = [](Rank& self) -> std::string {
    const size_t num_fds = count_fds();
    Segment own;
    const std::string error = error_of([&] {
      agree(self.bootstrap(), self.rank, "making the segment",
            [&] { own = Segment::create(self.rank == 1 ? size_t{1} << 45 : 4096, 3); });
    });
    own = Segment();
    EXPECT_EQ(count_fds(), num_fds);
    EXPECT_EQ(count_mappings(), size_t{0});
    return "error: " + error;
  };
  const std::string error = expect_same_error(run_ranks(3, body));
  EXPECT_IN("LlcollError: set-up failed in making the segment: rank 1: too little memory for 3 segments", error);
}

constexpr Test kTests[] = {
    TEST(text),
    TEST(agree),
    TEST(agree_on_different_steps),
    TEST(agree_without_bootstrap),
    TEST(segment),
    TEST(segment_too_large),
    TEST(map_fd_refuses),
    TEST(one_rank_cannot_create),
};

}  // namespace

int main(int argc, char** argv) { return run_main(kTests, argc, argv); }
