#include "cpu/socket.h"

#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "check.h"

namespace llcoll::exchange {
namespace {

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
};

Address address_of(const Random& random) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text = "llcoll-";
  for (const unsigned char byte : random) text += {kHex[byte >> 4], kHex[byte & 15]};
  Address address;
  address.name.sun_family = AF_UNIX;
  text.copy(address.name.sun_path + 1, sizeof address.name.sun_path - 1);  // a leading zero: abstract, no file
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

}  // namespace

Fd make_socket() {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  check_errno(bool(fd), "cannot make a UNIX socket");
  return fd;
}

Fd listen_on(const Random& name) {
  Fd fd = make_socket();
  const Address address = address_of(name);
  check_errno(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.name), address.length) == 0,
              "cannot bind an abstract UNIX socket");
  check_errno(listen(fd.get(), 4 * kMaxWorldSize) == 0, "cannot listen on a UNIX socket");
  return fd;
}

bool connect_to(const Fd& fd, const Random& name) {
  const Address address = address_of(name);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.name), address.length) == 0) return true;
  check_errno(errno == EAGAIN || errno == EINTR, "cannot connect (has it failed?)");
  return false;
}

ucred credentials_of(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  check_errno(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0, "SO_PEERCRED failed");
  return credentials;
}

Io send_hello(int fd, const Hello& hello, int passed) {
  Hello copy = hello;
  iovec part{&copy, sizeof copy};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (passed >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &passed, sizeof passed);
  }
  if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Io::kDone;
  // ETOOMANYREFS: too many descriptors of this user are under way; they are few once peers have read theirs.
  if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ETOOMANYREFS) return Io::kAgain;
  check_errno(errno == EPIPE || errno == ECONNRESET, "sending to a peer failed");
  return Io::kClosed;
}

Received receive_hello(int fd, bool with_fd) {
  Received received;
  iovec part{&received.hello, sizeof received.hello};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (with_fd) {
    message.msg_control = control;
    message.msg_controllen = CMSG_LEN(sizeof(int));  // not CMSG_SPACE: its padding would admit a second descriptor
  }
  const ssize_t count = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return received;
  received.io = count > 0 ? Io::kDone : Io::kClosed;
  if (count <= 0) return received;
  const cmsghdr* header = with_fd ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len >= CMSG_LEN(sizeof(int))) {
    int passed;
    std::memcpy(&passed, CMSG_DATA(header), sizeof passed);
    received.fd = Fd(passed);
  }
  received.is_hello =
      count == sizeof(Hello) && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 && bool(received.fd) == with_fd;
  return received;
}

}  // namespace llcoll::exchange
