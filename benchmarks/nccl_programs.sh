#!/usr/bin/env bash
# The programs of nccl_front.py, into one folder that can travel:
#
#   benchmarks/nccl_programs.sh NCCL NCCL_TESTS WHEELS FOLDER
#
# NCCL is a folder that nccl_build.sh has filled; NCCL_TESTS a clone of github.com/NVIDIA/nccl-tests; WHEELS a folder
# with the unpacked wheels nvidia-cusolvermp-cu13 and nvidia-cublasmp-cu13 (pip download --no-deps, unzip). FOLDER gets
# libnccl.so.2, libnccl_free.so, nccl-tests/, cusolver_mp, its two libraries, nccl_calls and libmpi.so, stripped: 75 MB, 30 with xz. cuSOLVER and
# cuBLAS stay outside: torch's wheels or the toolkit have them. For tests of every type and operator copy a second NCCL,
# nccl_build.sh's with ALL=1, to FOLDER/libnccl_all.so.2.
set -euo pipefail
usage="usage: nccl_programs.sh NCCL NCCL_TESTS WHEELS FOLDER"
nccl=$(realpath "${1:?$usage}")
tests=$(realpath "${2:?$usage}")
wheels=$(realpath "${3:?$usage}")
folder=$(realpath -m "${4:?$usage}")
here=$(cd "$(dirname "$0")" && pwd)
cuda=${CUDA_HOME:-/usr/local/cuda}
built=$nccl/build
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder/nccl-tests" "$work/mpi/include" "$work/mpi/lib"

cp "$here/mpi_shim/mpi.h" "$work/mpi/include"
gcc -std=gnu11 -O2 -Wall -Wextra -shared -fPIC -s -Wl,-soname,libmpi.so -o "$folder/libmpi.so" "$here/mpi_shim/mpi_shim.c"
cp "$folder/libmpi.so" "$work/mpi/lib"
g++ -std=c++20 -O2 -Wall -Wextra -shared -fPIC -s -o "$folder/libnccl_free.so" "$here/nccl_free.cpp" -ldl
strip -o "$folder/libnccl.so.2" "$(realpath "$built/lib/libnccl.so.2")"

# CUDA's library folder may hold another NCCL: ours comes first, and nvcc knows CUDA's own.
make -C "$tests" -j "${JOBS:-1}" src.build MPI=1 MPI_HOME="$work/mpi" NCCL_HOME="$built" CUDA_HOME="$cuda" \
  CUDA_LIB="$built/lib" CUDARTLIB=cudart_static NVCC_GENCODE=-gencode=arch=compute_90,code=sm_90 BUILDDIR="$work/tests"
for program in all_reduce reduce broadcast all_gather reduce_scatter sendrecv; do
  strip -o "$folder/nccl-tests/${program}_perf" "$work/tests/${program}_perf"
done

solver=$wheels/nvidia/cu13
blas=$wheels/nvidia/cublasmp/cu13
strip -o "$folder/libcusolverMp.so.0" "$solver/lib/libcusolverMp.so.0"
strip -o "$folder/libcublasmp.so.0" "$blas/lib/libcublasmp.so.0"
g++ -std=c++20 -O2 -Wall -Wextra -s -I"$work/mpi/include" -I"$built/include" -isystem "$solver/include" \
  -isystem "$cuda/include" -o "$folder/cusolver_mp" "$here/cusolver_mp.cpp" "$folder/libmpi.so" \
  "$folder/libcusolverMp.so.0" "$folder/libcublasmp.so.0" "$folder/libnccl.so.2" -L"$cuda/lib64" -lcusolver -lcublas \
  -lcublasLt -lcudart -L"$cuda/lib64/stubs" -Wl,--allow-shlib-undefined
g++ -std=c++20 -O2 -Wall -Wextra -s -I"$work/mpi/include" -I"$built/include" -isystem "$cuda/include" \
  -o "$folder/nccl_calls" "$here/nccl_calls.cpp" "$folder/libmpi.so" "$folder/libnccl.so.2" -L"$cuda/lib64" -lcublas \
  -lcublasLt -lcudart -L"$cuda/lib64/stubs" -Wl,--allow-shlib-undefined
du -sh "$folder"
