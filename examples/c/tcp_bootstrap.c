#define _POSIX_C_SOURCE 200809L
#include "tcp_bootstrap.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int send_all(int fd, const void* data, size_t bytes) {
  const char* at = data;
  while (bytes > 0) {
    const ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return -1;
    at += sent;
    bytes -= (size_t)sent;
  }
  return 0;
}

static int receive_all(int fd, void* data, size_t bytes) {
  char* at = data;
  while (bytes > 0) {
    const ssize_t received = recv(fd, at, bytes, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return -1; /* 0: closed; SO_RCVTIMEO ends a wait with EAGAIN */
    at += received;
    bytes -= (size_t)received;
  }
  return 0;
}

static int fail(const tcp_bootstrap_t* b, const char* what) {
  fprintf(stderr, "tcp_bootstrap: rank %d: %s: %s\n", b->rank, what, errno ? strerror(errno) : "closed");
  return -1;
}

static void set_limits(int fd, int timeout_s) {
  const struct timeval limit = {timeout_s, 0};
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

static int accept_all(tcp_bootstrap_t* b, const struct sockaddr_in* name, int timeout_s) {
  const int yes = 1;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (listener < 0) return fail(b, "socket");
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  set_limits(listener, timeout_s);
  int status = 0;
  if (bind(listener, (const struct sockaddr*)name, sizeof *name) != 0 || listen(listener, b->world_size) != 0) {
    status = fail(b, "listen");
  }
  for (int i = 1; status == 0 && i < b->world_size; ++i) {
    const int fd = accept(listener, NULL, NULL);
    int32_t peer = -1;
    if (fd < 0) {
      status = fail(b, "accept");
      break;
    }
    set_limits(fd, timeout_s);
    if (receive_all(fd, &peer, sizeof peer) != 0 || peer < 1 || peer >= b->world_size || b->sockets[peer] >= 0) {
      close(fd); /* a stranger: wait for the next */
      --i;
      continue;
    }
    b->sockets[peer] = fd;
  }
  close(listener);
  return status;
}

static int connect_to_0(tcp_bootstrap_t* b, const struct sockaddr_in* name, int timeout_s) {
  const int32_t rank = b->rank;
  for (int tries = 0; tries < 20 * timeout_s; ++tries) { /* rank 0 may not listen yet */
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return fail(b, "socket");
    if (connect(fd, (const struct sockaddr*)name, sizeof *name) == 0) {
      set_limits(fd, timeout_s);
      b->sockets[0] = fd;
      return send_all(fd, &rank, sizeof rank) == 0 ? 0 : fail(b, "send");
    }
    close(fd);
    const struct timespec pause = {0, 50 * 1000 * 1000};
    nanosleep(&pause, NULL);
  }
  return fail(b, "connect");
}

int tcp_bootstrap_open(tcp_bootstrap_t* b, int rank, int world_size, const char* address, int port, int timeout_s) {
  b->rank = rank;
  b->world_size = world_size;
  for (int i = 0; i < 128; ++i) b->sockets[i] = -1;
  struct sockaddr_in name;
  memset(&name, 0, sizeof name);
  name.sin_family = AF_INET;
  name.sin_port = htons((uint16_t)port);
  errno = EINVAL;
  if (world_size < 1 || world_size > 128 || inet_pton(AF_INET, address, &name.sin_addr) != 1) {
    return fail(b, "address or world size");
  }
  return rank == 0 ? accept_all(b, &name, timeout_s) : connect_to_0(b, &name, timeout_s);
}

int tcp_bootstrap_all_gather(void* context, const void* own, size_t bytes, void* all) {
  tcp_bootstrap_t* b = context;
  char* parts = all;
  const size_t total = bytes * (size_t)b->world_size;
  errno = 0;
  if (b->rank != 0) {
    if (send_all(b->sockets[0], own, bytes) != 0 || receive_all(b->sockets[0], all, total) != 0) {
      return fail(b, "all_gather through rank 0");
    }
    return 0;
  }
  memcpy(parts, own, bytes);
  for (int peer = 1; peer < b->world_size; ++peer) {
    if (receive_all(b->sockets[peer], parts + bytes * (size_t)peer, bytes) != 0) return fail(b, "a peer's bytes");
  }
  for (int peer = 1; peer < b->world_size; ++peer) {
    if (send_all(b->sockets[peer], all, total) != 0) return fail(b, "answering a peer");
  }
  return 0;
}

void tcp_bootstrap_close(tcp_bootstrap_t* b) {
  for (int i = 0; i < 128; ++i) {
    if (b->sockets[i] >= 0) close(b->sockets[i]);
    b->sockets[i] = -1;
  }
}
