// The part of MPI that nccl-tests and cusolver_mp.cpp use, for machines without an MPI: mpi_shim.c.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct LlcMpiComm* MPI_Comm;
typedef int MPI_Datatype;  // the element's size in the low byte, its kind above
typedef int MPI_Op;

#define MPI_SUCCESS 0
#define MPI_COMM_WORLD ((MPI_Comm)0)
#define MPI_COMM_NULL ((MPI_Comm)-1)
#define MPI_UNDEFINED (-32766)
#define MPI_IN_PLACE ((void*)-1)

#define MPI_DATATYPE_NULL 0x000
#define MPI_BYTE 0x001
#define MPI_CHAR 0x101
#define MPI_INT 0x104
#define MPI_LONG 0x108
#define MPI_LONG_LONG 0x108
#define MPI_INT64_T 0x108
#define MPI_UINT64_T 0x208
#define MPI_DOUBLE 0x308

#define MPI_OP_NULL 0
#define MPI_SUM 1
#define MPI_MIN 2
#define MPI_MAX 3

int MPI_Init(int* argc, char*** argv);
int MPI_Finalize(void);
int MPI_Abort(MPI_Comm comm, int code);
double MPI_Wtime(void);
int MPI_Comm_size(MPI_Comm comm, int* size);
int MPI_Comm_rank(MPI_Comm comm, int* rank);
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made);
int MPI_Comm_free(MPI_Comm* comm);
int MPI_Barrier(MPI_Comm comm);
int MPI_Bcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm);
int MPI_Gather(const void* send, int send_count, MPI_Datatype send_type, void* recv, int recv_count,
               MPI_Datatype recv_type, int root, MPI_Comm comm);
int MPI_Allgather(const void* send, int send_count, MPI_Datatype send_type, void* recv, int recv_count,
                  MPI_Datatype recv_type, MPI_Comm comm);
int MPI_Allreduce(const void* send, void* recv, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);

#ifdef __cplusplus
}
#endif
