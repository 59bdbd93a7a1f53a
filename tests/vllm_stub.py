"""A vLLM plugin for tests on machines without a GPU: LLCOLL_TEST_CUDA_CLASS=1 points the CPU
platform at vLLM's real CudaCommunicator and stubs PyNcclCommunicator, the one part that needs NCCL.
"""

from __future__ import annotations

import os
from typing import Any


class NoNccl:
    """Disabled, so CudaCommunicator goes on to torch.distributed, which is Gloo here."""

    disabled = True

    def __init__(self, group: Any, device: Any, **kwargs: Any) -> None:
        self.world_size = group.size()

    def destroy(self) -> None:
        pass


def register() -> None:
    if os.environ.get("LLCOLL_TEST_CUDA_CLASS") != "1":
        return
    import vllm.distributed.device_communicators.pynccl as pynccl
    import vllm.distributed.parallel_state as parallel_state
    from vllm.platforms.cpu import CpuPlatform

    pynccl.PyNcclCommunicator = NoNccl

    def communicator_class(cls: type) -> str:
        # Asked for right before it is made. The CPU worker has turned custom all-reduces off.
        parallel_state._ENABLE_CUSTOM_ALL_REDUCE = True
        return "vllm.distributed.device_communicators.cuda_communicator.CudaCommunicator"

    CpuPlatform.get_device_communicator_cls = classmethod(communicator_class)
