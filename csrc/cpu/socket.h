// The UNIX sockets of exchange_segments: non-blocking, abstract names, one Hello a message.
#pragma once

#include <sys/socket.h>

#include "cpu/exchange.h"
#include "cpu/shm.h"

namespace llcoll::exchange {

Fd make_socket();
Fd listen_on(const Random& name);
// False where the listener's backlog is full: try again later, with a new socket.
bool connect_to(const Fd& fd, const Random& name);
// Of the process that called connect() or listen() at the other end.
ucred credentials_of(int fd);

enum class Io { kDone, kAgain, kClosed };

// One message, with `passed` attached unless it is -1. Whole or not at all (SOCK_SEQPACKET).
Io send_hello(int fd, const Hello& hello, int passed);

struct Received {
  Io io = Io::kAgain;
  bool is_hello = false;  // of the right size, with exactly one descriptor or none, as asked for
  Hello hello;
  Fd fd;
};

// One message. Without `with_fd` there is no room for descriptors, so the kernel drops any that a stranger attaches.
Received receive_hello(int fd, bool with_fd);

}  // namespace llcoll::exchange
