// A small MPI over UNIX sockets, for programs that start NCCL by MPI where no MPI is installed: the ranks are processes
// of torchrun (or of llcoll.loopback) on one host, found by RANK, WORLD_SIZE and MASTER_PORT. LLCOLL_MPI_JOB tells the
// programs of one run apart, so that a late rank of one that failed is not met by the next.
//
//   cc -O2 -shared -fPIC -o libmpi.so mpi_shim.c
//
// One thread at a time; nothing here is fast or meant to be. Every collective is one all-gather through the
// communicator's rank 0, whose header tells which: ranks that call different ones end with an error. Every wait is
// bounded by LLCOLL_MPI_TIMEOUT seconds (default 120). Errors print and end the process with status 70.
#define _GNU_SOURCE
#include "mpi.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { kMaxRanks = 1024, kFailed = 70 };

struct LlcMpiComm {
  int rank;
  int size;
  int world_rank;
  unsigned num_splits;
  char name[64];  // of its sockets
  int* peers;     // rank 0: one socket per other rank; the others: [0] leads to rank 0
  uint64_t num_calls;
};

typedef struct {
  uint64_t call;
  uint32_t kind;
  int32_t rank;
  uint64_t bytes;
} Header;

enum { kJoin = 1, kBarrier, kBcast, kGather, kAllgather, kAllreduce, kSplit, kNumKinds };

static MPI_Comm world;

static void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "mpi_shim: rank %d: ", world != NULL ? world->rank : -1);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  fflush(NULL);
  _exit(kFailed);
}

static void* allocate(size_t bytes) {
  void* memory = calloc(1, bytes != 0 ? bytes : 1);
  if (memory == NULL) fail("no memory for %zu bytes", bytes);
  return memory;
}

static int number(const char* name) {
  const char* text = getenv(name);
  char* end = NULL;
  const long value = text != NULL ? strtol(text, &end, 10) : 0;
  if (text == NULL || end == text || *end != '\0' || value < 0 || value > 65535) {
    fail("%s is '%s': start the ranks by torchrun or llcoll.loopback", name, text != NULL ? text : "(not set)");
  }
  return (int)value;
}

static double limit(void) {
  const char* text = getenv("LLCOLL_MPI_TIMEOUT");
  return text != NULL && atof(text) > 0 ? atof(text) : 120;
}

static MPI_Comm resolve(MPI_Comm comm) {
  if (world == NULL) fail("MPI_Init was not called, or MPI_Finalize was");
  if (comm == MPI_COMM_NULL) fail("MPI_COMM_NULL has no ranks");
  return comm == MPI_COMM_WORLD ? world : comm;
}

static void set_timeout(int handle) {
  struct timeval time = {(time_t)limit(), 0};
  if (time.tv_sec == 0) time.tv_sec = 1;
  setsockopt(handle, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  setsockopt(handle, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

static void send_all(int handle, const void* data, size_t bytes) {
  const char* at = data;
  while (bytes > 0) {
    const ssize_t sent = send(handle, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) fail("sending: %s", strerror(errno));
    at += sent;
    bytes -= (size_t)sent;
  }
}

static void recv_all(int handle, void* data, size_t bytes) {
  char* at = data;
  while (bytes > 0) {
    const ssize_t got = recv(handle, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) fail("a peer ended");
    if (got < 0) fail("receiving: %s", errno == EAGAIN ? "a peer did not come in time" : strerror(errno));
    at += got;
    bytes -= (size_t)got;
  }
}

// The abstract namespace: no file is left behind.
static socklen_t address_of(const char* name, struct sockaddr_un* address) {
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  const int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "%s", name);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static void pause_ms(long ms) {
  const struct timespec time = {0, ms * 1000000};
  nanosleep(&time, NULL);
}

static void lead(MPI_Comm comm) {
  struct sockaddr_un address;
  const socklen_t length = address_of(comm->name, &address);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) fail("socket: %s", strerror(errno));
  set_timeout(listener);
  if (bind(listener, (struct sockaddr*)&address, length) != 0 || listen(listener, comm->size) != 0) {
    fail("socket '%s': %s", comm->name, strerror(errno));
  }
  for (int i = 1; i < comm->size; ++i) {
    const int handle = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (handle < 0) fail("%d of %d ranks came: %s", i, comm->size, strerror(errno));
    set_timeout(handle);
    Header header;
    recv_all(handle, &header, sizeof header);
    if (header.kind != kJoin || header.rank < 1 || header.rank >= comm->size || comm->peers[header.rank] >= 0) {
      fail("rank %d of %d joins a second time, or is none", header.rank, comm->size);
    }
    comm->peers[header.rank] = handle;
  }
  // Before any rank can go on: the next program of this job finds the name free.
  close(listener);
}

static void follow(MPI_Comm comm) {
  struct sockaddr_un address;
  const socklen_t length = address_of(comm->name, &address);
  const double end = MPI_Wtime() + limit();
  int handle = -1;
  for (;;) {
    handle = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (handle < 0) fail("socket: %s", strerror(errno));
    if (connect(handle, (struct sockaddr*)&address, length) == 0) break;
    if (MPI_Wtime() > end) fail("rank 0 of '%s' did not come: %s", comm->name, strerror(errno));
    close(handle);
    pause_ms(5);
  }
  set_timeout(handle);
  const Header header = {0, kJoin, comm->rank, 0};
  send_all(handle, &header, sizeof header);
  comm->peers[0] = handle;
}

// `own` of every rank, in rank order, into `all`, on every rank.
static void gather(MPI_Comm comm, int kind, const void* own, size_t bytes, void* all) {
  char* const to = all;
  const Header mine = {comm->num_calls++, (uint32_t)kind, comm->rank, bytes};
  const size_t total = bytes * (size_t)comm->size;
  if (bytes != 0) memmove(to + (size_t)comm->rank * bytes, own, bytes);
  if (comm->rank != 0) {
    send_all(comm->peers[0], &mine, sizeof mine);
    send_all(comm->peers[0], to + (size_t)comm->rank * bytes, bytes);
    Header back;
    recv_all(comm->peers[0], &back, sizeof back);
    recv_all(comm->peers[0], all, total);
    return;
  }
  for (int r = 1; r < comm->size; ++r) {
    Header theirs;
    recv_all(comm->peers[r], &theirs, sizeof theirs);
    if (theirs.call != mine.call || theirs.kind != mine.kind || theirs.bytes != bytes) {
      fail("call %llu of kind %u with %llu bytes met call %llu of kind %u with %llu bytes of rank %d",
           (unsigned long long)mine.call, mine.kind, (unsigned long long)bytes, (unsigned long long)theirs.call,
           theirs.kind, (unsigned long long)theirs.bytes, r);
    }
    recv_all(comm->peers[r], to + (size_t)r * bytes, bytes);
  }
  for (int r = 1; r < comm->size; ++r) {
    send_all(comm->peers[r], &mine, sizeof mine);
    send_all(comm->peers[r], all, total);
  }
}

static MPI_Comm make(const char* name, int rank, int size, int world_rank) {
  MPI_Comm comm = allocate(sizeof *comm);
  comm->rank = rank;
  comm->size = size;
  comm->world_rank = world_rank;
  snprintf(comm->name, sizeof comm->name, "%s", name);
  comm->peers = allocate(sizeof(int) * (size_t)size);
  for (int i = 0; i < size; ++i) comm->peers[i] = -1;
  if (rank == 0) {
    lead(comm);
  } else {
    follow(comm);
  }
  gather(comm, kBarrier, NULL, 0, comm);
  return comm;
}

int MPI_Init(int* argc, char*** argv) {
  (void)argc;
  (void)argv;
  if (world != NULL) fail("MPI_Init was called twice");
  const int rank = number("RANK");
  const int size = number("WORLD_SIZE");
  if (size < 1 || size > kMaxRanks || rank >= size) fail("rank %d of %d", rank, size);
  char name[64];
  const char* job = getenv("LLCOLL_MPI_JOB");
  snprintf(name, sizeof name, "llcoll-mpi-%u-%d-%.16s", (unsigned)getuid(), number("MASTER_PORT"),
           job != NULL ? job : "0");
  world = make(name, rank, size, rank);
  return MPI_SUCCESS;
}

int MPI_Finalize(void) {
  MPI_Comm comm = resolve(MPI_COMM_WORLD);
  gather(comm, kBarrier, NULL, 0, comm);
  MPI_Comm_free(&comm);
  world = NULL;
  return MPI_SUCCESS;
}

int MPI_Abort(MPI_Comm comm, int code) {
  (void)comm;
  fflush(NULL);
  _exit(code != 0 ? code : kFailed);
}

double MPI_Wtime(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int MPI_Comm_size(MPI_Comm comm, int* size) {
  *size = resolve(comm)->size;
  return MPI_SUCCESS;
}

int MPI_Comm_rank(MPI_Comm comm, int* rank) {
  *rank = resolve(comm)->rank;
  return MPI_SUCCESS;
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  MPI_Comm from = resolve(comm);
  typedef struct {
    int color, key, world_rank;
  } Member;
  const Member own = {color, key, from->world_rank};
  Member* all = allocate(sizeof(Member) * (size_t)from->size);
  gather(from, kSplit, &own, sizeof own, all);
  const unsigned split = from->num_splits++;
  *made = MPI_COMM_NULL;
  int rank = 0;
  int size = 0;
  Member first = own;  // rank 0 of the new communicator
  int first_at = from->rank;
  for (int r = 0; r < from->size; ++r) {
    if (all[r].color != color) continue;
    ++size;
    if (all[r].key < key || (all[r].key == key && r < from->rank)) ++rank;
    if (all[r].key < first.key || (all[r].key == first.key && r < first_at)) {
      first = all[r];
      first_at = r;
    }
  }
  free(all);
  if (color == MPI_UNDEFINED) return MPI_SUCCESS;
  char name[64];
  if (snprintf(name, sizeof name, "%s.%u-%d", from->name, split, first.world_rank) >= (int)sizeof name) {
    fail("splits of splits: the name '%s' is too long", from->name);
  }
  *made = make(name, rank, size, from->world_rank);
  return MPI_SUCCESS;
}

int MPI_Comm_free(MPI_Comm* comm) {
  MPI_Comm own = resolve(*comm);
  for (int i = 0; i < own->size; ++i) {
    if (own->peers[i] >= 0) close(own->peers[i]);
  }
  free(own->peers);
  free(own);
  *comm = MPI_COMM_NULL;
  return MPI_SUCCESS;
}

static size_t size_of(int count, MPI_Datatype type) {
  if (count < 0) fail("a count of %d", count);
  return (size_t)count * (size_t)(type & 0xFF);
}

int MPI_Barrier(MPI_Comm comm) {
  char none;
  gather(resolve(comm), kBarrier, NULL, 0, &none);
  return MPI_SUCCESS;
}

int MPI_Bcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  MPI_Comm own = resolve(comm);
  if (root < 0 || root >= own->size) fail("root %d of %d ranks", root, own->size);
  const size_t bytes = size_of(count, type);
  char* all = allocate(bytes * (size_t)own->size);
  gather(own, kBcast, buffer, bytes, all);
  memcpy(buffer, all + (size_t)root * bytes, bytes);
  free(all);
  return MPI_SUCCESS;
}

int MPI_Gather(const void* send, int send_count, MPI_Datatype send_type, void* recv, int recv_count,
               MPI_Datatype recv_type, int root, MPI_Comm comm) {
  MPI_Comm own = resolve(comm);
  if (root < 0 || root >= own->size) fail("root %d of %d ranks", root, own->size);
  const int in_place = send == MPI_IN_PLACE;
  const size_t bytes = in_place ? size_of(recv_count, recv_type) : size_of(send_count, send_type);
  const char* from = in_place ? (const char*)recv + (size_t)own->rank * bytes : send;
  char* all = allocate(bytes * (size_t)own->size);
  gather(own, kGather, from, bytes, all);
  if (own->rank == root) memcpy(recv, all, bytes * (size_t)own->size);
  free(all);
  return MPI_SUCCESS;
}

int MPI_Allgather(const void* send, int send_count, MPI_Datatype send_type, void* recv, int recv_count,
                  MPI_Datatype recv_type, MPI_Comm comm) {
  MPI_Comm own = resolve(comm);
  const int in_place = send == MPI_IN_PLACE;
  const size_t bytes = in_place ? size_of(recv_count, recv_type) : size_of(send_count, send_type);
  gather(own, kAllgather, in_place ? (char*)recv + (size_t)own->rank * bytes : send, bytes, recv);
  return MPI_SUCCESS;
}

#define LLC_REDUCE(Type)                                                              \
  do {                                                                                \
    Type* to = recv;                                                                  \
    const Type* from = (const Type*)all;                                              \
    for (int r = 0; r < own->size; ++r) {                                             \
      for (int i = 0; i < count; ++i) {                                               \
        const Type x = from[(size_t)r * (size_t)count + (size_t)i];                   \
        if (r == 0 || (op == MPI_MIN && x < to[i]) || (op == MPI_MAX && x > to[i])) { \
          to[i] = x;                                                                  \
        } else if (op == MPI_SUM) {                                                   \
          to[i] += x;                                                                 \
        }                                                                             \
      }                                                                               \
    }                                                                                 \
  } while (0)

int MPI_Allreduce(const void* send, void* recv, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  MPI_Comm own = resolve(comm);
  if (op != MPI_SUM && op != MPI_MIN && op != MPI_MAX) fail("the operator %d is none of sum, min, max", op);
  const size_t bytes = size_of(count, type);
  char* all = allocate(bytes * (size_t)own->size);
  gather(own, kAllreduce, send == MPI_IN_PLACE ? recv : send, bytes, all);
  switch (type) {
    case MPI_INT:
      LLC_REDUCE(int);
      break;
    case MPI_INT64_T:
      LLC_REDUCE(int64_t);
      break;
    case MPI_UINT64_T:
      LLC_REDUCE(uint64_t);
      break;
    case MPI_DOUBLE:
      LLC_REDUCE(double);
      break;
    default:
      fail("MPI_Allreduce of type 0x%x", (unsigned)type);
  }
  free(all);
  return MPI_SUCCESS;
}
