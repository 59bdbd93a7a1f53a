/* An all-reduce between processes of one host, in plain C:
 *
 *   cc -std=c99 all_reduce.c tcp_bootstrap.c $(pkg-config --cflags --libs llcoll) -o all_reduce
 *   for rank in 0 1; do ./all_reduce $rank 2 127.0.0.1 29555 & done; wait
 */
#include <llcoll/llcoll.h>
#include <stdio.h>
#include <stdlib.h>

#include "tcp_bootstrap.h"

static void check(llcoll_result_t result, const char* what) {
  if (result == LLCOLL_SUCCESS) return;
  fprintf(stderr, "%s: %s: %s\n", what, llcoll_result_name(result), llcoll_last_error());
  exit(1);
}

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: %s RANK WORLD_SIZE ADDRESS PORT\n", argv[0]);
    return 2;
  }
  const int rank = atoi(argv[1]);
  const int world_size = atoi(argv[2]);
  tcp_bootstrap_t bootstrap;
  if (tcp_bootstrap_open(&bootstrap, rank, world_size, argv[3], atoi(argv[4]), 30) != 0) return 1;

  llcoll_config_t config = LLCOLL_CONFIG_INITIALIZER; /* config.device = 0 would take device memory and a stream */
  config.timeout_s = 30;
  llcoll_comm_t comm;
  check(llcoll_comm_create(&comm, rank, world_size, tcp_bootstrap_all_gather, &bootstrap, &config), "comm_create");
  tcp_bootstrap_close(&bootstrap);

  double values[4];
  for (int i = 0; i < 4; ++i) values[i] = rank + i;
  check(llcoll_all_reduce(values, values, 4, LLCOLL_FLOAT64, LLCOLL_SUM, comm, NULL), "all_reduce");
  for (int i = 0; i < 4; ++i) {
    if (values[i] != world_size * (world_size - 1) / 2.0 + world_size * i) return 3;
  }
  printf("rank %d of %d: %g %g %g %g\n", rank, world_size, values[0], values[1], values[2], values[3]);
  check(llcoll_comm_destroy(comm), "comm_destroy");
  return 0;
}
