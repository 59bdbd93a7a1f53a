"""What llcoll.init was asked for: its arguments, then the environment, all checked."""

import logging
import math
import os
from dataclasses import asdict, dataclass
from typing import Any

import torch

from . import _C
from ._errors import LlcollError
from .pool import round_up

POLICIES = ("fast", "invariant")


@dataclass(frozen=True)
class Settings:
    """All of it must be the same on every rank of a group."""

    device: str
    timeout: float  # seconds; 0: wait forever
    policy: str
    allow_low_precision: bool
    scratch_bytes: int  # 0: the backend's default
    pool_bytes: int  # 0: no pool
    algorithm: str  # LLCOLL_ALGORITHM, or "auto"
    debug: bool
    first_epoch: int  # for tests: just below a counter's wrap
    nodes: str = ""  # topology.parse; "": found
    node_chunk_bytes: int = 0  # 0: the default

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _environment(name: str) -> str | None:
    value = os.environ.get(f"LLCOLL_{name}")
    return value if value else None


def _choice(what: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise LlcollError(f"{what} is {value!r}; choose from {', '.join(choices)}")
    return value


def _seconds(what: str, value: Any) -> float:
    try:
        seconds = value.total_seconds() if hasattr(value, "total_seconds") else float(value)
    except (TypeError, ValueError):
        raise LlcollError(f"{what} is {value!r}; it must be a number of seconds") from None
    if not math.isfinite(seconds) or seconds < 0:
        raise LlcollError(f"{what} is {value!r}; it must be 0 (forever) or more, and finite")
    return seconds


_DEFAULT_POOL = 64 << 20
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _size(what: str, value: Any, least: int = 1) -> int:
    text = str(value).strip().lower().removesuffix("b").removesuffix("i")
    unit = _UNITS.get(text[-1:], 1)
    try:
        size = int(text[:-1] if unit > 1 else text) * unit
    except ValueError:
        raise LlcollError(f"{what} is {value!r}; it must be a number of bytes, or 16M") from None
    if size < least:
        raise LlcollError(f"{what} is {value!r}; it must be {least} or more")
    return size


def resolve(
    device: str,
    timeout: Any,
    policy: str,
    allow_low_precision: bool,
    scratch_bytes: int | None,
    pool_bytes: int | None,
    group_timeout: float,
    nodes: str = "",
) -> Settings:
    """An argument that is given beats the environment, which beats the default."""
    if timeout is not None:
        seconds = _seconds("timeout", timeout)
    elif (text := _environment("TIMEOUT")) is not None:
        seconds = _seconds("LLCOLL_TIMEOUT", text)
    else:
        seconds = group_timeout
    _choice("policy", policy, POLICIES)
    # "fast" given and "fast" by default look alike, so the environment may only be stricter.
    policies = {policy, _choice("LLCOLL_POLICY", _environment("POLICY") or policy, POLICIES)}
    if torch.are_deterministic_algorithms_enabled():
        policies.add("invariant")
    size = 0
    if scratch_bytes is not None:
        size = _size("scratch_bytes", scratch_bytes)
    elif (text := _environment("SCRATCH_BYTES")) is not None:
        size = _size("LLCOLL_SCRATCH_BYTES", text)
    pool = _DEFAULT_POOL if torch.device(device).type == "cuda" else 0
    if pool_bytes is not None:
        pool = _size("pool_bytes", pool_bytes, least=0)
    elif (text := _environment("POOL_BYTES")) is not None:
        pool = _size("LLCOLL_POOL_BYTES", text, least=0)
    return Settings(
        device=device,
        timeout=seconds,
        policy="invariant" if "invariant" in policies else "fast",
        allow_low_precision=bool(allow_low_precision),
        scratch_bytes=size,
        pool_bytes=round_up(pool),
        algorithm=_choice(
            "LLCOLL_ALGORITHM", _environment("ALGORITHM") or "auto", tuple(_C.algorithms())
        ),
        debug=_choice("LLCOLL_DEBUG", _environment("DEBUG") or "0", ("0", "1")) == "1",
        first_epoch=int(_environment("FIRST_EPOCH") or "0"),
        nodes=nodes,
        node_chunk_bytes=round_up(
            _size("LLCOLL_NODE_CHUNK_BYTES", _environment("NODE_CHUNK_BYTES") or "0", least=0)
        ),
    )


def set_up_logging() -> logging.Logger:
    """The logger "llcoll"; LLCOLL_LOG names its level (debug, info, warning, error)."""
    logger = logging.getLogger("llcoll")
    level = _environment("LOG")
    if level is not None:
        number = logging.getLevelName(level.upper())
        if isinstance(number, int):
            logger.setLevel(number)
            if not logger.handlers and not logging.getLogger().handlers:
                logger.addHandler(logging.StreamHandler())
        else:
            logger.warning("LLCOLL_LOG=%s names no level (debug, info, warning, error)", level)
    return logger
