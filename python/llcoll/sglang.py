"""The SGLang plugin (entry point group sglang.srt.plugins), on by LLCOLL_SGLANG=1: docs/stack.md.

SGLang asks dispatch_custom_allreduce for a class when it makes a group that may use one. Behind the
plugin the group named "tp" gets llcoll's subclass of the legacy CustomAllreduce; where llcoll
cannot serve, and for every other group, it gets what SGLang would have chosen.
"""

import logging
import os
from importlib import import_module
from typing import Any

from .vllm import Host, make_custom_all_reduce

_MODULE = "sglang.srt.distributed.device_communicators.custom_all_reduce"
_NEEDS = ("should_custom_ar", "custom_all_reduce", "capture", "close")


def _logger() -> logging.Logger:
    return logging.getLogger("sglang.llcoll")


def _policy() -> str:
    wanted = os.environ.get("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", "").lower()
    return "invariant" if wanted in ("1", "true") else "fast"


HOST = Host(
    "sglang.srt.distributed.parallel_state",
    "LLCOLL_SGLANG_MAX_BYTES",
    _logger,
    _policy,
    becomes_stock=False,
)


def register() -> None:
    """The entry point. Never raises: what is wrong is one line of the log."""
    if os.environ.get("LLCOLL_SGLANG") != "1":
        return
    try:
        module = import_module(_MODULE)
        chosen, legacy = module.dispatch_custom_allreduce, module.CustomAllreduce
    except (ImportError, AttributeError) as error:
        _logger().warning("llcoll is not used: %s", error)
        return
    if getattr(chosen, "is_llcoll", False):
        return  # called before in this process
    missing = [name for name in _NEEDS if not hasattr(legacy, name)]
    if missing:
        _logger().warning("llcoll is not used: %s.CustomAllreduce has no %s", _MODULE, missing)
        return
    ours = make_custom_all_reduce(legacy, HOST)

    def dispatch(group: Any, device: Any) -> Any:
        stock = chosen(group=group, device=device)

        def make(group: Any, device: Any, **kwargs: Any) -> Any:
            made = ours(group, device)
            return made if made._llcoll is not None else stock(group=group, device=device, **kwargs)

        return make

    dispatch.is_llcoll = True  # type: ignore[attr-defined]
    module.dispatch_custom_allreduce = dispatch  # type: ignore[attr-defined]
    _logger().info("llcoll replaces the custom all-reduce of SGLang's TP group")
