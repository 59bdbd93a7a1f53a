/* The C interface from plain C: capi_test MODE RANK WORLD_SIZE PORT. With LLCOLL_TEST_CUDA the same on device memory.
 * Modes: all | timeout | abort | settings. LLCOLL_TEST_DUMPS names a folder for flight records. Prints "ok" and returns
 * 0, or says what is wrong and returns 1. */
#define _POSIX_C_SOURCE 200809L
#include <llcoll/llcoll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../examples/c/tcp_bootstrap.h"

#ifdef LLCOLL_TEST_CUDA
#include <cuda_runtime_api.h>
static cudaStream_t stream;
#define DEVICE (getenv("LLCOLL_TEST_DEVICE") ? atoi(getenv("LLCOLL_TEST_DEVICE")) : 0)
static void cuda(cudaError_t error, int line) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(error));
  exit(1);
}
#else
static void* stream = NULL;
#define DEVICE LLCOLL_HOST
#endif

#define MAX_BYTES (1 << 20)
static int rank, world_size;
static llcoll_comm_t comm;
/* What a call takes, and copies on the host. */
static char *send_buffer, *recv_buffer;
static char send_host[MAX_BYTES], recv_host[MAX_BYTES];

#define REQUIRE(condition)                                                                             \
  do {                                                                                                 \
    if (!(condition)) {                                                                                \
      fprintf(stderr, "rank %d, line %d: %s (%s)\n", rank, __LINE__, #condition, llcoll_last_error()); \
      exit(1);                                                                                         \
    }                                                                                                  \
  } while (0)
#define OK(call) REQUIRE((call) == LLCOLL_SUCCESS)

static void allocate(void) {
#ifdef LLCOLL_TEST_CUDA
  cuda(cudaSetDevice(DEVICE), __LINE__);
  cuda(cudaMalloc((void**)&send_buffer, MAX_BYTES), __LINE__);
  cuda(cudaMalloc((void**)&recv_buffer, MAX_BYTES), __LINE__);
  cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), __LINE__);
#else
  send_buffer = malloc(MAX_BYTES);
  recv_buffer = malloc(MAX_BYTES);
#endif
}

static void upload(char* to, const char* from, size_t bytes) {
#ifdef LLCOLL_TEST_CUDA
  cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), __LINE__);
#else
  memcpy(to, from, bytes);
#endif
}

static void download(char* to, const char* from, size_t bytes) {
#ifdef LLCOLL_TEST_CUDA
  cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), __LINE__);
  cuda(cudaStreamSynchronize(stream), __LINE__);
#else
  memcpy(to, from, bytes);
#endif
}

/* Small whole numbers: exact in every type of up to 8 ranks' sums. */
static double value_of(int of_rank, size_t i) { return (double)((of_rank * 5 + (int)(i % 7)) % 11) - 3; }

static size_t width(llcoll_dtype_t dtype) {
  return dtype == LLCOLL_FLOAT64 || dtype == LLCOLL_INT64 ? 8 : dtype == LLCOLL_INT8 ? 1 : 4;
}

static void put(char* at, llcoll_dtype_t dtype, size_t i, double value) {
  switch (dtype) {
    case LLCOLL_FLOAT32:
      ((float*)at)[i] = (float)value;
      break;
    case LLCOLL_FLOAT64:
      ((double*)at)[i] = value;
      break;
    case LLCOLL_INT32:
      ((int32_t*)at)[i] = (int32_t)value;
      break;
    case LLCOLL_INT64:
      ((int64_t*)at)[i] = (int64_t)value;
      break;
    default:
      ((int8_t*)at)[i] = (int8_t)value;
      break;
  }
}

static double get(const char* at, llcoll_dtype_t dtype, size_t i) {
  switch (dtype) {
    case LLCOLL_FLOAT32:
      return ((const float*)at)[i];
    case LLCOLL_FLOAT64:
      return ((const double*)at)[i];
    case LLCOLL_INT32:
      return ((const int32_t*)at)[i];
    case LLCOLL_INT64:
      return (double)((const int64_t*)at)[i];
    default:
      return ((const int8_t*)at)[i];
  }
}

static double reduced(llcoll_op_t op, size_t i) {
  double result = value_of(0, i);
  for (int r = 1; r < world_size; ++r) {
    const double v = value_of(r, i);
    if (op == LLCOLL_SUM || op == LLCOLL_AVG) result += v;
    if (op == LLCOLL_MIN && v < result) result = v;
    if (op == LLCOLL_MAX && v > result) result = v;
    if (op == LLCOLL_PROD) result *= v;
  }
  return op == LLCOLL_AVG ? result / world_size : result;
}

/* All calls of the same test over both forms. */
typedef struct {
  llcoll_collective_t kind;
  llcoll_dtype_t dtype;
  llcoll_op_t op;
  size_t count;
  int root;
  int in_place;
  int by_plan;
  int uneven; /* counts of rank r: count + r */
} test_t;

static size_t counts[128], begins[129];

static void run(const test_t* t) {
  const size_t w = width(t->dtype);
  const size_t n = (size_t)world_size;
  begins[0] = 0;
  for (size_t r = 0; r < n; ++r) {
    counts[r] = t->count + (t->uneven ? r : 0);
    begins[r + 1] = begins[r] + counts[r];
  }
  const int gathers = t->kind == LLCOLL_ALL_GATHER, scatters = t->kind == LLCOLL_REDUCE_SCATTER;
  const int swaps = t->kind == LLCOLL_ALL_TO_ALL;
  const size_t all = begins[n], own = counts[rank];
  const size_t num_sent = scatters || swaps ? all : gathers ? own : t->count;
  const size_t num_received = gathers || swaps ? all : scatters ? own : t->count;
  /* 4 or 8 bytes in: off every vector's alignment, on the element's. */
  char *send = send_buffer + 8, *recv = recv_buffer + 8;
  if (t->in_place) {
    recv = send + (scatters ? begins[rank] * w : 0);
    if (gathers) {
      recv = send;
      send += begins[rank] * w;
    }
  }
  memset(recv_host, 0x5A, MAX_BYTES);
  upload(recv_buffer, recv_host, MAX_BYTES);
  memset(send_host, 0x5A, MAX_BYTES);
  /* An all-to-all's element: from rank to peer. */
  for (size_t i = 0; i < num_sent; ++i) put(send_host, t->dtype, i, value_of(rank, i));
  if (!t->in_place) upload(send_buffer, (const char*)recv_host, MAX_BYTES);
  upload(send, send_host, num_sent * w);

  llcoll_call_t call;
  memset(&call, 0, sizeof call);
  call.struct_bytes = sizeof call;
  call.collective = t->kind;
  call.send = send;
  call.recv = recv;
  call.count = t->uneven ? 0 : t->count;
  call.dtype = t->dtype;
  call.op = t->op;
  call.root = t->root;
  call.stream = stream;
  if (t->uneven && (scatters || swaps)) call.send_counts = counts;
  size_t takes[128]; /* an all-to-all of uneven parts: part (a, b) has count + (a + b) % world_size elements */
  if (t->uneven && swaps) {
    for (size_t r = 0; r < n; ++r) counts[r] = takes[r] = t->count + ((size_t)rank + r) % n;
    call.recv_counts = takes;
  }
  if (t->uneven && gathers) call.recv_counts = counts;
  const int times = t->by_plan ? 3 : 1; /* an all-reduce in place would change its own input */
  if (t->by_plan) {
    llcoll_plan_t plan;
    OK(llcoll_plan_create(&plan, comm, &call));
    call.recv = NULL; /* the plan has its own copy */
    for (int i = 0; i < times; ++i) OK(llcoll_plan_run(plan, stream));
    OK(llcoll_plan_destroy(plan));
  } else {
    OK(llcoll_run(comm, &call));
  }

  download(recv_host, recv, num_received * w);
  if (t->kind == LLCOLL_REDUCE && rank != t->root) return;
  for (size_t i = 0; i < num_received; ++i) {
    double expected = 0;
    if (t->kind == LLCOLL_ALL_REDUCE || t->kind == LLCOLL_REDUCE) expected = reduced(t->op, i);
    if (scatters) expected = reduced(t->op, begins[rank] + i);
    if (t->kind == LLCOLL_BROADCAST) expected = value_of(t->root, i);
    if (gathers || swaps) {
      /* By part: source rank, and the place of the element in what that rank sent. */
      size_t part = 0, before = 0;
      const size_t* from = t->uneven && swaps ? takes : counts;
      while (i >= before + from[part]) before += from[part++];
      size_t place = i - before;
      if (swaps) {
        for (int r = 0; r < rank; ++r) place += t->uneven ? t->count + (part + (size_t)r) % n : t->count;
      }
      expected = value_of((int)part, place);
    }
    const double got = get(recv_host, t->dtype, i);
    if (got != expected) {
      fprintf(stderr,
              "rank %d: collective %d dtype %d op %d count %zu root %d in place %d plan %d uneven %d: [%zu] is %g, not "
              "%g\n",
              rank, t->kind, t->dtype, t->op, t->count, t->root, t->in_place, t->by_plan, t->uneven, i, got, expected);
      exit(1);
    }
  }
}

static void run_all(void) {
  const llcoll_dtype_t dtypes[] = {LLCOLL_FLOAT32, LLCOLL_FLOAT64, LLCOLL_INT32, LLCOLL_INT64, LLCOLL_INT8};
  const size_t sizes[] = {1, 3, 16, 1000, 4099};
  int num_tests = 0;
  for (int kind = LLCOLL_ALL_REDUCE; kind <= LLCOLL_ALL_TO_ALL; ++kind) {
    for (int d = 0; d < 5; ++d) {
      for (int s = 0; s < 5; ++s) {
        for (int form = 0; form < 4; ++form) {
          test_t t = {(llcoll_collective_t)kind, dtypes[d], LLCOLL_SUM, sizes[s],
                      (d + s) % world_size,      form == 1, form == 2,  form == 3};
          if (t.uneven && (kind == LLCOLL_ALL_REDUCE || kind == LLCOLL_BROADCAST || kind == LLCOLL_REDUCE)) continue;
          run(&t);
          ++num_tests;
        }
      }
    }
  }
  for (int op = LLCOLL_AVG; op <= LLCOLL_PROD; ++op) {
    test_t t = {LLCOLL_ALL_REDUCE, LLCOLL_FLOAT64, (llcoll_op_t)op, 77, 0, 0, 0, 0};
    if (op == LLCOLL_AVG && world_size == 3) continue; /* thirds round */
    run(&t);
    t.kind = LLCOLL_REDUCE_SCATTER;
    run(&t);
  }
  OK(llcoll_barrier(comm, stream));

  /* The short forms. */
  double one = rank + 1, sum = 0;
  upload(send_buffer, (const char*)&one, sizeof one);
  OK(llcoll_all_reduce(send_buffer, recv_buffer, 1, LLCOLL_FLOAT64, LLCOLL_SUM, comm, stream));
  download((char*)&sum, recv_buffer, sizeof sum);
  REQUIRE(sum == world_size * (world_size + 1) / 2.0);
  OK(llcoll_broadcast(send_buffer, recv_buffer, 1, LLCOLL_FLOAT64, world_size - 1, comm, stream));
  download((char*)&sum, recv_buffer, sizeof sum);
  REQUIRE(sum == world_size);
  OK(llcoll_reduce(send_buffer, rank == 0 ? recv_buffer : NULL, 1, LLCOLL_FLOAT64, LLCOLL_MAX, 0, comm, stream));
  if (rank == 0) download((char*)&sum, recv_buffer, sizeof sum);
  REQUIRE(sum == world_size);
  OK(llcoll_all_gather(send_buffer, recv_buffer, 1, LLCOLL_FLOAT64, comm, stream));
  OK(llcoll_reduce_scatter(recv_buffer, send_buffer, 1, LLCOLL_FLOAT64, LLCOLL_SUM, comm, stream));
  download((char*)&sum, send_buffer, sizeof sum);
  REQUIRE(sum == world_size * (rank + 1.0));
  OK(llcoll_all_gather(send_buffer, recv_buffer, 1, LLCOLL_FLOAT64, comm, stream));
  OK(llcoll_all_to_all(recv_buffer, recv_buffer, 1, LLCOLL_FLOAT64, comm, stream));
  download(recv_host, recv_buffer, sizeof sum * (size_t)world_size);
  for (int r = 0; r < world_size; ++r) REQUIRE(((double*)recv_host)[r] == world_size * (rank + 1.0));

  /* Errors: found before anything is sent, so the communicator works on. */
  REQUIRE(llcoll_all_reduce(NULL, recv_buffer, 1, LLCOLL_FLOAT32, LLCOLL_SUM, comm, stream) == LLCOLL_ERROR);
  REQUIRE(strstr(llcoll_last_error(), "send is NULL") != NULL);
  REQUIRE(llcoll_all_reduce(send_buffer, send_buffer + 4, 8, LLCOLL_FLOAT32, LLCOLL_SUM, comm, stream) == LLCOLL_ERROR);
  REQUIRE(strstr(llcoll_last_error(), "overlap") != NULL);
  REQUIRE(llcoll_broadcast(send_buffer, send_buffer, 1, LLCOLL_INT8, world_size, comm, stream) == LLCOLL_ERROR);
  REQUIRE(strstr(llcoll_last_error(), "root is") != NULL);
  REQUIRE(llcoll_all_reduce(send_buffer, send_buffer, 1, (llcoll_dtype_t)99, LLCOLL_SUM, comm, stream) == LLCOLL_ERROR);
  REQUIRE(llcoll_all_reduce(send_buffer, send_buffer, 1, LLCOLL_BOOL, LLCOLL_AVG, comm, stream) == LLCOLL_ERROR);
  REQUIRE(llcoll_all_reduce(send_buffer, send_buffer, 1, LLCOLL_INT8, LLCOLL_SUM, NULL, stream) == LLCOLL_ERROR);
  REQUIRE(llcoll_run(comm, NULL) == LLCOLL_ERROR);
  REQUIRE(llcoll_comm_rank(comm) == rank && llcoll_comm_size(comm) == world_size);
  REQUIRE(llcoll_version() == LLCOLL_VERSION);
  OK(llcoll_all_reduce(NULL, NULL, 0, LLCOLL_FLOAT32, LLCOLL_SUM, comm, stream));
  OK(llcoll_barrier(comm, stream));
  OK(llcoll_comm_check(comm));
#ifdef LLCOLL_TEST_CUDA
  /* Captured once, replayed often, from a plan as from a call. */
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  const double start = 1;
  upload(send_buffer, (const char*)&start, sizeof start);
  cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), __LINE__);
  for (int i = 0; i < 3; ++i) {
    OK(llcoll_all_reduce(send_buffer, send_buffer, 1, LLCOLL_FLOAT64, LLCOLL_SUM, comm, stream));
  }
  cuda(cudaStreamEndCapture(stream, &graph), __LINE__);
  cuda(cudaGraphInstantiate(&executable, graph, 0), __LINE__);
  for (int i = 0; i < 2; ++i) cuda(cudaGraphLaunch(executable, stream), __LINE__);
  download((char*)&sum, send_buffer, sizeof sum);
  double expected = 1;
  for (int i = 0; i < 6; ++i) expected *= world_size;
  REQUIRE(sum == expected);
#endif
  printf("%d tests, ", num_tests);
}

#ifdef LLCOLL_TEST_CUDA
/* Streams that end behind a call, each call on another; then work of the program's own among the calls. */
static void run_streams(void) {
  enum { kNumStreams = 20 };
  const double start = 1;
  double sum = 0;
  double expected = 1;
  cudaStream_t kept[2];
  OK(llcoll_all_gather(send_buffer, recv_buffer, 1, LLCOLL_FLOAT64, comm, stream)); /* the first stream stays */
  upload(send_buffer, (const char*)&start, sizeof start);
  for (int i = 0; i < kNumStreams; ++i) {
    cudaStream_t ended;
    cuda(cudaStreamCreateWithFlags(&ended, cudaStreamNonBlocking), __LINE__);
    OK(llcoll_all_reduce(send_buffer, send_buffer, 1, LLCOLL_FLOAT64, LLCOLL_SUM, comm, ended));
    cuda(cudaStreamDestroy(ended), __LINE__);
    expected *= world_size;
  }
  for (int i = 0; i < 2; ++i) cuda(cudaStreamCreateWithFlags(&kept[i], cudaStreamNonBlocking), __LINE__);
  for (int i = 0; i < 10; ++i) {
    OK(llcoll_order_begin(comm, kept[0]));
    cuda(cudaMemcpyAsync(recv_buffer, send_buffer, sizeof start, cudaMemcpyDeviceToDevice, kept[0]), __LINE__);
    OK(llcoll_order_end(comm, kept[0]));
    OK(llcoll_all_reduce(recv_buffer, send_buffer, 1, LLCOLL_FLOAT64, LLCOLL_SUM, comm, kept[1]));
    expected *= world_size;
  }
  int idle = 0;
  while (!idle) OK(llcoll_comm_is_idle(comm, &idle));
  cuda(cudaDeviceSynchronize(), __LINE__);
  download((char*)&sum, send_buffer, sizeof sum);
  REQUIRE(sum == expected);
  for (int i = 0; i < 2; ++i) cuda(cudaStreamDestroy(kept[i]), __LINE__);
}
#endif

/* This rank's flight record, where LLCOLL_TEST_DUMPS wants one. */
static void dump(void) {
  const char* folder = getenv("LLCOLL_TEST_DUMPS");
  if (folder == NULL) return;
  char path[512];
  snprintf(path, sizeof path, "%s/no/such/folder", folder);
  REQUIRE(llcoll_comm_dump(comm, path) == LLCOLL_ERROR && strstr(llcoll_last_error(), "no/such/folder") != NULL);
  REQUIRE(llcoll_comm_dump(comm, NULL) == LLCOLL_ERROR && llcoll_comm_dump(NULL, path) == LLCOLL_ERROR);
  snprintf(path, sizeof path, "%s/llcoll-rank%d.json", folder, rank);
  OK(llcoll_comm_dump(comm, path));
  OK(llcoll_comm_dump(comm, path)); /* replaces it */
}

/* The last rank stays away: the others name it, within the limit. */
static void run_timeout(void) {
  OK(llcoll_all_reduce(send_buffer, recv_buffer, 8, LLCOLL_INT32, LLCOLL_SUM, comm, stream));
  if (rank == world_size - 1) {
    dump();
    sleep(3);
    return;
  }
  llcoll_result_t result = llcoll_all_reduce(send_buffer, send_buffer, 4, LLCOLL_FLOAT32, LLCOLL_SUM, comm, stream);
#ifdef LLCOLL_TEST_CUDA
  OK(result);
  cuda(cudaStreamSynchronize(stream), __LINE__);
  result = llcoll_comm_check(comm);
#endif
  REQUIRE(result == LLCOLL_TIMEOUT);
  char name[32];
  snprintf(name, sizeof name, "rank %d", world_size - 1);
  REQUIRE(strstr(llcoll_last_error(), name) != NULL);
  REQUIRE(llcoll_all_reduce(send_buffer, send_buffer, 4, LLCOLL_FLOAT32, LLCOLL_SUM, comm, stream) != LLCOLL_SUCCESS);
  dump();
}

static void* abort_soon(void* arg) {
  const struct timespec pause = {0, 300 * 1000 * 1000};
  nanosleep(&pause, NULL);
  OK(llcoll_comm_abort(comm));
  return arg;
}

/* Rank 0 aborts from another thread while everybody but the last rank waits. */
static void run_abort(void) {
  pthread_t thread;
  if (rank == 0) REQUIRE(pthread_create(&thread, NULL, abort_soon, NULL) == 0);
  llcoll_result_t result;
  if (rank == world_size - 1) {
    sleep(1);
    result = llcoll_comm_check(comm);
#ifdef LLCOLL_TEST_CUDA
    result = LLCOLL_ABORTED; /* an idle rank learns of it at its next kernel */
#endif
  } else {
    result = llcoll_all_reduce(send_buffer, send_buffer, 4, LLCOLL_FLOAT32, LLCOLL_SUM, comm, stream);
#ifdef LLCOLL_TEST_CUDA
    cuda(cudaStreamSynchronize(stream), __LINE__);
    result = llcoll_comm_check(comm);
#endif
  }
  if (rank == 0) pthread_join(thread, NULL);
  REQUIRE(result == LLCOLL_ABORTED);
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const char* mode = argv[1];
  rank = atoi(argv[2]);
  world_size = atoi(argv[3]);
  tcp_bootstrap_t bootstrap;
  if (tcp_bootstrap_open(&bootstrap, rank, world_size, "127.0.0.1", atoi(argv[4]), 20) != 0) return 1;
  allocate();
  llcoll_config_t config = LLCOLL_CONFIG_INITIALIZER;
  config.device = DEVICE;
  config.timeout_s = strcmp(mode, "timeout") == 0 ? 1 : 20;
  if (strcmp(mode, "settings") == 0) {
    config.scratch_bytes = rank == 1 ? 4 << 20 : 8 << 20;
    REQUIRE(llcoll_comm_create(&comm, rank, world_size, tcp_bootstrap_all_gather, &bootstrap, &config) == LLCOLL_ERROR);
    REQUIRE(strstr(llcoll_last_error(), "different settings: rank 0") != NULL && comm == NULL);
    config.scratch_bytes = 0;
    config.policy = rank == 1 ? (llcoll_policy_t)7 : LLCOLL_POLICY_FAST;
    REQUIRE(llcoll_comm_create(&comm, rank, world_size, tcp_bootstrap_all_gather, &bootstrap, &config) == LLCOLL_ERROR);
    REQUIRE(strstr(llcoll_last_error(), "rank 1: policy is 7") != NULL);
    config.policy = LLCOLL_POLICY_FAST;
  }
  OK(llcoll_comm_create(&comm, rank, world_size, tcp_bootstrap_all_gather, &bootstrap, &config));
  if (strcmp(mode, "all") == 0) run_all();
#ifdef LLCOLL_TEST_CUDA
  if (strcmp(mode, "streams") == 0) run_streams();
#endif
  if (strcmp(mode, "timeout") == 0) run_timeout();
  if (strcmp(mode, "abort") == 0) run_abort();
  if (strcmp(mode, "all") == 0 || strcmp(mode, "settings") == 0) {
    /* A second one beside the first, and after it. */
    llcoll_comm_t second;
    OK(llcoll_comm_create(&second, rank, world_size, tcp_bootstrap_all_gather, &bootstrap, &config));
    OK(llcoll_barrier(second, stream));
    OK(llcoll_barrier(comm, stream));
    OK(llcoll_comm_destroy(comm));
    OK(llcoll_barrier(second, stream));
    comm = second;
  }
  OK(llcoll_comm_destroy(comm));
  tcp_bootstrap_close(&bootstrap);
  printf("ok\n");
  return 0;
}
