/* llcoll's C interface: low-latency collectives for programs without torch and without Python. Plain C99.
 *
 * Link libllcoll.so (pkg-config llcoll, or CMake's find_package(llcoll)). It needs no CUDA; communicators on a GPU load
 * libllcoll_cuda.so from beside it. docs/c-api.md has the whole story.
 *
 * Every function but the plain getters returns an llcoll_result_t. Where that is not LLCOLL_SUCCESS,
 * llcoll_last_error() says what went wrong, in the calling thread. No function throws, prints or ends the process.
 */
#ifndef LLCOLL_LLCOLL_H_
#define LLCOLL_LLCOLL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#error "llcoll is for Linux"
#endif
#define LLCOLL_API __attribute__((visibility("default")))

/* Of this header; llcoll_version() gives the library's. Libraries of one major version serve older headers of it. */
#define LLCOLL_VERSION 100 /* 10000 * major + 100 * minor + patch */

typedef struct llcoll_comm* llcoll_comm_t; /* one rank's end of a communicator */
typedef struct llcoll_plan* llcoll_plan_t; /* a call made ready to be repeated */

typedef enum {
  LLCOLL_SUCCESS = 0,
  LLCOLL_ERROR = 1,    /* bad arguments, no memory, no GPU: nothing was sent */
  LLCOLL_TIMEOUT = 2,  /* a peer did not come in time; the text names it. The communicator is of no more use */
  LLCOLL_MISMATCH = 3, /* LLCOLL_DEBUG=1: the ranks made different calls */
  LLCOLL_ABORTED = 4   /* llcoll_comm_abort() was called, on some rank */
} llcoll_result_t;

typedef enum {
  LLCOLL_FLOAT32 = 0,
  LLCOLL_FLOAT64 = 1,
  LLCOLL_FLOAT16 = 2,
  LLCOLL_BFLOAT16 = 3,
  LLCOLL_FLOAT8_E4M3 = 4,
  LLCOLL_FLOAT8_E5M2 = 5,
  LLCOLL_INT8 = 6,
  LLCOLL_UINT8 = 7,
  LLCOLL_INT32 = 8,
  LLCOLL_INT64 = 9,
  LLCOLL_BOOL = 10 /* one byte, 0 or 1: a sum is "or", a product "and" */
} llcoll_dtype_t;

/* Sums of floating types are made in float32 (float64 for float64), in rank order, with one rounding: the same bits on
 * every rank and by every algorithm but LLCOLL_TWO_SHOT_LL128. min and max hand NaN on. */
typedef enum { LLCOLL_SUM = 0, LLCOLL_AVG = 1, LLCOLL_MIN = 2, LLCOLL_MAX = 3, LLCOLL_PROD = 4 } llcoll_op_t;

typedef enum {
  LLCOLL_ALL_REDUCE = 0,
  LLCOLL_REDUCE_SCATTER = 1,
  LLCOLL_ALL_GATHER = 2,
  LLCOLL_BROADCAST = 3,
  LLCOLL_REDUCE = 4,
  LLCOLL_ALL_TO_ALL = 5
} llcoll_collective_t;

/* LLCOLL_AUTO picks by size, type, operator and world size. All collectives but the all-reduce are one exchange and
 * take AUTO and the ONE_SHOT names. */
typedef enum {
  LLCOLL_AUTO = 0,
  LLCOLL_ONE_SHOT_LL = 1,
  LLCOLL_ONE_SHOT_SENTINEL = 2,
  LLCOLL_TWO_SHOT_LL = 3,
  LLCOLL_TWO_SHOT_SENTINEL = 4,
  LLCOLL_TWO_SHOT_LL128 = 5,
  LLCOLL_ONE_SHOT_FLAG = 6,
  LLCOLL_TWO_SHOT_FLAG = 7
} llcoll_algorithm_t;

typedef enum {
  LLCOLL_POLICY_FAST = 0,
  LLCOLL_POLICY_INVARIANT = 1 /* only algorithms that give the same bits at every size and world size */
} llcoll_policy_t;

/* The bootstrap: gives every rank's `bytes` bytes, in rank order, in `all` (world_size * bytes). `bytes` is the same on
 * every rank in each round. Returns 0, or anything else where it failed. It is called several times, only while
 * llcoll_comm_create() runs and in the same order on every rank; it must not wait forever. MPI_Allgather is one. */
typedef int (*llcoll_all_gather_fn)(void* context, const void* own, size_t bytes, void* all);

#define LLCOLL_HOST (-1)

/* All of it must be the same on every rank, but for `device`: some ranks on GPUs and some on the host is an error. */
typedef struct {
  size_t struct_bytes;     /* sizeof(llcoll_config_t): LLCOLL_CONFIG_INITIALIZER sets it */
  int device;              /* LLCOLL_HOST, or the CUDA device whose memory the calls take */
  double timeout_s;        /* no wait in a call lasts longer; 0: forever; below 0: LLCOLL_TIMEOUT, or 300 */
  llcoll_policy_t policy;  /* LLCOLL_POLICY in the environment can only make it stricter */
  int allow_low_precision; /* not 0: LL128 may sum 16-bit types in their own precision */
  size_t scratch_bytes;    /* of each rank; 0: LLCOLL_SCRATCH_BYTES, or 64 MiB on a GPU and 8 to 24 MiB on the host */
  const char* name;        /* for messages; NULL: "llcoll" */
  const char* selection;   /* rows as in docs/c-api.md; NULL: the built-in ones */
} llcoll_config_t;

#define LLCOLL_CONFIG_INITIALIZER \
  { sizeof(llcoll_config_t), LLCOLL_HOST, -1.0, LLCOLL_POLICY_FAST, 0, 0, NULL, NULL }

/* Collective: every rank of 0..world_size-1 calls it, in its own process or thread. Succeeds on all ranks or fails on
 * all with the same text. `config` may be NULL. `context` goes to `all_gather` as it is. */
LLCOLL_API llcoll_result_t llcoll_comm_create(llcoll_comm_t* comm, int rank, int world_size,
                                              llcoll_all_gather_fn all_gather, void* context,
                                              const llcoll_config_t* config);
/* Local, waits for no peer; on a GPU it waits for this rank's own calls. Plans of it must be destroyed before. */
LLCOLL_API llcoll_result_t llcoll_comm_destroy(llcoll_comm_t comm);
/* Ends all waits of this communicator on every rank. From any thread. Every later call gives LLCOLL_ABORTED. */
LLCOLL_API llcoll_result_t llcoll_comm_abort(llcoll_comm_t comm);
/* What is pending: on a GPU a call has returned long before its kernel finds that a peer is missing. Cheap. */
LLCOLL_API llcoll_result_t llcoll_comm_check(llcoll_comm_t comm);
/* `*idle`: 1 where all calls of this rank have run to their end, 0 where one may still be running. Never waits. */
LLCOLL_API llcoll_result_t llcoll_comm_is_idle(llcoll_comm_t comm, int* idle);
/* Work of the caller's own among the calls of a communicator, which run in the order in which they are made whatever
 * their streams: what is put on `stream` between begin and end runs behind the calls before, and the calls after run
 * behind it. Local; nothing on the host. No other call on `comm` in between. */
LLCOLL_API llcoll_result_t llcoll_order_begin(llcoll_comm_t comm, void* stream);
LLCOLL_API llcoll_result_t llcoll_order_end(llcoll_comm_t comm, void* stream);
/* Writes this rank's last 256 calls to the file `path` as JSON. `python -m llcoll.diagnose` reads all ranks' files and
 * says where they differ. At any time, from any thread, after a failure too. */
LLCOLL_API llcoll_result_t llcoll_comm_dump(llcoll_comm_t comm, const char* path);
LLCOLL_API int llcoll_comm_rank(llcoll_comm_t comm);
LLCOLL_API int llcoll_comm_size(llcoll_comm_t comm);

/* One collective. Pointers are host or device memory, as the communicator is, of any alignment; `stream` is a
 * cudaStream_t on the communicator's device, ignored on the host, where a call returns when it is done.
 *
 *                       elements in `send`     elements in `recv`     in place where
 *   all_reduce          count                  count                  recv == send
 *   reduce_scatter      count * world_size     count                  recv == send + rank * count
 *   all_gather          count                  count * world_size     send == recv + rank * count
 *   broadcast           count (the root)       count                  recv == send
 *   reduce              count                  count (the root)       recv == send
 *   all_to_all          count * world_size     count * world_size     recv == send
 *
 * Any other overlap is an error of the caller's. A pointer that a rank does not use may be NULL.
 *
 * Parts of unequal sizes: with `send_counts` (reduce_scatter, all_to_all) or `recv_counts` (all_gather, all_to_all),
 * world_size numbers each, `count` is not read; an all_to_all takes both or neither, and is then never in place. */
typedef struct {
  size_t struct_bytes; /* sizeof(llcoll_call_t) */
  llcoll_collective_t collective;
  const void* send;
  void* recv;
  size_t count;
  llcoll_dtype_t dtype;
  llcoll_op_t op; /* all_reduce, reduce_scatter, reduce */
  int root;       /* broadcast, reduce */
  llcoll_algorithm_t algorithm;
  void* stream;
  const size_t* send_counts;
  const size_t* recv_counts;
} llcoll_call_t;

LLCOLL_API llcoll_result_t llcoll_run(llcoll_comm_t comm, const llcoll_call_t* call);
/* Every rank has arrived. On a GPU: as work on `stream`. */
LLCOLL_API llcoll_result_t llcoll_barrier(llcoll_comm_t comm, void* stream);

/* The same calls in the style of MPI and NCCL. */
LLCOLL_API llcoll_result_t llcoll_all_reduce(const void* send, void* recv, size_t count, llcoll_dtype_t dtype,
                                             llcoll_op_t op, llcoll_comm_t comm, void* stream);
LLCOLL_API llcoll_result_t llcoll_reduce_scatter(const void* send, void* recv, size_t recv_count, llcoll_dtype_t dtype,
                                                 llcoll_op_t op, llcoll_comm_t comm, void* stream);
LLCOLL_API llcoll_result_t llcoll_all_gather(const void* send, void* recv, size_t send_count, llcoll_dtype_t dtype,
                                             llcoll_comm_t comm, void* stream);
LLCOLL_API llcoll_result_t llcoll_broadcast(const void* send, void* recv, size_t count, llcoll_dtype_t dtype, int root,
                                            llcoll_comm_t comm, void* stream);
LLCOLL_API llcoll_result_t llcoll_reduce(const void* send, void* recv, size_t count, llcoll_dtype_t dtype,
                                         llcoll_op_t op, int root, llcoll_comm_t comm, void* stream);
LLCOLL_API llcoll_result_t llcoll_all_to_all(const void* send, void* recv, size_t count, llcoll_dtype_t dtype,
                                             llcoll_comm_t comm, void* stream);

/* A plan checks the call, copies it (its counts too) and picks the algorithm once; a run only starts it. Local: it
 * sends nothing. The buffers must stay until the plan is destroyed. */
LLCOLL_API llcoll_result_t llcoll_plan_create(llcoll_plan_t* plan, llcoll_comm_t comm, const llcoll_call_t* call);
/* On `stream`, not the call's. */
LLCOLL_API llcoll_result_t llcoll_plan_run(llcoll_plan_t plan, void* stream);
LLCOLL_API llcoll_result_t llcoll_plan_destroy(llcoll_plan_t plan);

/* Text of this thread's last error, "" before the first; valid until its next. */
LLCOLL_API const char* llcoll_last_error(void);
/* "LLCOLL_TIMEOUT" and so on. */
LLCOLL_API const char* llcoll_result_name(llcoll_result_t result);
LLCOLL_API int llcoll_version(void);

#ifdef __cplusplus
}
#endif

#endif /* LLCOLL_LLCOLL_H_ */
