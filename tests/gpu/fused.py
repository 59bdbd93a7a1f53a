"""all_reduce_rms_norm on the GPU: bits against numpy and the separate ops, graphs, fp8; then speed.

python -m llcoll.loopback -n 2 tests/gpu/fused.py [--device cpu] [part...]
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from common import World, WrongBits, parser, run_parts, start

import llcoll

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import norm_reference
from jobs_fused import EPS, data, equal, total

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PUSH = ("one_shot_ll", "one_shot_sentinel", "two_shot_sentinel")
ALGORITHMS = (*PUSH, "two_shot_ll", "one_shot_flag", "two_shot_flag", "auto")
OPS_PER_GRAPH = 40


def check(ok: bool, what: object) -> None:
    if not ok:
        raise WrongBits(str(what))


def compare(world: World, rows: int, columns: int, dtype: torch.dtype, algorithm: str) -> None:
    x, residual, weight = (t.to(world.device) for t in data(world.rank, rows, columns, dtype))
    sum_ = total(world.rank, world.size, rows, columns, dtype)
    label = (rows, columns, dtype, algorithm)
    y, want_out = norm_reference.exact_norm(sum_, weight.cpu(), EPS, 1.0, residual.cpu())
    options = {"weight_bias": 1.0, "algorithm": algorithm}
    norm, out = llcoll.all_reduce_rms_norm(x, residual, weight, EPS, **options)
    check(equal(out.cpu(), want_out), ("residual", *label))
    check(equal(norm.cpu(), y.to(dtype)), ("norm", *label))
    reduced = llcoll.all_reduce(x, algorithm=algorithm)
    apart, apart_out = llcoll.add_rms_norm(reduced, residual, weight, EPS, weight_bias=1.0)
    check(equal(apart, norm) and equal(apart_out, out), ("apart", *label))
    scale = torch.tensor([0.037], device=world.device)
    quantised, out = llcoll.all_reduce_rms_norm_fp8(x, residual, weight, scale, EPS, **options)
    check(equal(out.cpu(), want_out), ("fp8 residual", *label))
    want = norm_reference.fp8(y, scale.cpu().numpy())
    check(equal(quantised.cpu(), want), ("fp8", *label))
    quantised, out, scales = llcoll.all_reduce_rms_norm_dynamic_fp8(
        x, residual, weight, EPS, **options
    )
    want_scales = norm_reference.row_scales(y)
    check(equal(scales.cpu(), torch.from_numpy(want_scales)), ("scales", *label))
    check(equal(quantised.cpu(), norm_reference.fp8(y, want_scales)), ("dynamic fp8", *label))
    check(equal(out.cpu(), want_out), ("dynamic fp8 residual", *label))


def bits(world: World) -> str:
    """Rows below a warp, of several units a thread or epochs; no fused kernel for some lengths;
    more rows than CTAs."""
    count = 0
    shapes = ((1, 8), (3, 64), (1, 4096), (5, 5120), (2, 8192), (7, 1031), (300, 256), (131, 2048))
    for dtype in DTYPES:
        for algorithm in ALGORITHMS:
            for rows, columns in shapes:
                compare(world, rows, columns, dtype, algorithm)
                count += 1
    for dtype in DTYPES[1:]:
        compare(world, 1, 16384, dtype, "auto")
    return f"{count} shapes"


def invariant(world: World) -> str:
    for columns in (64, 4096):
        x, residual, weight = (
            t.to(world.device) for t in data(world.rank, 200, columns, torch.bfloat16)
        )
        whole = llcoll.all_reduce_rms_norm(x, residual, weight, EPS)
        for first, last in ((0, 1), (4, 9), (0, 128), (199, 200)):
            part = llcoll.all_reduce_rms_norm(x[first:last], residual[first:last], weight, EPS)
            for got, want in zip(part, whole, strict=True):
                check(equal(got, want[first:last].contiguous()), (columns, first, last))
    return ""


def unaligned(world: World) -> str:
    """Each rank's pointers are its own business."""
    x, residual, weight = data(world.rank, 6, 512, torch.bfloat16)

    def shifted(t: torch.Tensor, by: int) -> torch.Tensor:
        base = torch.empty(t.numel() + 8, dtype=t.dtype, device=world.device)
        view = base[by : by + t.numel()].view(t.shape)
        return view.copy_(t)

    plain = [t.to(world.device) for t in (x, residual, weight)]
    for algorithm in PUSH:
        want = llcoll.all_reduce_rms_norm(*plain, EPS, algorithm=algorithm)
        own = [shifted(t, (world.rank + k) % 3) for k, t in enumerate((x, residual, weight))]
        got = llcoll.all_reduce_rms_norm(*own, EPS, algorithm=algorithm)
        check(all(equal(a, b) for a, b in zip(got, want, strict=True)), algorithm)
    return ""


def graphs(world: World) -> str:
    """Capture, then replays with new inputs; several in a row, with other collectives between."""
    if not world.on_gpu:
        return "no GPU"
    x, residual, weight = (t.to(world.device) for t in data(world.rank, 4, 4096, torch.bfloat16))
    for algorithm in PUSH:
        held, hidden = x.clone(), residual.clone()
        stream = torch.cuda.Stream()

        def step(held=held, hidden=hidden, algorithm=algorithm):  # type: ignore[no-untyped-def]
            norm, out = llcoll.all_reduce_rms_norm(held, hidden, weight, EPS, algorithm=algorithm)
            reduced = llcoll.all_reduce(norm)
            return llcoll.all_reduce_rms_norm(reduced, out, weight, EPS, algorithm=algorithm)

        world.sync()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = step()
        for turn in range(20):
            held.copy_(x * (turn + 1))
            hidden.copy_(residual * (turn % 3))
            world.sync()
            graph.replay()
            world.sync()
            want = step()
            check(all(equal(a, b) for a, b in zip(captured, want, strict=True)), (algorithm, turn))
    return ""


def speed(world: World) -> str:
    """us per op in CUDA graphs: fused, all_reduce + add_rms_norm, all_reduce + torch's."""
    if not world.on_gpu:
        return "no GPU"
    stream = torch.cuda.Stream()
    gate = torch.ones(16, device=world.device)
    table = []

    def capture(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
        call()
        world.sync()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(OPS_PER_GRAPH):
                call()
        return graph

    def time_once(graph: torch.cuda.CUDAGraph) -> float:
        begin, finish = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            llcoll.all_reduce_(gate)
            torch.cuda._sleep(120_000)
            begin.record()
            graph.replay()
            finish.record()
        finish.synchronize()
        return begin.elapsed_time(finish) * 1e3 / OPS_PER_GRAPH

    for rows, columns in ((1, 2048), (1, 4096), (1, 8192), (8, 4096), (32, 4096), (128, 4096)):
        x, residual, weight = (
            t.to(world.device) for t in data(world.rank, rows, columns, torch.bfloat16)
        )

        def fused(algorithm: str, args=(x, residual, weight)) -> Callable[[], object]:  # type: ignore[no-untyped-def]
            return lambda: llcoll.all_reduce_rms_norm(*args, EPS, algorithm=algorithm)

        def apart(args=(x, residual, weight)) -> object:  # type: ignore[no-untyped-def]
            return llcoll.add_rms_norm(llcoll.all_reduce(args[0]), args[1], args[2], EPS)

        def torchs(args=(x, residual, weight)) -> object:  # type: ignore[no-untyped-def]
            out = llcoll.all_reduce(args[0]) + args[1]
            return torch.nn.functional.rms_norm(out, (out.shape[-1],), args[2], EPS), out

        calls: dict[str, Callable[[], object]] = {a: fused(a) for a in PUSH}
        calls |= {"fused auto": fused("auto"), "apart": apart, "torch's norm": torchs}
        calls["all_reduce alone"] = lambda x=x: llcoll.all_reduce(x)
        captured = {name: capture(call) for name, call in calls.items()}
        figures: dict[str, list[float]] = {name: [] for name in captured}
        for _ in range(15):
            for name, graph in captured.items():
                figures[name].append(time_once(graph))
        row: dict[str, object] = {"rows": rows, "columns": columns}
        for name, values in figures.items():
            worst = torch.tensor([statistics.median(values)], dtype=torch.float64)
            dist.all_reduce(worst, op=dist.ReduceOp.MAX)
            row[name] = round(worst.item(), 2)
        table.append(row)
        world.say(f"    {row}")
    if world.rank == 0 and os.environ.get("OUT"):
        path = Path(os.environ["OUT"]) / f"fused-{world.size}.json"
        path.write_text(json.dumps({"version": 1, "us": table}, indent=1))
    return ""


def main() -> int:
    return run_parts(
        start(parser(__doc__).parse_args()), "fused", (bits, invariant, unaligned, graphs, speed)
    )


if __name__ == "__main__":
    sys.exit(main())
