#!/usr/bin/env bash
# NCCL from its public source, small enough to travel: benchmarks/nccl_build.sh SOURCE FOLDER
#
# SOURCE is a clone of github.com/NVIDIA/nccl at v2.30.7-1 (`git clone --branch v2.30.7-1`). Only sm_90, and of the
# functions sums of all types but 8-bit floats, minima and maxima of four, products of float64, copies and Send/Recv: what
# the loopback programs use. FOLDER/libnccl.so.2 is about 9 MB. ALL=1: every type and operator, by one algorithm instead (to be run
# with NCCL_ALGO=Ring NCCL_PROTO=Simple), for tests. JOBS (default 1) bounds the compilers that run at once. A function
# that was left out does nothing when it is called.
set -euo pipefail
source=$(realpath "${1:?usage: nccl_build.sh SOURCE FOLDER}")
folder=$(realpath -m "${2:?usage: nccl_build.sh SOURCE FOLDER}")
cuda=${CUDA_HOME:-/usr/local/cuda}
mkdir -p "$folder/cuda"
# CUDA's own folder may hold the headers of another NCCL, which would be found first.
for path in "$cuda"/include/*; do
  case ${path##*/} in nccl*) ;; *) ln -sfn "$path" "$folder/cuda/${path##*/}" ;; esac
done
functions='(AllReduce|Reduce|ReduceScatter) Sum (i8|u8|i32|u32|i64|u64|f16|f32|f64|bf16) (RING|TREE) *'
functions+='|(AllReduce|Reduce) MinMax (i32|u32|f32|f64) (RING|TREE) *|AllReduce Prod f64 (RING|TREE) *'
functions+='|(AllGather|Broadcast) RING *|SendRecv'
if [ "${ALL:-0}" = 1 ]; then
  functions='(AllReduce|Reduce|ReduceScatter) * * RING SIMPLE|(AllGather|Broadcast) RING SIMPLE|SendRecv'
fi
make -C "$source" -j "${JOBS:-1}" src.build CUDA_HOME="$cuda" CUDA_INC="$folder/cuda" BUILDDIR="$folder/build" \
  NVCC_GENCODE='-gencode=arch=compute_90,code=sm_90' ONLY_FUNCS="$functions"
strip -o "$folder/libnccl.so.2" "$folder"/build/lib/libnccl.so.2.*.*
ls -l "$folder/libnccl.so.2"
