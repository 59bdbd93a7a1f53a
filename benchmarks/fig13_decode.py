"""Figures 1 and 13: a Llama-shaped tensor-parallel decode loop, two all-reduces a layer.

    python benchmarks/fig13_decode.py --out results --ranks 2 [--shape 8b] [--price 40]

Random weights in the shapes of a Llama model, real matrix products and attention over a full
key-value cache; each step makes one token per sequence of the batch. With the baseline, with
llcoll, and with llcoll's features off one by one. Inter-token latency, tokens a second, and the
cost of a million tokens, price 10^6 / (3600 rate), at --price an hour for all ranks together. On
CUDA a step is one graph. Every variant's hidden state is compared with the baseline's before it is
timed, and llcoll's variants with each other, bit for bit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reproduce
import torch
from reducers import Reducer, make_reducers
from torch.nn import functional

from llcoll.bench import plot, report
from llcoll.bench.session import Session

NAME = "fig13_decode"
TRIALS = 5
EPS = 1e-5


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int


SHAPES = {
    "small": Shape(512, 8, 8, 8, 1408),
    "1b": Shape(2048, 16, 32, 8, 8192),
    "8b": Shape(4096, 32, 32, 8, 14336),
    "70b": Shape(8192, 80, 64, 8, 28672),
}


class Decoder:
    """This rank's part of the model, and its caches. The attention's and the MLP's outputs are
    partial sums until they are reduced."""

    def __init__(self, shape: Shape, session: Session, batch: int, context: int) -> None:
        n = session.world_size
        if shape.heads % n or shape.kv_heads % n or shape.ffn % n:
            raise SystemExit(f"{shape} does not divide by {n} ranks")
        self.shape, self.batch = shape, batch
        self.dtype = torch.bfloat16 if session.is_cuda else torch.float32
        self.heads, self.kv_heads = shape.heads // n, shape.kv_heads // n
        self.head_dim = shape.hidden // shape.heads
        random = torch.Generator(device=session.device).manual_seed(1 + session.rank)

        def weight(rows: int, columns: int) -> torch.Tensor:
            w = torch.randn(rows, columns, device=session.device, generator=random)
            return (w * rows**-0.5).to(self.dtype)

        width = self.heads * self.head_dim
        qkv = width + 2 * self.kv_heads * self.head_dim
        ffn = shape.ffn // n
        self.layers = [
            (
                weight(shape.hidden, qkv),
                weight(width, shape.hidden),
                weight(shape.hidden, 2 * ffn),
                weight(ffn, shape.hidden),
            )
            for _ in range(shape.layers)
        ]
        cache = (shape.layers, 2, batch, self.kv_heads, context, self.head_dim)
        self.cache = torch.randn(cache, device=session.device, generator=random).to(self.dtype)
        self.norm = torch.ones(shape.hidden, device=session.device, dtype=self.dtype)
        start = torch.arange(batch * shape.hidden, device=session.device) % 17 - 8
        self.start = start.view(batch, shape.hidden).to(self.dtype)

    def step(self, x: torch.Tensor, buffers: list[torch.Tensor], calls: list[Any]) -> torch.Tensor:
        """One token a sequence. buffers[0] takes the attention's output, buffers[1] the MLP's."""
        rms_norm, width = functional.rms_norm, [self.shape.hidden]
        sizes = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        for idx, (w_qkv, w_out, w_up, w_down) in enumerate(self.layers):
            q, k, v = (rms_norm(x, width, self.norm, EPS) @ w_qkv).split(sizes, dim=1)
            keys, values = self.cache[idx]
            # The newest token takes the last place, step after step.
            keys[:, :, -1] = k.view(self.batch, self.kv_heads, self.head_dim)
            values[:, :, -1] = v.view(self.batch, self.kv_heads, self.head_dim)
            attended = functional.scaled_dot_product_attention(
                q.view(self.batch, self.heads, 1, self.head_dim), keys, values, enable_gqa=True
            )
            torch.mm(attended.reshape(self.batch, -1), w_out, out=buffers[0])
            calls[0]()
            x = x + buffers[0]
            gate, up = (rms_norm(x, width, self.norm, EPS) @ w_up).chunk(2, dim=1)
            torch.mm(functional.silu(gate) * up, w_down, out=buffers[1])
            calls[1]()
            x = x + buffers[1]
        return x


class Variant:
    def __init__(self, reducer: Reducer, decoder: Decoder, session: Session) -> None:
        self.reducer, self.session = reducer, session
        size = (decoder.batch, decoder.shape.hidden)
        buffers = [
            reducer.empty(*size, dtype=decoder.dtype, device=session.device) for _ in range(2)
        ]
        calls = [reducer.bind(buffer) for buffer in buffers]
        self.run: Callable[[], Any] = lambda: decoder.step(decoder.start, buffers, calls)
        self.result = self.run().clone()
        session.synchronize()
        if session.is_cuda:
            self._capture()

    def _capture(self) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.run()
        self.run = graph.replay

    def time_ms(self, steps: int) -> float:
        """Inter-token latency, the slowest rank's."""
        self.session.barrier()
        for _ in range(2):
            self.run()
        self.session.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.run()
        self.session.synchronize()
        return self.session.slowest([(time.perf_counter() - start) * 1e3 / steps])[0]


def check(variants: list[Variant], session: Session) -> dict[str, float]:
    """How far each variant's hidden state is from the baseline's, relative to its largest value."""
    base = variants[0].result.float()
    scale = base.abs().max().item()
    far = {}
    exact = next(v for v in variants if v.reducer.name == "llcoll")
    for variant in variants:
        name = variant.reducer.name
        worst = (variant.result.float() - base).abs().max().item() / scale
        far[name] = session.slowest([worst])[0]
        if not far[name] < 0.05:
            raise RuntimeError(f"{name} is {far[name]:.3g} from the baseline's result")
        is_ours = name in ("no symmetric memory", "llcoll plan", "LL only")
        if is_ours and not torch.equal(variant.result, exact.result):
            raise RuntimeError(f"{name}: other bits than llcoll's auto")
    return far


def worker(session: Session, args: argparse.Namespace) -> dict[str, Any]:
    shape = SHAPES[args.shape or ("8b" if session.is_cuda else "small")]
    torch.set_grad_enabled(False)
    decoder = Decoder(shape, session, args.batch, args.context)
    variants = [
        Variant(reducer, decoder, session) for reducer in make_reducers(session, decoder.dtype)
    ]
    far = check(variants, session)
    itl: dict[str, list[float]] = {variant.reducer.name: [] for variant in variants}
    for trial in range(TRIALS):
        turn = trial % len(variants)
        for variant in variants[turn:] + variants[:turn]:
            itl[variant.reducer.name].append(variant.time_ms(args.steps))
        session.say(f"  trial {trial + 1} of {TRIALS} done")
    return {
        "itl_ms": itl,
        "from_baseline": far,
        "variants": {variant.reducer.name: variant.reducer.about for variant in variants},
        "message_bytes": decoder.start.numel() * decoder.start.element_size(),
        "reductions_per_step": 2 * shape.layers,
        "shape": vars(shape),
    }


def make_report(args: argparse.Namespace, results: reproduce.Results, out: Path) -> None:
    plt = plot.pyplot()
    figure, every = plt.subplots(3, len(results), figsize=(5 * len(results), 8), squeeze=False)
    body = ""
    for column, (num_ranks, data) in enumerate(results.items()):
        base = reproduce.mean_deviation(data["itl_ms"]["baseline"])[0]
        rows, bars = [], []
        for name, itl in data["itl_ms"].items():
            mean, deviation = reproduce.mean_deviation(itl)
            rate = args.batch / mean * 1e3
            cost = args.price * 1e6 / (3600 * rate)
            bars.append((name, mean, rate, cost))
            gain = "" if name == "baseline" else f"{1 - mean / base:+.1%}"
            rows.append(
                [
                    *[name, data["variants"][name], f"{mean:.3f} ± {deviation:.3f}"],
                    *[f"{rate:.1f}", f"{cost:.3f}", gain],
                ]
            )
        title = (
            f"{num_ranks} ranks, batch {args.batch}, context {args.context}, "
            f"{data['reductions_per_step']} reductions of "
            f"{report.short_size(data['message_bytes'])} a step"
        )
        head = ["variant", "what reduces", "ITL ms", "tokens/s", "$/1M tokens", "less ITL"]
        body += f"### {title}\n\n{report.markdown_table(head, rows)}\n"
        names = [bar[0] for bar in bars]
        labels = ("inter-token latency (ms)", "tokens/s", f"$ per 1M tokens at {args.price:g}/h")
        for row, label in enumerate(labels):
            axes = every[row][column]
            axes.bar(names, [bar[row + 1] for bar in bars], color="#9ccf9f")
            axes.set_ylabel(label, fontsize=7)
            axes.tick_params(axis="x", labelsize=6, rotation=20)
        every[0][column].set_title(title, fontsize=7)
    body += (
        f"Mean and deviation of {TRIALS} trials of {args.steps} steps. Shape: {data['shape']}.\n"
    )
    body += f"Cost at {args.price:g} an hour for all ranks together.\n"
    reproduce.write_markdown(out, "Tensor-parallel decode (figures 1, 13)", results, body)
    figure.tight_layout()
    plot.save(figure, out.with_suffix(".png"))


if __name__ == "__main__":
    parser = reproduce.make_parser(NAME, __doc__, "2")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="8b on CUDA, small on the CPU")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=256, help="tokens in the key-value cache")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--price", type=float, default=1.0, help="an hour, for all ranks together")
    sys.exit(reproduce.main(NAME, parser, worker, make_report, __file__))
