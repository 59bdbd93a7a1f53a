#!/usr/bin/env bash
# All CUDA tests and the speed table, on a machine with a GPU: tests/gpu.sh [part...]
#
# Parts: loopback, correctness-N, broke-N, faults-N, ll128-N, litmus, examples-N, collectives-N, nodes-N, fused-N,
# stack-2, tp-decode-2, memcheck, speed-N, speed-collectives-N, speed-ll128-N, host-N, capi-N, front-N, sol-N, bench-N,
# kernel-N, model-N, tune-N, nccl-tests-N, nccl-calls-2, cusolver-2
# (N ranks); a word selects all parts that begin with it.
# Without arguments: everything, within BUDGET seconds (default 350). Builds nothing: python/llcoll holds the built
# package. PYTHON names the interpreter. Results go to $OUT (default build/gpu). Every part has a limit of its own and
# a fresh MPS daemon (the launcher's); one that hangs is killed and the next goes on.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
python=${PYTHON:-python3}
export OUT=${OUT:-$PWD/build/gpu}
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1
mkdir -p "$OUT"
deadline=$((SECONDS + ${BUDGET:-350}))
selected=("$@")

"$python" - <<'PY' || exit 2
import sys
import torch
if not torch.cuda.is_available():
    sys.exit(f"gpu.sh: torch {torch.__version__} sees no GPU")
import llcoll
from llcoll import _ops
if _ops.CUDA_PROBLEM:
    sys.exit(f"gpu.sh: {_ops.CUDA_PROBLEM}")
print(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, torch {torch.__version__}, llcoll {llcoll.__version__}")
PY

# shellcheck source=tests/parts.sh
. tests/parts.sh

# timeout(1) runs programs, not functions.
launch=("$python" -m llcoll.loopback -n)

part loopback 60 "${launch[@]}" 2 tests/gpu/hello.py
for num_ranks in 2 4 8 3 7; do
  calls=10000
  [ $num_ranks -eq 3 ] || [ $num_ranks -eq 7 ] && calls=2000
  part "correctness-$num_ranks" 75 "${launch[@]}" $num_ranks --timeout 70 tests/gpu/correctness.py \
    --calls $calls --limit 65
done

for num_ranks in 2 4 8 3; do
  part "collectives-$num_ranks" 60 "${launch[@]}" $num_ranks --timeout 57 tests/gpu/collectives.py --limit 54
done

for num_ranks in 2 4 3; do
  part "broke-$num_ranks" 75 "${launch[@]}" $num_ranks --timeout 72 tests/gpu/broke.py --limit 68
done
for num_ranks in 2 4; do
  part "faults-$num_ranks" 60 "${launch[@]}" $num_ranks --timeout 57 tests/gpu/faults.py --limit 54
done

for num_ranks in 2 4 8 3; do
  part "fused-$num_ranks" 60 "${launch[@]}" $num_ranks --timeout 57 tests/gpu/fused.py --limit 54
done

part stack-2 90 "${launch[@]}" 2 --timeout 87 tests/gpu/stack.py --limit 84
if "$python" -c 'import transformers' 2>/dev/null; then
  part tp-decode-2 90 "${launch[@]}" 2 --timeout 87 examples/tp_decode.py --device cuda --dtype bfloat16 --hidden 1024 \
    --reduce llcoll symm_mem torch none
else
  wanted tp-decode-2 && not_run tp-decode-2 'no transformers'
fi

for num_ranks in 2 4 8 3; do
  part "ll128-$num_ranks" 60 "${launch[@]}" $num_ranks --timeout 57 tests/gpu/ll128.py --limit 54
done
# Built where nvcc is: nvcc -std=c++20 -O3 -arch=sm_90 -Icsrc/include tests/cpp/ll128_litmus.cu -o build/ll128_litmus,
# and python examples/run.py --device cuda --build-only build/examples
# nvcc -std=c++20 -O3 -arch=sm_90 -Icsrc/include tests/cpp/litmus.cu -o build/memory_litmus
if [ -x build/ll128_litmus ]; then part litmus 40 build/ll128_litmus 5; fi
if [ -x build/memory_litmus ]; then part litmus-memory 40 build/memory_litmus 100; fi
examples=build/examples/llcoll_examples_cuda.so
if [ -e $examples ]; then
  for num_ranks in 2 4; do
    part "examples-$num_ranks" 60 "${launch[@]}" $num_ranks --timeout 57 examples/run.py --device cuda \
      --library $examples
  done
fi

part nodes-4 60 "${launch[@]}" 4 --timeout 57 tests/gpu/nodes.py --nodes 2
part nodes-3 60 "${launch[@]}" 3 --timeout 57 tests/gpu/nodes.py --nodes 2+1

# Loading every kernel at start would have the checker patch all of torch. It may refuse MPS: then the ranks take turns.
lazy=(env CUDA_MODULE_LOADING=LAZY)
short=(tests/gpu/sanitized.py tests/gpu/correctness.py --short --wait 40 --limit 50 grid mixed chunks)
if wanted memcheck; then
  if command -v compute-sanitizer >/dev/null; then
    part memcheck 60 "${lazy[@]}" "${launch[@]}" 2 --timeout 55 "${short[@]}" ||
      part memcheck-no-mps 60 "${lazy[@]}" TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1 \
        TORCH_SYMM_MEM_DISABLE_MULTICAST=1 LLCOLL_LOOPBACK=1 \
        "$python" -m torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node 2 "${short[@]}"
  else
    not_run memcheck 'no compute-sanitizer'
  fi
fi

for num_ranks in 2 4 8; do
  part "speed-$num_ranks" 60 "${launch[@]}" $num_ranks --timeout 57 tests/gpu/speed.py --seconds 30 --limit 52
done
for num_ranks in 2 4; do
  part "speed-collectives-$num_ranks" 60 "${launch[@]}" $num_ranks --timeout 57 tests/gpu/speed_collectives.py \
    --seconds 35 --limit 54
done
for num_ranks in 2 4 8; do
  part "speed-ll128-$num_ranks" 60 "${launch[@]}" $num_ranks --timeout 57 tests/gpu/ll128_speed.py --seconds 40 \
    --limit 54
done
part host-2 40 "${launch[@]}" 2 --timeout 38 tests/gpu/host_cost.py

# The C interface (tests/gpu/capi.py --build, where gcc is), and torch's NCCL backend behind the front: NCCL_LIB names
# an NCCL of 2.30 or newer, which takes two ranks on one GPU (benchmarks/nccl_build.sh).
if [ -x build/capi_test_cuda ]; then part capi-2 90 "${launch[@]}" 2 --timeout 87 tests/gpu/capi.py; fi
if [ -n "${NCCL_LIB:-}" ]; then
  # More than two of NCCL's ranks on one GPU meet illegal addresses in its own kernels (2.30.7).
  for num_ranks in 2 4 8; do
    only=()
    [ $num_ranks -gt 2 ] && only=(--taken-only)
    part "front-$num_ranks" 120 "${launch[@]}" $num_ranks --timeout 117 tests/gpu/front.py --nccl "$NCCL_LIB" \
      --json "$OUT/front_$num_ranks.json" "${only[@]}"
  done
fi

# Unchanged NCCL programs: NCCL_PROGRAMS is the folder that benchmarks/nccl_programs.sh makes.
if [ -n "${NCCL_PROGRAMS:-}" ]; then
  part nccl-tests-2 400 "${launch[@]}" 2 --timeout 395 benchmarks/nccl_front.py "$NCCL_PROGRAMS" --part tests \
    --out "$OUT" --limit 370
  for num_ranks in 4 8; do
    part "nccl-tests-$num_ranks" 150 "${launch[@]}" $num_ranks --timeout 145 benchmarks/nccl_front.py \
      "$NCCL_PROGRAMS" --part taken --out "$OUT" --limit 130
  done
  part nccl-calls-2 90 "${launch[@]}" 2 --timeout 85 benchmarks/nccl_front.py "$NCCL_PROGRAMS" --part calls --out "$OUT"
  part cusolver-2 220 "${launch[@]}" 2 --timeout 215 benchmarks/nccl_front.py "$NCCL_PROGRAMS" --part cusolver \
    --out "$OUT" --limit 200
fi

# Measurements for docs/results.md: the bound, graphs with regret and peers, inside one launch, the model, the tables.
for num_ranks in 2 4 8; do
  part "sol-$num_ranks" 40 "${launch[@]}" $num_ranks --timeout 38 -m llcoll.sol --json "$OUT/sol_$num_ranks.json"
  largest=16M
  [ $num_ranks -eq 8 ] && largest=1M # torch's kernels hang from 4 MiB: more CTAs than are resident together
  part "bench-$num_ranks" 90 "${launch[@]}" $num_ranks --timeout 87 -m llcoll.bench --mode graph -d bfloat16 -b 128 \
    -e $largest -f 4 --regret --compare torch-symm,nccl --json "$OUT/bench_$num_ranks.json" --plot "$OUT/bench_$num_ranks.png"
  part "kernel-$num_ranks" 40 "${launch[@]}" $num_ranks --timeout 38 -m llcoll.bench --mode in-kernel -d bfloat16 \
    -b 128 -e 4K --algorithm one_shot_ll,one_shot_sentinel --json "$OUT/kernel_$num_ranks.json"
done
for num_ranks in 2 4 8; do
  part "model-$num_ranks" 60 "${launch[@]}" $num_ranks --timeout 57 -m llcoll.model -d bfloat16 --verify \
    --json "$OUT/model_$num_ranks.json"
  part "tune-$num_ranks" 150 "${launch[@]}" $num_ranks --timeout 145 -m llcoll.tune --out "$OUT/tuning.json"
done

print_summary
for file in "$OUT"/speed_*.md; do
  [ -e "$file" ] && grep -E '^(### .* ranks|geometric|least)' "$file"
done
exit $failed
