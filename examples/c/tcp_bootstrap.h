/* A bootstrap for llcoll_comm_create over TCP: rank 0 listens, the others connect, every all-gather goes through it.
 * Enough for one host and a trusted network; a real program has a launcher's store, or MPI (mpi_all_reduce.c). */
#ifndef TCP_BOOTSTRAP_H_
#define TCP_BOOTSTRAP_H_

#include <stddef.h>

typedef struct {
  int rank;
  int world_size;
  int sockets[128]; /* rank 0: by rank; the others: [0] is rank 0's */
} tcp_bootstrap_t;

/* Collective. Returns 0; -1 with a line on stderr where a peer did not come within `timeout_s`, which also bounds each
 * later all-gather. */
int tcp_bootstrap_open(tcp_bootstrap_t* bootstrap, int rank, int world_size, const char* address, int port,
                       int timeout_s);
/* An llcoll_all_gather_fn; `context` is the tcp_bootstrap_t. */
int tcp_bootstrap_all_gather(void* context, const void* own, size_t bytes, void* all);
void tcp_bootstrap_close(tcp_bootstrap_t* bootstrap);

#endif /* TCP_BOOTSTRAP_H_ */
