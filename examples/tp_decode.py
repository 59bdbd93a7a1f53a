"""Greedy decoding of a Llama, tensor-parallel over llcoll, with transformers; random weights.

    torchrun --nproc-per-node 2 examples/tp_decode.py                       on the CPU
    python -m llcoll.loopback -n 2 examples/tp_decode.py --device cuda      ranks that share a GPU

The model is cut as Megatron does it; each attention and MLP ends in an all-reduce, by `--reduce`:
llcoll, torch (the group's own: Gloo; NCCL refuses two ranks on a GPU), symm_mem (torch's symmetric
memory, CUDA), or none, the negative control.
Prints the tokens of rank 0, whether they are those of one process, and ms per token.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from transformers import LlamaConfig, LlamaForCausalLM

import llcoll


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--reduce", nargs="+", default=["llcoll", "torch"])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_model(args: argparse.Namespace) -> LlamaForCausalLM:
    """The same weights on every rank."""
    torch.manual_seed(args.seed)
    config = LlamaConfig(
        hidden_size=args.hidden,
        intermediate_size=4 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=512,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).to(getattr(torch, args.dtype)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)  # spreads the logits: greedy tokens then depend on every layer
    return model.to(args.device)


def split(model: LlamaForCausalLM, reduce: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Megatron's way: q, k, v, gate and up by columns, o and down by rows, each ending in a sum."""
    rank, world = dist.get_rank(), dist.get_world_size()

    def cut(layer: torch.nn.Linear, dim: int) -> None:
        layer.weight = torch.nn.Parameter(
            layer.weight.chunk(world, dim)[rank].contiguous(), requires_grad=False
        )

    for block in model.model.layers:
        attention, mlp = block.self_attn, block.mlp
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
            cut(layer, 0)
        for layer in (mlp.gate_proj, mlp.up_proj):
            cut(layer, 0)
        for layer in (attention.o_proj, mlp.down_proj):
            cut(layer, 1)
            layer.register_forward_hook(lambda _module, _inputs, output: reduce(output))


def reductions(args: argparse.Namespace) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    group = dist.group.WORLD
    found: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "llcoll": llcoll.all_reduce_,
        "torch": lambda x: functional.all_reduce(x, "sum", group) + 0,
        "none": lambda x: x,  # the negative control: what a broken all-reduce would give
    }
    if args.device == "cuda":
        from torch.distributed import _symmetric_memory as symmetric_memory

        buffer = symmetric_memory.empty(1 << 20, dtype=torch.uint8, device="cuda")
        symmetric_memory.rendezvous(buffer, group.group_name)

        def through_symmetric_memory(x: torch.Tensor) -> torch.Tensor:
            view = buffer[: x.numel() * x.element_size()].view(x.dtype).view(x.shape)
            op = torch.ops.symm_mem.one_shot_all_reduce_copy
            return op(view, x.contiguous(), "sum", group.group_name)

        found["symm_mem"] = through_symmetric_memory
    return {name: found[name] for name in args.reduce}


def decode(model: LlamaForCausalLM, args: argparse.Namespace) -> tuple[list[int], float]:
    """Tokens, and the median of ms per token behind the prompt.

    Decodes twice and times the second: each length of the sequence has shapes whose kernels the
    first has to find and load (60 ms a token on an H200 whatever reduces).
    """
    decode_once(model, args)
    return decode_once(model, args)


@torch.inference_mode()
def decode_once(model: LlamaForCausalLM, args: argparse.Namespace) -> tuple[list[int], float]:
    ids = torch.tensor([[1, 17, 42, 99]], device=args.device)
    tokens: list[int] = []
    times: list[float] = []
    cache = None
    for _ in range(args.tokens):
        begin = time.perf_counter()
        output = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        ids = output.logits[:, -1:].argmax(-1)
        tokens.append(int(ids))  # waits for the device
        times.append((time.perf_counter() - begin) * 1e3)
    return tokens, statistics.median(times[1:])


@contextmanager
def process_group(args: argparse.Namespace) -> Iterator[None]:
    torch.set_num_threads(1)
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("gloo")  # NCCL refuses two ranks on one GPU
    with llcoll.init(device=args.device):
        yield
        dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    args = parse()
    with process_group(args):
        alone, alone_ms = decode(make_model(args), args)
        result: dict[str, object] = {"ranks": dist.get_world_size(), "one process": alone_ms}
        result["tokens"] = alone
        for name, reduce in reductions(args).items():
            model = make_model(args)
            split(model, reduce)
            dist.barrier()
            tokens, ms = decode(model, args)
            result[name] = {"same tokens": tokens == alone, "ms per token": ms}
        if dist.get_rank() == 0:
            print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
