// Every function of benchmarks/mpi_shim, on the ranks that tests/test_nccl_programs.py starts; "differ" calls
// different collectives on the ranks.
#include <mpi.h>

#include <cstdio>
#include <cstring>
#include <vector>

#define EXPECT(condition)                                                \
  do {                                                                   \
    if (!(condition)) {                                                  \
      std::fprintf(stderr, "rank %d: not true: %s\n", rank, #condition); \
      MPI_Abort(MPI_COMM_WORLD, 5);                                      \
    }                                                                    \
  } while (0)

int main(int argc, char** argv) {
  int rank = -1;
  int size = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc > 1 && std::strcmp(argv[1], "differ") == 0) {
    int one = 1;
    if (rank == 0) {
      MPI_Barrier(MPI_COMM_WORLD);
    } else {
      MPI_Allreduce(MPI_IN_PLACE, &one, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    }
    return 0;
  }
  std::vector<uint64_t> all(size, 0);
  all[rank] = 100 + rank;
  MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all.data(), sizeof(uint64_t), MPI_BYTE, MPI_COMM_WORLD);
  for (int r = 0; r < size; ++r) EXPECT(all[r] == 100u + r);
  long long sum = rank + 1;
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  EXPECT(sum == size * (size + 1) / 2);
  const double own[2] = {-1.0 * rank, 2.0 * rank};
  double least[2];
  double most[2];
  MPI_Allreduce(own, least, 2, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(own, most, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  EXPECT(least[0] == 1.0 - size && least[1] == 0 && most[0] == 0 && most[1] == 2.0 * (size - 1));
  std::vector<double> gathered(2 * size);
  MPI_Gather(own, 2, MPI_DOUBLE, gathered.data(), 2, MPI_DOUBLE, size - 1, MPI_COMM_WORLD);
  for (int r = 0; rank == size - 1 && r < size; ++r) EXPECT(gathered[2 * r + 1] == 2.0 * r);

  MPI_Comm half = MPI_COMM_NULL;  // the other way round
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
  int half_rank = -1;
  int half_size = 0;
  MPI_Comm_rank(half, &half_rank);
  MPI_Comm_size(half, &half_size);
  EXPECT(half_size == (size + 1 - rank % 2) / 2 && half_rank == half_size - 1 - rank / 2);
  int root = rank;
  MPI_Bcast(&root, 1, MPI_INT, 0, half);
  EXPECT(root == 2 * (half_size - 1) + rank % 2);
  MPI_Barrier(half);
  MPI_Comm_free(&half);
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 1, 0, &half);
  EXPECT((half == MPI_COMM_NULL) == (rank == 0));
  if (rank != 0) MPI_Comm_free(&half);
  MPI_Finalize();
  std::puts("right");
  return 0;
}
