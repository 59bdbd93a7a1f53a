"""One vLLM engine on the CPU over a tiny random Llama; prints what it generated as a line of JSON.

Runs in the environment that .ci/make-vllm-env makes, so it imports nothing of the test suite. With
several ranks the same prompts go through three reductions: the one that vLLM chose, vLLM's own, and
none at all. LLCOLL_TEST_CUDA_CLASS=1 (vllm_stub.py) gives the TP group vLLM's CudaCommunicator.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

HIDDEN = 64
LAYERS = 2
MAX_TOKENS = 12
PROMPTS = [[1, 5, 9, 12], [7] * 9, [33, 2, 90, 14, 61, 17]]
# Llama reduces after the embedding, each attention and each MLP.
REDUCTIONS_PER_STEP = 1 + 2 * LAYERS
MODEL_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 4 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 128,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def write_model(folder: Path) -> None:
    """A checkpoint whose greedy tokens depend on every weight: no two logits are near."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(20)
    config = MODEL_CONFIG
    head = config["head_dim"]
    wide, narrow = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (config["vocab_size"], HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "self_attn.q_proj.weight": (wide, HIDDEN),
            prefix + "self_attn.k_proj.weight": (narrow, HIDDEN),
            prefix + "self_attn.v_proj.weight": (narrow, HIDDEN),
            prefix + "self_attn.o_proj.weight": (HIDDEN, wide),
            prefix + "mlp.gate_proj.weight": (config["intermediate_size"], HIDDEN),
            prefix + "mlp.up_proj.weight": (config["intermediate_size"], HIDDEN),
            prefix + "mlp.down_proj.weight": (HIDDEN, config["intermediate_size"]),
            prefix + "input_layernorm.weight": (HIDDEN,),
            prefix + "post_attention_layernorm.weight": (HIDDEN,),
        }
    tensors = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.1 * values if len(shape) == 1 else values * 2 / shape[1] ** 0.5
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


class Extension:
    """Methods that the engine can call on every worker, by name."""

    def _tp(self) -> Any:
        from vllm.distributed.parallel_state import get_tp_group

        return get_tp_group()

    def describe(self) -> dict[str, Any]:
        communicator = self._tp().device_communicator
        custom = getattr(communicator, "ca_comm", None)
        served = getattr(communicator, "_llcoll_name", None) or getattr(custom, "_llcoll", None)
        return {
            "communicator": type(communicator).__name__,
            "custom": type(custom).__name__,
            "llcoll": served is not None,
        }

    def start_counting(self) -> None:
        """From here on counts what reaches llcoll's ops, and the model's steps."""
        import llcoll  # noqa: F401 - loads the ops

        counts = self.llcoll_counts = {"all_reduce": 0, "all_reduce_": 0, "steps": 0}

        def counted(name: str) -> Any:
            op = getattr(torch.ops.llcoll, name).default

            def call(*args: Any, **kwargs: Any) -> Any:
                counts[name] += 1
                return op(*args, **kwargs)

            return SimpleNamespace(default=call)

        def count_step(*_: Any) -> None:
            counts["steps"] += 1

        for name in ("all_reduce", "all_reduce_"):
            setattr(torch.ops.llcoll, name, counted(name))
        self.model_runner.model.register_forward_pre_hook(count_step)  # type: ignore[attr-defined]

    def take_counts(self) -> dict[str, int]:
        taken = dict(self.llcoll_counts)
        self.llcoll_counts.update(dict.fromkeys(taken, 0))
        return taken

    def use_reduction(self, which: str) -> None:
        communicator = self._tp().device_communicator
        if which == "chosen":
            vars(communicator).pop("all_reduce", None)
        elif which == "none":
            communicator.all_reduce = lambda x: x
        elif hasattr(communicator, "ca_comm"):
            communicator.ca_comm.disabled = True
        else:
            stock = type(communicator).__mro__[1]
            communicator.all_reduce = partial(stock.all_reduce, communicator)

    def time_all_reduce(self, rows: int, calls: int) -> list[float]:
        """Microseconds a call of the TP group's all_reduce of [rows, hidden], for each batch."""
        tp = self._tp()
        x = torch.zeros(rows, HIDDEN)
        figures = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(calls):
                x = tp.all_reduce(x)
            figures.append((time.perf_counter() - start) / calls * 1e6)
        return figures


def measure(engine: Any, generate: Any, tp: int) -> dict[str, Any]:
    """Medians of alternating rounds; a call lasts until the slower rank has it."""
    ways = ("chosen", "stock") if tp > 1 else ("chosen",)
    rates: dict[str, list[float]] = {which: [] for which in ways}
    calls: dict[str, dict[int, list[float]]] = {which: {} for which in ways}
    generate()
    for _ in range(5):
        for which in ways:
            engine.collective_rpc("use_reduction", args=(which,))
            for _ in range(3):
                start = time.perf_counter()
                generate()
                rates[which].append(len(PROMPTS) * MAX_TOKENS / (time.perf_counter() - start))
            for rows in (1, 16, 256) if tp > 1 else ():
                figures = engine.collective_rpc("time_all_reduce", args=(rows, 200))
                slower = [max(both) for both in zip(*figures, strict=True)]
                calls[which].setdefault(rows * HIDDEN * 4, []).extend(slower)
    return {
        which: {
            "tokens_per_s": statistics.median(rates[which]),
            "us": {size: statistics.median(values) for size, values in calls[which].items()},
        }
        for which in ways
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--time", action="store_true", help="also print tokens/s and us per call")
    args = parser.parse_args()
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(args.model),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        tensor_parallel_size=args.tp,
        max_model_len=64,
        max_num_seqs=8,
        enable_prefix_caching=False,
        seed=0,
        worker_extension_cls="vllm_run.Extension",
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]

    def generate() -> list[list[int]]:
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    result: dict[str, Any] = {"workers": engine.collective_rpc("describe"), "runs": {}}
    if args.time:
        result["runs"] = measure(engine, generate, args.tp)
    else:
        engine.collective_rpc("start_counting")
        for which in ("chosen", "stock", "none") if args.tp > 1 else ("chosen",):
            if which != "chosen":
                engine.collective_rpc("use_reduction", args=(which,))
            result["runs"][which] = {
                "tokens": generate(),
                "counts": engine.collective_rpc("take_counts"),
            }
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
