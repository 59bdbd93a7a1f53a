#!/usr/bin/env bash
# Everything that is to be known of a machine with several GPUs, one rank a GPU, in one command:
#
#   benchmarks/multi_gpu.sh [--loopback] [--dry-run] [part...]
#
# Parts, for every N of RANKS (default 2 4 8) that the machine has GPUs for: tests-N (the CUDA tests, tests/gpu.sh),
# litmus-N (128-byte atomicity across the GPUs), sol-N (speed of light), graph-N and eager-N (llcoll.bench beside NCCL: its
# choice, ring, tree, symmetric windows; torch symmetric memory; torch.distributed; 128 B to 64 MiB), float32-N,
# tune-N (the selection table), regret-N (auto with that table), model-N. A word selects all parts that begin with it.
# --loopback lets ranks share GPUs: this tries the command on a machine with one, its figures say nothing of NVLink.
# There NCCL must be 2.30 or newer: LLCOLL_BENCH_NCCL_LIBS=nccl=PATH.
#
# Every part has a limit of its own, and all of them BUDGET seconds (default 1700). OUT (default build/multi_gpu) gets logs,
# JSON, tuning.json, and of all that was run there so far multi_gpu.json and multi_gpu.md with the tables and, for
# csrc/default_tables.cpp, the tuned rows. Nothing is built but the litmus program, where nvcc is. PYTHON names the
# interpreter. NVLink multicast stays off: llcoll, torch symmetric memory and NCCL run without it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
python=${PYTHON:-python3}
loopback=0
while [ $# -gt 0 ]; do
  case $1 in
    --loopback) loopback=1 ;;
    --dry-run) export DRY_RUN=1 ;;
    -*) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 2 ;;
    *) break ;;
  esac
  shift
done
OUT=$(realpath -m "${OUT:-build/multi_gpu}")
export OUT
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NCCL_NVLS_ENABLE=0
mkdir -p "$OUT"
deadline=$((SECONDS + ${BUDGET:-1700}))
selected=("$@")
# shellcheck source=tests/parts.sh
. tests/parts.sh

num_gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())') || exit 2
ranks=()
for num_ranks in ${RANKS:-2 4 8}; do
  if [ "$num_ranks" -le "$num_gpus" ] || [ $loopback = 1 ]; then ranks+=("$num_ranks"); fi
done
if [ "$num_gpus" -eq 0 ] && [ -z "${DRY_RUN:-}" ]; then
  echo "multi_gpu.sh: torch sees no GPU" >&2
  exit 2
fi
if [ ${#ranks[@]} -eq 0 ]; then
  echo "multi_gpu.sh: $num_gpus GPU, for none of ${RANKS:-2 4 8} ranks; --loopback lets ranks share a GPU" >&2
  exit 2
fi
echo "$num_gpus GPUs, ranks ${ranks[*]}$([ $loopback = 1 ] && echo ', sharing GPUs where there are too few')"

# The launcher is torchrun where each rank has a GPU.
launch=("$python" -m llcoll.loopback -n)
bench=(-m llcoll.bench --algorithm "auto,torch" --compare "nccl,nccl-ring,nccl-tree,torch-symm" -b 128 -e 64M -f 2)

# suite NAME LIMIT WORD...: parts of tests/gpu.sh, which end by their own limits within what is left of the budget.
suite() {
  local name=$1 limit=$2 start=$SECONDS
  shift 2
  wanted "$name" || return 0
  if [ -n "${DRY_RUN:-}" ]; then
    echo "$name (limit $limit s): tests/gpu.sh $*"
    return 0
  fi
  room "$name" "$limit" 30 || return 0
  if BUDGET=$limit OUT=$OUT/$name tests/gpu.sh "$@"; then
    record "$name" ok $((SECONDS - start)) ''
  else
    record "$name" FAILED $((SECONDS - start)) "see $name/*.log"
    failed=1
  fi
}

for num_ranks in "${ranks[@]}"; do
  n=$num_ranks
  words=("correctness-$n" "collectives-$n" "ll128-$n" "fused-$n" "broke-$n" "faults-$n" "examples-$n")
  case $n in
    2) words+=(loopback stack-2) ;;
    4) words+=(nodes-4 correctness-3 collectives-3 ll128-3 nodes-3) ;;
    8) words+=(correctness-7) ;;
  esac
  suite "tests-$n" 420 "${words[@]}"
done

litmus=build/ll128_litmus
if wanted litmus && [ -z "${DRY_RUN:-}" ] && [ ! -x $litmus ] && command -v nvcc > /dev/null; then
  mkdir -p build
  nvcc -std=c++20 -O3 -arch=sm_90 -Icsrc/include tests/cpp/ll128_litmus.cu -o $litmus
fi
for num_ranks in "${ranks[@]}"; do
  if [ -x $litmus ] || [ -n "${DRY_RUN:-}" ]; then
    part "litmus-$num_ranks" 40 $litmus 5 "$num_ranks"
  else
    wanted "litmus-$num_ranks" && not_run "litmus-$num_ranks" "no $litmus and no nvcc"
  fi
done

for num_ranks in "${ranks[@]}"; do
  run=("${launch[@]}" "$num_ranks" --timeout)
  part "sol-$num_ranks" 45 "${run[@]}" 42 -m llcoll.sol --json "$OUT/sol_$num_ranks.json"
  part "graph-$num_ranks" 120 "${run[@]}" 117 "${bench[@]}" --mode graph -d bfloat16 --json "$OUT/graph_$num_ranks.json" \
    --plot "$OUT/graph_$num_ranks.png"
  part "eager-$num_ranks" 120 "${run[@]}" 117 "${bench[@]}" --mode eager -d bfloat16 --json "$OUT/eager_$num_ranks.json"
  part "float32-$num_ranks" 120 "${run[@]}" 117 "${bench[@]}" --mode graph -d float --json "$OUT/float32_$num_ranks.json"
done

table=$OUT/tuning.json
for num_ranks in "${ranks[@]}"; do
  run=("${launch[@]}" "$num_ranks" --timeout)
  part "tune-$num_ranks" 160 "${run[@]}" 157 -m llcoll.tune --no-regret --out "$table"
  if [ -e "$table" ] || [ -n "${DRY_RUN:-}" ]; then
    part "regret-$num_ranks" 90 env LLCOLL_TUNING_FILE="$table" "${run[@]}" 87 -m llcoll.bench --mode graph -d bfloat16 \
      -b 128 -e 64M -f 4 --regret --json "$OUT/regret_$num_ranks.json"
  fi
  part "model-$num_ranks" 60 "${run[@]}" 57 -m llcoll.model -d bfloat16 --verify --json "$OUT/model_$num_ranks.json"
done

[ -n "${DRY_RUN:-}" ] && exit 0
print_summary
"$python" benchmarks/multi_gpu_report.py "$OUT" || failed=1
exit $failed
