// What an NCCL call costs among a program's own kernels, as a solver's calls are: a matrix-vector product, then a small
// collective, again and again on one stream, without a graph. It knows nothing of llcoll: nccl_front.py runs it with
// NCCL alone and with the front.
//
//   nccl_calls [--sizes 256,2048] [--iterations 300] [--json FILE]
//
// For each size (float64 elements) and each kind of step a line: us of the host to issue a step, and us of a step until
// all have run, of the slowest rank; medians of 7 rounds.
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kRounds = 7;
constexpr int kBlock = 64;  // so many steps in a row have one root

int world_rank = 0;
int num_ranks = 1;

// The status types of CUDA, cuBLAS and NCCL agree in this: 0 is success.
#define CHECK(call)                                                                                           \
  do {                                                                                                        \
    const int code_ = static_cast<int>(call);                                                                 \
    if (code_ != 0) {                                                                                         \
      std::fprintf(stderr, "nccl_calls: rank %d, line %d: %s gave %d\n", world_rank, __LINE__, #call, code_); \
      MPI_Abort(MPI_COMM_WORLD, 3);                                                                           \
    }                                                                                                         \
  } while (0)

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Figures {
  double host = 0;
  double total = 0;
};

Figures measure(cudaStream_t stream, int iterations, const std::function<void(int)>& step) {
  std::vector<double> host;
  std::vector<double> total;
  for (int round = 0; round <= kRounds; ++round) {
    CHECK(cudaStreamSynchronize(stream));
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = now_us();
    for (int i = 0; i < iterations; ++i) step(i);
    double own[2] = {(now_us() - start) / iterations, 0};
    CHECK(cudaStreamSynchronize(stream));
    own[1] = (now_us() - start) / iterations;
    double most[2];
    MPI_Allreduce(own, most, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (round == 0) continue;
    host.push_back(most[0]);
    total.push_back(most[1]);
  }
  std::sort(host.begin(), host.end());
  std::sort(total.begin(), total.end());
  return {host[kRounds / 2], total[kRounds / 2]};
}

}  // namespace

int main(int argc, char** argv) {
  std::string sizes = "256,2048";
  std::string json;
  int iterations = 300;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--sizes") sizes = argv[i + 1];
    if (name == "--json") json = argv[i + 1];
    if (name == "--iterations") iterations = std::max(1, std::atoi(argv[i + 1]));
  }
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  int num_devices = 0;
  CHECK(cudaGetDeviceCount(&num_devices));
  CHECK(cudaSetDevice(world_rank % num_devices));
  ncclUniqueId id;
  if (world_rank == 0) CHECK(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t comm = nullptr;
  CHECK(ncclCommInitRank(&comm, num_ranks, id, world_rank));
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreate(&stream));
  cublasHandle_t blas = nullptr;
  CHECK(cublasCreate(&blas));
  CHECK(cublasSetStream(blas, stream));

  FILE* file = world_rank == 0 && !json.empty() ? std::fopen(json.c_str(), "w") : nullptr;
  if (file != nullptr) std::fprintf(file, "{\"version\": 1, \"ranks\": %d, \"results\": [", num_ranks);
  bool is_first = true;
  std::stringstream all(sizes);
  for (std::string word; std::getline(all, word, ',');) {
    const int n = std::max(1, std::atoi(word.c_str()));
    const size_t count = static_cast<size_t>(n);
    double* a = nullptr;
    double* x = nullptr;
    double* y = nullptr;
    CHECK(cudaMalloc(reinterpret_cast<void**>(&a), count * count * sizeof(double)));
    CHECK(cudaMalloc(reinterpret_cast<void**>(&x), count * sizeof(double)));
    CHECK(cudaMalloc(reinterpret_cast<void**>(&y), count * sizeof(double)));
    CHECK(cudaMemset(a, 0, count * count * sizeof(double)));
    CHECK(cudaMemset(x, 0, count * sizeof(double)));
    const double one = 1;
    const double zero = 0;
    const auto root = [](int i) { return i / kBlock % num_ranks; };
    const auto product = [&](int) { CHECK(cublasDgemv(blas, CUBLAS_OP_N, n, n, &one, a, n, x, 1, &zero, y, 1)); };
    const auto reduce = [&](int i) { CHECK(ncclReduce(y, y, count, ncclDouble, ncclSum, root(i), comm, stream)); };
    const auto all_reduce = [&](int) { CHECK(ncclAllReduce(y, y, count, ncclDouble, ncclSum, comm, stream)); };
    const auto broadcast = [&](int i) { CHECK(ncclBroadcast(y, x, count, ncclDouble, root(i), comm, stream)); };
    const auto send_recv = [&](int i) {
      if (world_rank == root(i)) {
        for (int peer = 0; peer < num_ranks; ++peer) {
          if (peer != world_rank) CHECK(ncclSend(y, count, ncclDouble, peer, comm, stream));
        }
      } else {
        CHECK(ncclRecv(x, count, ncclDouble, root(i), comm, stream));
      }
    };
    const std::vector<std::pair<const char*, std::function<void(int)>>> steps = {
        {"product", product},
        {"Reduce", reduce},
        {"product, Reduce", [&](int i) { product(i), reduce(i); }},
        {"AllReduce", all_reduce},
        {"product, AllReduce", [&](int i) { product(i), all_reduce(i); }},
        {"Broadcast", broadcast},
        {"product, Broadcast", [&](int i) { product(i), broadcast(i); }},
        {"product, Send/Recv", [&](int i) { product(i), send_recv(i); }},
        {"product, Reduce, Send/Recv", [&](int i) { product(i), reduce(i), send_recv(i); }},
    };
    for (const auto& [name, step] : steps) {
      const Figures figures = measure(stream, iterations, step);
      if (world_rank != 0) continue;
      std::printf("n %5d  %-28s host %7.2f us, in all %7.2f us\n", n, name, figures.host, figures.total);
      std::fflush(stdout);
      if (file == nullptr) continue;
      std::fprintf(file, "%s\n{\"n\": %d, \"step\": \"%s\", \"host_us\": %.3f, \"us\": %.3f}", is_first ? "" : ",", n,
                   name, figures.host, figures.total);
      is_first = false;
    }
    CHECK(cudaFree(a));
    CHECK(cudaFree(x));
    CHECK(cudaFree(y));
  }
  bool is_written = true;
  if (file != nullptr) {
    std::fprintf(file, "\n]}\n");
    is_written = std::fclose(file) == 0;
  }
  CHECK(cublasDestroy(blas));
  CHECK(ncclCommDestroy(comm));
  CHECK(cudaStreamDestroy(stream));
  MPI_Finalize();
  return is_written ? 0 : 1;
}
