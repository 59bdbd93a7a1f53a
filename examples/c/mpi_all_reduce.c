/* The same with MPI as the bootstrap; afterwards llcoll does the small collectives of these ranks.
 *
 *   mpicc -std=c99 mpi_all_reduce.c $(pkg-config --cflags --libs llcoll) -o mpi_all_reduce
 *   mpirun -n 2 ./mpi_all_reduce
 */
#include <llcoll/llcoll.h>
#include <mpi.h>
#include <stdio.h>

static int all_gather(void* context, const void* own, size_t bytes, void* all) {
  const MPI_Comm mpi_comm = *(MPI_Comm*)context;
  return MPI_Allgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, mpi_comm) == MPI_SUCCESS ? 0 : 1;
}

static void check(llcoll_result_t result, const char* what) {
  if (result == LLCOLL_SUCCESS) return;
  fprintf(stderr, "%s: %s: %s\n", what, llcoll_result_name(result), llcoll_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm host; /* llcoll joins ranks that share memory: those of one host */
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  int rank, world_size;
  MPI_Comm_rank(host, &rank);
  MPI_Comm_size(host, &world_size);

  llcoll_comm_t comm;
  check(llcoll_comm_create(&comm, rank, world_size, all_gather, &host, NULL), "comm_create");
  double mine = rank + 1, by_llcoll = 0, by_mpi = 0;
  check(llcoll_all_reduce(&mine, &by_llcoll, 1, LLCOLL_FLOAT64, LLCOLL_SUM, comm, NULL), "all_reduce");
  MPI_Allreduce(&mine, &by_mpi, 1, MPI_DOUBLE, MPI_SUM, host);
  printf("rank %d of %d: llcoll %g, MPI %g\n", rank, world_size, by_llcoll, by_mpi);
  check(llcoll_comm_destroy(comm), "comm_destroy");
  MPI_Comm_free(&host);
  MPI_Finalize();
  return by_llcoll == by_mpi ? 0 : 3;
}
