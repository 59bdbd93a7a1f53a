"""vLLM's real CudaCommunicator over Gloo with llcoll's class in it; one of two ranks.

vllm_classes.py RANK STORE_FILE, in the environment of .ci/make-vllm-env. Every check raises.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import torch

LIMIT = 4096  # bytes; LLCOLL_VLLM_MAX_BYTES of this run
calls: list[int] = []


def count_custom_calls(custom: Any) -> None:
    inner = custom.custom_all_reduce

    def counted(x: torch.Tensor) -> Any:
        calls.append(x.numel() * x.element_size())
        result = inner(x)
        assert result is not None, "CudaCommunicator asserts this"
        return result

    custom.custom_all_reduce = counted


def check_tp(state: Any, rank: int) -> None:
    group = state.get_tp_group()
    communicator = group.device_communicator
    custom = communicator.ca_comm
    assert type(communicator).__name__ == "CudaCommunicator"
    assert custom.is_llcoll and not custom.disabled and custom._llcoll is not None
    count_custom_calls(custom)
    cases: list[tuple[int, torch.dtype, bool]] = [
        (1, torch.float32, True),
        (3, torch.bfloat16, True),  # vLLM's own class wants multiples of 16 bytes
        (LIMIT // 4, torch.float32, True),
        (LIMIT // 2, torch.float16, True),
        (LIMIT // 4 + 1, torch.float32, False),
        (LIMIT // 2 + 1, torch.bfloat16, False),
        (16, torch.int32, False),
    ]
    for numel, dtype, ours in cases:
        calls.clear()
        x = (torch.arange(numel) % 8 + rank).to(dtype)
        before = x.clone()
        result = communicator.all_reduce(x)
        assert torch.equal(result, (2 * (torch.arange(numel) % 8) + 1).to(dtype)), (numel, dtype)
        assert torch.equal(x, before) and result.data_ptr() != x.data_ptr()
        assert bool(calls) == ours, (numel, dtype, calls)
        assert custom.should_custom_ar(x) == ours
    # vLLM's class only mimics the allocation in a warm-up; here every call communicates.
    with custom.capture():
        warm = custom.custom_all_reduce(torch.full((8,), 1.0 + rank))
        assert torch.equal(warm, torch.full((8,), 3.0))
    # What newer releases call.
    gathered = custom.custom_all_gather(torch.full((2, 4), float(rank)))
    assert torch.equal(gathered, torch.tensor([[0.0] * 4] * 2 + [[1.0] * 4] * 2))
    scattered = custom.custom_reduce_scatter(torch.arange(8.0).view(4, 2) + rank)
    assert torch.equal(scattered, (2 * torch.arange(8.0).view(4, 2) + 1)[2 * rank : 2 * rank + 2])
    assert custom.custom_all_gather(torch.zeros(LIMIT, 2)) is None
    assert custom.custom_reduce_scatter(torch.zeros(3, 2)) is None


def check_others(state: Any, rank: int) -> None:
    """Groups that are not TP are left alone, those too whose name only contains "tp"."""
    for name in ("dp", "notp"):
        group = state.init_model_parallel_group([[0, 1]], rank, "gloo", group_name=name)
        custom = group.device_communicator.ca_comm
        assert custom is None or custom._llcoll is None, name
        result = group.device_communicator.all_reduce(torch.ones(4))
        assert torch.equal(result, torch.full((4,), 2.0)), name
        group.destroy()


def main() -> None:
    rank, store = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    import vllm.distributed.device_communicators.custom_all_reduce as module
    import vllm.distributed.parallel_state as state
    from vllm.config import VllmConfig, set_current_vllm_config

    import llcoll
    import llcoll.vllm

    ours = module.CustomAllreduce
    assert ours.is_llcoll
    llcoll.vllm.register()  # vLLM may call it again in the same process
    assert module.CustomAllreduce is ours
    with set_current_vllm_config(VllmConfig()):
        state.init_distributed_environment(
            world_size=2,
            rank=rank,
            local_rank=rank,
            distributed_init_method=f"file://{store}",
            backend="gloo",
        )
        state.initialize_model_parallel(tensor_model_parallel_size=2)
        check_tp(state, rank)
        check_others(state, rank)
        name = state.get_tp_group().device_communicator.ca_comm._llcoll.group_name
        llcoll.communicator.find(name)
        state.destroy_model_parallel()  # drops the object; close() is never called
        gc.collect()
        assert llcoll.communicator.find_or_none(name) is None
        state.destroy_distributed_environment()
    print("all checks passed", flush=True)


if __name__ == "__main__":
    main()
