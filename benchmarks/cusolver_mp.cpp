// Figure 14's program: cuSOLVERMp's symmetric eigensolver and its Cholesky factorisation, float64, over NCCL. It knows
// nothing of llcoll: benchmarks/nccl_front.py runs it with NCCL alone and with the front.
//
//   cusolver_mp [--routines syevd,potrf] [--sizes 256,512,1024,2048] [--nb 64] [--repeats 5] [--json FILE]
//   [--unchecked]
//
// One process per rank, started by MPI (or mpi_shim), on a grid of 1 x ranks, one rank per GPU in turn. Every result is
// checked: eigenvalues against cuSOLVER's on one GPU and A V = V diag(w), the factor against cuSOLVER's. A line per
// size and routine; exit status 1 where a result is wrong, unless --unchecked says that only times count
// (nccl_free.cpp). The JSON file holds the eigenvalues too, for comparing runs.
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>
#include <cusolverMp.h>
#include <mpi.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr double kLimit = 1e-11;  // of the largest number that it is compared with

int world_rank = 0;
int num_ranks = 1;
bool is_checked = true;

[[noreturn]] void fail(const char* what, int code, int line) {
  std::fprintf(stderr, "cusolver_mp: rank %d, line %d: %s gave %d\n", world_rank, line, what, code);
  MPI_Abort(MPI_COMM_WORLD, 3);
  std::abort();
}

// The status types of CUDA, cuBLAS, cuSOLVER, NCCL and MPI agree in this: 0 is success.
#define CHECK(call)                               \
  do {                                            \
    const int code_ = static_cast<int>(call);     \
    if (code_ != 0) fail(#call, code_, __LINE__); \
  } while (0)

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(count, 1) * sizeof(T)));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* get() const { return data_; }
  void put(const std::vector<T>& from) {
    CHECK(cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> read() const {
    std::vector<T> to(count_);
    CHECK(cudaMemcpy(to.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

// Symmetric, the same on every rank and in every run: numbers of [-1, 1) by a hash of the place.
double element(int64_t row, int64_t column) {
  const uint64_t low = static_cast<uint64_t>(std::min(row, column));
  const uint64_t high = static_cast<uint64_t>(std::max(row, column));
  uint64_t x = (high << 32 | low) + 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-52 - 1.0;
}

struct Problem {
  int64_t n;
  int64_t nb;
  double shift;  // on the diagonal: makes the matrix positive definite

  // The columns of one rank, blocks of nb in turn; every column of one process that is alone.
  std::vector<int64_t> columns(int rank, int ranks) const {
    std::vector<int64_t> all;
    for (int64_t j = 0; j < n; ++j) {
      if (j / nb % ranks == rank) all.push_back(j);
    }
    return all;
  }
  std::vector<double> part(const std::vector<int64_t>& of) const {
    std::vector<double> a(static_cast<size_t>(n) * of.size());
    for (size_t c = 0; c < of.size(); ++c) {
      for (int64_t i = 0; i < n; ++i) {
        a[c * static_cast<size_t>(n) + static_cast<size_t>(i)] = element(i, of[c]) + (i == of[c] ? shift : 0);
      }
    }
    return a;
  }
};

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (double x : values) most = std::isnan(x) ? HUGE_VAL : std::max(most, std::abs(x));
  return most;
}

double over_ranks(double value) {
  double most = std::isnan(value) ? HUGE_VAL : value;
  MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return most;
}

// cuSOLVER on one GPU. Every rank makes its own answer; the time is rank 0's, measured while the others wait.
struct Single {
  cudaStream_t stream = nullptr;
  cusolverDnHandle_t handle = nullptr;
  cublasHandle_t blas = nullptr;

  Single() {
    CHECK(cudaStreamCreate(&stream));
    CHECK(cusolverDnCreate(&handle));
    CHECK(cusolverDnSetStream(handle, stream));
    CHECK(cublasCreate(&blas));
    CHECK(cublasSetStream(blas, stream));
  }
  ~Single() {
    cublasDestroy(blas);
    cusolverDnDestroy(handle);
    cudaStreamDestroy(stream);
  }
  Single(const Single&) = delete;
  Single& operator=(const Single&) = delete;

  // `values` holds n eigenvalues for syevd, the factor (n x n) for potrf.
  double solve(bool is_syevd, const Problem& problem, const std::vector<double>& full, std::vector<double>& values) {
    const int64_t n = problem.n;
    DeviceArray<double> a(full.size());
    DeviceArray<double> w(static_cast<size_t>(n));
    DeviceArray<int> info(1);
    a.put(full);
    const auto lower = CUBLAS_FILL_MODE_LOWER;
    size_t on_device = 0;
    size_t on_host = 0;
    if (is_syevd) {
      CHECK(cusolverDnXsyevd_bufferSize(handle, nullptr, CUSOLVER_EIG_MODE_VECTOR, lower, n, CUDA_R_64F, a.get(), n,
                                        CUDA_R_64F, w.get(), CUDA_R_64F, &on_device, &on_host));
    } else {
      CHECK(cusolverDnXpotrf_bufferSize(handle, nullptr, lower, n, CUDA_R_64F, a.get(), n, CUDA_R_64F, &on_device,
                                        &on_host));
    }
    DeviceArray<char> work(on_device);
    std::vector<char> host_work(on_host);
    CHECK(cudaDeviceSynchronize());
    const double start = now_ms();
    if (is_syevd) {
      CHECK(cusolverDnXsyevd(handle, nullptr, CUSOLVER_EIG_MODE_VECTOR, lower, n, CUDA_R_64F, a.get(), n, CUDA_R_64F,
                             w.get(), CUDA_R_64F, work.get(), on_device, host_work.data(), on_host, info.get()));
    } else {
      CHECK(cusolverDnXpotrf(handle, nullptr, lower, n, CUDA_R_64F, a.get(), n, CUDA_R_64F, work.get(), on_device,
                             host_work.data(), on_host, info.get()));
    }
    CHECK(cudaStreamSynchronize(stream));
    const double ms = now_ms() - start;
    CHECK(info.read()[0]);
    values = is_syevd ? w.read() : a.read();
    return ms;
  }
};

struct Grid {
  cudaStream_t stream = nullptr;
  ncclComm_t comm = nullptr;
  cusolverMpHandle_t handle = nullptr;
  cusolverMpGrid_t grid = nullptr;

  explicit Grid(int device) {
    ncclUniqueId id;
    if (world_rank == 0) CHECK(ncclGetUniqueId(&id));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    CHECK(ncclCommInitRank(&comm, num_ranks, id, world_rank));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cusolverMpCreate(&handle, device, stream));
    CHECK(cusolverMpCreateDeviceGrid(handle, &grid, comm, 1, num_ranks, CUSOLVERMP_GRID_MAPPING_COL_MAJOR));
  }
  ~Grid() {
    cusolverMpDestroyGrid(grid);
    cusolverMpDestroy(handle);
    ncclCommDestroy(comm);
    cudaStreamDestroy(stream);
  }
  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;
};

struct Outcome {
  std::string routine;
  int64_t n = 0;
  std::vector<double> ms;       // of the ranks together, the slowest rank's
  std::vector<double> one_gpu;  // ms of cuSOLVER on one GPU
  double error = 0;             // of the eigenvalues, or of the factor
  double residual = 0;          // of the eigenvectors
  std::vector<double> values;   // the eigenvalues, or the factor's diagonal on rank 0's columns
};

// max |A V - V diag(w)| / max |w| over this rank's eigenvectors.
double residual_of(Single& single, const Problem& problem, const std::vector<double>& full,
                   const std::vector<int64_t>& columns, const DeviceArray<double>& vectors,
                   const std::vector<double>& values) {
  const int n = static_cast<int>(problem.n);
  const int count = static_cast<int>(columns.size());
  if (count == 0) return 0;
  DeviceArray<double> a(full.size());
  DeviceArray<double> product(static_cast<size_t>(n) * columns.size());
  a.put(full);
  const double one = 1;
  const double zero = 0;
  CHECK(cublasDgemm(single.blas, CUBLAS_OP_N, CUBLAS_OP_N, n, count, n, &one, a.get(), n, vectors.get(), n, &zero,
                    product.get(), n));
  CHECK(cudaStreamSynchronize(single.stream));
  const std::vector<double> av = product.read();
  const std::vector<double> v = vectors.read();
  double most = 0;
  for (size_t c = 0; c < columns.size(); ++c) {
    const double w = values[static_cast<size_t>(columns[c])];
    double length = 0;
    for (size_t i = c * static_cast<size_t>(n); i < (c + 1) * static_cast<size_t>(n); ++i) {
      const double off = std::abs(av[i] - w * v[i]);
      most = std::isnan(off) ? HUGE_VAL : std::max(most, off);
      length += v[i] * v[i];
    }
    most = std::max(most, std::abs(length - 1) * largest(values));
  }
  return most / largest(values);
}

Outcome run(Grid& grid, Single& single, bool is_syevd, int64_t n, int64_t nb, int repeats) {
  const Problem problem{n, nb, is_syevd ? 0.0 : static_cast<double>(n)};
  const std::vector<int64_t> columns = problem.columns(world_rank, num_ranks);
  const std::vector<double> full = problem.part(problem.columns(0, 1));
  const std::vector<double> part = problem.part(columns);
  Outcome outcome;
  outcome.routine = is_syevd ? "syevd" : "potrf";
  outcome.n = n;

  std::vector<double> expected;
  for (int i = 0; i <= 3; ++i) {
    if (i == 0) {
      single.solve(is_syevd, problem, full, expected);
    } else if (world_rank == 0) {
      outcome.one_gpu.push_back(single.solve(is_syevd, problem, full, expected));
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }

  cusolverMpMatrixDescriptor_t shape = nullptr;
  CHECK(cusolverMpCreateMatrixDesc(&shape, grid.grid, CUDA_R_64F, n, n, nb, nb, 0, 0, n));
  DeviceArray<double> a(part.size());
  DeviceArray<double> w(static_cast<size_t>(n));
  DeviceArray<double> q(is_syevd ? part.size() : 1);
  DeviceArray<int> info(1);
  info.put({0});
  char vectors[] = "V";
  const auto lower = CUBLAS_FILL_MODE_LOWER;
  size_t on_device = 0;
  size_t on_host = 0;
  a.put(part);
  if (is_syevd) {
    CHECK(cusolverMpSyevd_bufferSize(grid.handle, vectors, lower, n, a.get(), 1, 1, shape, w.get(), q.get(), 1, 1,
                                     shape, CUDA_R_64F, &on_device, &on_host));
  } else {
    CHECK(cusolverMpPotrf_bufferSize(grid.handle, lower, n, a.get(), 1, 1, shape, CUDA_R_64F, &on_device, &on_host));
  }
  DeviceArray<char> work(on_device);
  std::vector<char> host_work(std::max<size_t>(on_host, 1));

  for (int i = 0; i <= repeats; ++i) {  // the first is not counted
    a.put(part);
    CHECK(cudaDeviceSynchronize());
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = now_ms();
    if (is_syevd) {
      CHECK(cusolverMpSyevd(grid.handle, vectors, lower, n, a.get(), 1, 1, shape, w.get(), q.get(), 1, 1, shape,
                            CUDA_R_64F, work.get(), on_device, host_work.data(), on_host, info.get()));
    } else {
      CHECK(cusolverMpPotrf(grid.handle, lower, n, a.get(), 1, 1, shape, CUDA_R_64F, work.get(), on_device,
                            host_work.data(), on_host, info.get()));
    }
    CHECK(cudaStreamSynchronize(grid.stream));
    const double ms = over_ranks(now_ms() - start);
    if (is_checked) CHECK(info.read()[0]);
    if (i > 0) outcome.ms.push_back(ms);
  }

  if (is_syevd) {
    outcome.values = w.read();
    for (size_t i = 0; i < outcome.values.size(); ++i) {
      const double off = std::abs(outcome.values[i] - expected[i]) / largest(expected);
      outcome.error = std::isnan(off) ? HUGE_VAL : std::max(outcome.error, off);
    }
    outcome.residual = residual_of(single, problem, full, columns, q, outcome.values);
  } else {
    const std::vector<double> factor = a.read();
    for (size_t c = 0; c < columns.size(); ++c) {
      const size_t first = static_cast<size_t>(columns[c]);
      for (size_t i = first; i < static_cast<size_t>(n); ++i) {
        const double off =
            std::abs(factor[c * static_cast<size_t>(n) + i] - expected[first * static_cast<size_t>(n) + i]);
        outcome.error = std::isnan(off) ? HUGE_VAL : std::max(outcome.error, off);
      }
      outcome.values.push_back(factor[c * static_cast<size_t>(n) + first]);
    }
    outcome.error /= largest(outcome.values);
  }
  outcome.error = over_ranks(outcome.error);
  outcome.residual = over_ranks(outcome.residual);
  CHECK(cusolverMpDestroyMatrixDesc(shape));
  return outcome;
}

void write_list(FILE* file, const char* name, const std::vector<double>& values) {
  std::fprintf(file, "\"%s\": [", name);
  for (size_t i = 0; i < values.size(); ++i) std::fprintf(file, "%s%.17g", i == 0 ? "" : ", ", values[i]);
  std::fprintf(file, "]");
}

bool write_json(const std::string& path, int64_t nb, const std::vector<Outcome>& outcomes) {
  FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  std::fprintf(file, "{\"version\": 1, \"ranks\": %d, \"nb\": %lld, \"results\": [\n", num_ranks,
               static_cast<long long>(nb));
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome& o = outcomes[i];
    std::fprintf(file, "%s{\"routine\": \"%s\", \"n\": %lld, \"error\": %.3g, \"residual\": %.3g, ",
                 i == 0 ? "" : ",\n", o.routine.c_str(), static_cast<long long>(o.n), std::min(o.error, 1e300),
                 std::min(o.residual, 1e300));
    write_list(file, "ms", o.ms);
    std::fprintf(file, ", ");
    write_list(file, "one_gpu_ms", o.one_gpu);
    std::fprintf(file, ", ");
    write_list(file, "values", is_checked ? o.values : std::vector<double>());
    std::fprintf(file, "}");
  }
  std::fprintf(file, "\n]}\n");
  return std::fclose(file) == 0;
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> all;
  std::stringstream stream(text);
  for (std::string one; std::getline(stream, one, ',');) all.push_back(one);
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  std::string routines = "syevd,potrf";
  std::string sizes = "256,512,1024,2048";
  std::string json;
  int64_t nb = 64;
  int repeats = 5;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--unchecked") {
      is_checked = false;
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : "";
    if (name == "--routines") {
      routines = value;
    } else if (name == "--sizes") {
      sizes = value;
    } else if (name == "--json") {
      json = value;
    } else if (name == "--nb") {
      nb = std::atoll(value);
    } else if (name == "--repeats") {
      repeats = std::atoi(value);
    } else {
      std::fprintf(stderr, "cusolver_mp: unknown argument %s\n", name.c_str());
      return 2;
    }
  }
  for (const std::string& routine : words(routines)) {
    if (routine != "syevd" && routine != "potrf") {
      std::fprintf(stderr, "cusolver_mp: the routine '%s' is neither syevd nor potrf\n", routine.c_str());
      return 2;
    }
  }
  for (const std::string& size : words(sizes)) {
    if (std::atoll(size.c_str()) < 1 || nb < 1 || repeats < 1) {
      std::fprintf(stderr, "cusolver_mp: sizes, --nb and --repeats are at least 1\n");
      return 2;
    }
  }

  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  int num_devices = 0;
  CHECK(cudaGetDeviceCount(&num_devices));
  const int device = world_rank % num_devices;
  CHECK(cudaSetDevice(device));
  bool is_right = true;
  std::vector<Outcome> outcomes;
  {
    Single single;
    Grid grid(device);
    for (const std::string& routine : words(routines)) {
      for (const std::string& size : words(sizes)) {
        outcomes.push_back(run(grid, single, routine == "syevd", std::atoll(size.c_str()), nb, repeats));
        const Outcome& o = outcomes.back();
        const bool is_good = !is_checked || (o.error <= kLimit && o.residual <= kLimit);
        is_right = is_right && is_good;
        if (world_rank == 0) {
          std::printf("%s n %5lld: %9.3f ms on %d ranks, %9.3f ms on one GPU, error %.2g, residual %.2g: %s\n",
                      routine.c_str(), static_cast<long long>(o.n), median(o.ms), num_ranks, median(o.one_gpu), o.error,
                      o.residual,
                      !is_checked ? "not checked"
                      : is_good   ? "right"
                                  : "WRONG");
          std::fflush(stdout);
        }
      }
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  if (world_rank == 0 && !json.empty() && !write_json(json, nb, outcomes)) {
    std::fprintf(stderr, "cusolver_mp: %s cannot be written\n", json.c_str());
    is_right = false;
  }
  MPI_Finalize();
  return is_right ? 0 : 1;
}
