// exchange_segments: one connection per pair of ranks, made by the higher one, over which both descriptors travel.
#include "cpu/exchange.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>

#include "check.h"
#include "cpu/shm.h"
#include "cpu/socket.h"

namespace llcoll {
namespace {

using exchange::Announcement;
using exchange::Hello;
using exchange::Io;
using exchange::Received;
using exchange::TakeDescriptor;
using Clock = std::chrono::steady_clock;

constexpr int kPollMs = 50;            // retry of what the kernel has no room for, and the interrupt check
constexpr size_t kMaxStrangers = 128;  // connections that have not said who they are

// One rank's part: an event loop over non-blocking sockets. Its destructor closes all of them, which tells the peers.
class Exchange {
 public:
  Exchange(int own_fd, int rank, std::vector<Announcement> group, Fd listener, const TakeDescriptor& take)
      : own_fd_(own_fd),
        rank_(rank),
        group_(std::move(group)),
        listener_(std::move(listener)),
        take_(take),
        is_taken_(group_.size()) {
    is_taken_[rank_] = true;
    for (int peer = 0; peer < rank_; ++peer) to_connect_.push_back(peer);
  }

  void run(double timeout_s, const std::function<bool()>& interrupted) {
    const double limit_s = timeout_s > 0 ? std::min(timeout_s, 1e8) : kDefaultExchangeTimeout;
    try {
      exchange_all(limit_s, interrupted);
    } catch (const std::exception& error) {
      // A refused connection may have been a peer's: then it is the cause of this error, and of theirs.
      if (refusals_ == 0) throw;
      fail(ErrorKind::kError,
           concat(without_prefix(error.what()), "; connections refused: ", refusals_, ", the last for ", refusal_));
    }
  }

 private:
  enum class State {
    kAwaitHello,  // acceptor: an unknown
    kSendFd,      // either side: the kernel had no room yet
    kAwaitFd,
    kDone,
  };

  struct Connection {
    Fd fd;
    int peer = -1;  // -1: has not proved who it is
    State state = State::kAwaitHello;
    pid_t pid = 0;
  };

  void exchange_all(double limit_s, const std::function<bool()>& interrupted) {
    const auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
    while (true) {
      connect_all();
      const std::vector<int> awaited = missing();
      if (awaited.empty()) return;
      check_that(!interrupted || !interrupted(), "interrupted while waiting for ", rank_list(awaited));
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left < 0) {
        fail(ErrorKind::kTimeout, concat("waited ", limit_s, " s for the segments of ", rank_list(awaited)));
      }
      serve(static_cast<int>(std::min<int64_t>(kPollMs, left + 1)));
    }
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int peer = 0; peer < static_cast<int>(group_.size()); ++peer) {
      const bool is_sending = std::any_of(connections_.begin(), connections_.end(), [&](const Connection& connection) {
        return connection.peer == peer && connection.state != State::kDone;
      });
      if (!is_taken_[peer] || is_sending) ranks.push_back(peer);
    }
    return ranks;
  }

  // Empty if the process at the other end can be `peer`. Process ids compare only inside one pid namespace.
  std::string mismatch(const ucred& credentials, int peer) const {
    const Announcement& wanted = group_[peer];
    if (credentials.uid != wanted.uid) return concat("user id ", credentials.uid, " instead of ", wanted.uid);
    if (wanted.pid_namespace == group_[rank_].pid_namespace && credentials.pid != wanted.pid) {
      return concat("process ", credentials.pid, " instead of ", wanted.pid);
    }
    return "";
  }

  Hello hello_to(int peer) const { return {exchange::kMagic, group_[0].token, rank_, peer}; }

  // All that can be connected, before any error is raised: a peer that knows us sees our sockets close and need not
  // wait for its timeout.
  void connect_all() {
    std::string error;
    for (auto peer = to_connect_.begin(); peer != to_connect_.end();) {
      try {
        peer = try_connect(*peer) ? to_connect_.erase(peer) : std::next(peer);
      } catch (const std::exception& caught) {
        if (error.empty()) error = without_prefix(caught.what());
        peer = to_connect_.erase(peer);
      }
    }
    check_that(error.empty(), error);
  }

  bool try_connect(int peer) {
    Connection connection{exchange::make_socket(), peer, State::kAwaitFd, group_[peer].pid};
    const int fd = connection.fd.get();
    try {
      if (!exchange::connect_to(connection.fd, group_[peer].socket_name)) return false;
    } catch (const std::exception& error) {
      fail(ErrorKind::kError, concat("rank ", peer, ": ", without_prefix(error.what())));
    }
    const std::string wrong = mismatch(exchange::credentials_of(fd), peer);
    check_that(wrong.empty(), "the socket of rank ", peer, " belongs to ", wrong);
    if (exchange::send_hello(fd, hello_to(peer), -1) != Io::kDone) return false;
    connections_.push_back(std::move(connection));
    return true;
  }

  void serve(int wait_ms) {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_) {
      // A send that found no room is retried after the poll's limit: the room is the kernel's, not the socket's.
      polled.push_back({connection.fd.get(), static_cast<short>(connection.state == State::kSendFd ? 0 : POLLIN), 0});
    }
    const int count = poll(polled.data(), polled.size(), wait_ms);
    check_errno(count >= 0 || errno == EINTR, "poll failed");
    if (count < 0) return;
    size_t idx = 1;
    for (auto connection = connections_.begin(); connection != connections_.end(); ++idx) {
      const bool is_ready = polled[idx].revents != 0 || connection->state == State::kSendFd;
      if (is_ready) advance(*connection);
      connection = connection->state == State::kDone ? connections_.erase(connection) : std::next(connection);
    }
    if (polled[0].revents != 0) accept_all();
  }

  void accept_all() {
    while (true) {
      Connection connection;
      connection.fd = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!connection.fd) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        check_errno(errno == EAGAIN, "accept failed");
        return;
      }
      const ucred credentials = exchange::credentials_of(connection.fd.get());
      if (credentials.uid != group_[rank_].uid) {
        refuse(connection, concat("user id ", credentials.uid));
        continue;
      }
      connection.pid = credentials.pid;
      const auto is_stranger = [](const Connection& other) { return other.peer < 0; };
      if (std::count_if(connections_.begin(), connections_.end(), is_stranger) >= std::ptrdiff_t{kMaxStrangers}) {
        const auto oldest = std::find_if(connections_.begin(), connections_.end(), is_stranger);
        refuse(*oldest, "silence");
        connections_.erase(oldest);
      }
      connections_.push_back(std::move(connection));
    }
  }

  // A stranger's connection: closed, counted for the message of a timeout, and the wait goes on.
  void refuse(Connection& connection, const std::string& reason) {
    ++refusals_;
    refusal_ = reason;
    connection.fd.reset();
    connection.state = State::kDone;
  }

  void advance(Connection& connection) {
    if (connection.state == State::kAwaitHello) identify(connection);
    if (connection.state == State::kSendFd) send_fd(connection);
    if (connection.state == State::kAwaitFd) receive_fd(connection);
  }

  void identify(Connection& connection) {
    const Received received = exchange::receive_hello(connection.fd.get(), false);
    if (received.io == Io::kAgain) return;
    if (received.io == Io::kClosed) return refuse(connection, "silence");
    if (!received.is_hello || received.hello.magic != exchange::kMagic)
      return refuse(connection, "a malformed message");
    const int from = received.hello.from;
    // The ranks above connect to us, each once.
    if (received.hello.token != group_[0].token) return refuse(connection, "a wrong token");
    if (from <= rank_ || from >= static_cast<int>(group_.size()) || received.hello.to != rank_) {
      return refuse(connection, concat("rank ", from, " calling rank ", received.hello.to));
    }
    const std::string wrong = mismatch({connection.pid, group_[rank_].uid, 0}, from);
    if (!wrong.empty()) return refuse(connection, concat("rank ", from, " from ", wrong));
    const bool is_known = std::any_of(connections_.begin(), connections_.end(),
                                      [&](const Connection& other) { return other.peer == from; });
    if (is_known || is_taken_[from]) return refuse(connection, concat("rank ", from, " again"));
    connection.peer = from;
    connection.state = State::kSendFd;
  }

  void send_fd(Connection& connection) {
    const Io io = exchange::send_hello(connection.fd.get(), hello_to(connection.peer), own_fd_);
    check_that(io != Io::kClosed, "rank ", connection.peer, " closed its connection (has it failed?)");
    if (io == Io::kAgain) return;
    // The connector has received before it sends, so it is through; the acceptor goes on to receive.
    connection.state = connection.peer < rank_ ? State::kDone : State::kAwaitFd;
  }

  void receive_fd(Connection& connection) {
    const int peer = connection.peer;
    Received received = exchange::receive_hello(connection.fd.get(), true);
    if (received.io == Io::kAgain) return;
    check_that(received.io == Io::kDone, "rank ", peer, " closed its connection (has it failed?)");
    check_that(received.is_hello && received.hello.magic == exchange::kMagic &&
                   received.hello.token == group_[0].token && received.hello.from == peer && received.hello.to == rank_,
               "rank ", peer,
               " sent a malformed message instead of its segment (or this process has no descriptor "
               "left: see ulimit -n)");
    try {
      take_(peer, received.fd.get(), group_[peer]);
      is_taken_[peer] = true;
    } catch (const std::exception& error) {
      fail(ErrorKind::kError, concat("segment of rank ", peer, ": ", without_prefix(error.what())));
    }
    connection.state = State::kDone;
    if (peer < rank_) {
      connection.state = State::kSendFd;
      send_fd(connection);
    }
  }

  const int own_fd_;
  const int rank_;
  const std::vector<Announcement> group_;
  const Fd listener_;
  const TakeDescriptor& take_;
  std::vector<bool> is_taken_;
  std::vector<int> to_connect_;
  std::list<Connection> connections_;
  int refusals_ = 0;
  std::string refusal_;
};

}  // namespace

void exchange_descriptors(int own_fd, size_t bytes, int rank, int world_size, const AllGather& all_gather,
                          double timeout_s, const TakeDescriptor& take, const std::function<bool()>& interrupted) {
  check_that(world_size >= 1 && world_size <= kMaxWorldSize && rank >= 0 && rank < world_size, "rank ", rank, " of ",
             world_size, ": world sizes 1 to ", kMaxWorldSize, " are supported");
  if (world_size == 1) return;
  Announcement mine;
  Fd listener;
  agree(all_gather, rank, "opening the rendezvous socket", [&] {
    check_that(own_fd >= 0, "the own segment has no descriptor: was it exchanged before?");
    mine = exchange::announce(rank, world_size, bytes);
    listener = exchange::listen_on(mine.socket_name);
  });
  // Listeners exist before the names are known, so a refused connection means that the peer has failed.
  const std::string text(reinterpret_cast<const char*>(&mine), sizeof mine);
  const std::vector<Announcement> group = exchange::parse_announcements(gather(all_gather, world_size, text));
  agree(all_gather, rank, "exchanging the segments",
        [&] { Exchange(own_fd, rank, group, std::move(listener), take).run(timeout_s, interrupted); });
}

std::vector<Segment> exchange_segments(Segment& own, int rank, int world_size, const AllGather& all_gather,
                                       double timeout_s, const std::function<bool()>& interrupted) {
  std::vector<Segment> segments(std::max(world_size, 1));
  const auto take = [&](int peer, int fd, const Announcement& announced) {
    segments[peer] = Segment::map_fd(fd, announced.segment_bytes, announced.uid);
  };
  exchange_descriptors(own.fd(), own.bytes(), rank, world_size, all_gather, timeout_s, take, interrupted);
  segments[rank] = own.view();
  own.close_fd();
  return segments;
}

}  // namespace llcoll
