"""Selection tables as files: what `python -m llcoll.tune` writes and llcoll.init reads.

    {"version": 1, "entries": [{"key": {"device": "NVIDIA H200", "driver": "580.159.04",
      "world_size": 2, "topology": "shared-gpu"}, "provenance": {...},
      "rows": {"fast": {"float32": [[131072, "one_shot_ll"], [null, "one_shot_flag"]],
                        "float": [...], "integer": [...]},
               "low_precision": {...}, "invariant": {...}}}]}

"low_precision" is "fast" with allow_low_precision, and may be left out. A row serves messages up to
its size in bytes, the last one (null) every larger one. "float" is every floating type but
float32, "integer" the integers and bool. An entry counts on exactly the
machine of its key. Whatever a table says, a policy that does not allow an algorithm never gets it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import socket
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from . import _C
from ._errors import LlcollError
from .rendezvous import Exchange, check_same

log = logging.getLogger("llcoll")

VERSION = 1
NO_FILE = "none"
CLASSES = ("float32", "float", "integer")
LOW_PRECISION = "low_precision"
Rows = dict[str, list[list[Any]]]


@dataclass(frozen=True)
class Key:
    """What a table depends on; the same on every rank of a group."""

    device: str  # the GPU's or CPU's name
    driver: str  # NVIDIA's driver; "-" on CPU
    world_size: int
    topology: str  # "host" (CPU), "shared-gpu" (loopback), "gpu-per-rank"


@dataclass(frozen=True)
class Machine:
    key: Key
    compute_capability: int  # 90 for sm_90; 0 on CPU

    @property
    def is_cuda(self) -> bool:
        return self.key.topology != "host"

    @property
    def shares_device(self) -> bool:
        return self.key.topology == "shared-gpu"

    def default(self) -> tuple[str, str, str]:
        """Name, provenance and rows of the built-in table."""
        return _C.default_table(
            self.is_cuda, self.shares_device, self.compute_capability, self.key.world_size
        )

    def select(self, text: str, policy: str, num_bytes: int, dtype: str, op: str = "sum") -> str:
        """What `auto` picks by the table `text` ("": the built-in one)."""
        return _C.select(
            text,
            self.is_cuda,
            self.shares_device,
            self.compute_capability,
            self.key.world_size,
            policy,
            False,
            num_bytes,
            dtype,
            op,
        )


@dataclass(frozen=True)
class Chosen:
    """The table of one communicator."""

    text: str  # for the backend; "": the built-in one
    source: str
    provenance: str

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "CPU"
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else "CPU"


def _nvidia_driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found[1] if found else "unknown"


def machine(device_type: str, exchange: Exchange) -> Machine:
    """Collective on CUDA: whether ranks share a GPU shows only over all of them."""
    if device_type != "cuda":
        return Machine(Key(_cpu_name(), "-", exchange.world_size, "host"), 0)

    def facts() -> dict[str, Any]:
        index = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(index)
        return {
            "device": properties.name,
            "driver": _nvidia_driver(),
            "capability": 10 * properties.major + properties.minor,
            "gpu": f"{socket.gethostname()} {getattr(properties, 'uuid', index)}",
        }

    every = exchange.agree(facts)
    shared = max(Counter(one["gpu"] for one in every).values()) > 1
    # Of unlike GPUs the names are joined: such a group has a table of its own.
    device, driver = (" + ".join(sorted({one[k] for one in every})) for k in ("device", "driver"))
    topology = "shared-gpu" if shared else "gpu-per-rank"
    return Machine(
        Key(device, driver, exchange.world_size, topology), min(one["capability"] for one in every)
    )


def cache_path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "llcoll" / "tuning.json"


def text_of(rows: Rows) -> str:
    """Rows of one policy as the backends read them."""
    parts = []
    for name in CLASSES:
        cells = [
            f"{'*' if limit is None else int(limit)} {algorithm}" for limit, algorithm in rows[name]
        ]
        parts.append(f"{name}: {', '.join(cells)}")
    return "; ".join(parts)


def read(path: Path) -> dict[str, Any]:
    """A table file, checked as far as its frame goes. Raises LlcollError with the path."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LlcollError(f"tuning table {path}: {error}") from None
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        raise LlcollError(
            f"tuning table {path}: version is {version!r}, this llcoll reads {VERSION}"
        )
    if not isinstance(data.get("entries"), list):
        raise LlcollError(f"tuning table {path}: it has no list of entries")
    return data


def find(data: dict[str, Any], key: Key) -> dict[str, Any] | None:
    for entry in data["entries"]:
        if isinstance(entry, dict) and entry.get("key") == asdict(key):
            return entry
    return None


def _text_from(
    path: Path, where: Machine, policy: str, low_precision: bool
) -> tuple[str, str] | None:
    """Rows and provenance of the entry for this machine, None if there is none."""
    entry = find(read(path), where.key)
    if entry is None:
        return None
    try:
        rows = entry["rows"]
        low = low_precision and policy == "fast" and LOW_PRECISION in rows
        text = text_of(rows[LOW_PRECISION if low else policy])
        where.select(text, policy, 1, "float32")  # the backend's own check of the rows
    except (KeyError, TypeError, ValueError, LlcollError) as error:
        raise LlcollError(f"tuning table {path}: {type(error).__name__}: {error}") from None
    return text, json.dumps(entry.get("provenance", {}))


def choose(device_type: str, policy: str, low_precision: bool, exchange: Exchange) -> Chosen:
    """The group's table: LLCOLL_TUNING_FILE ("none": the built-in one), else the cache's, else
    built in. Collective. Ranks that were told different tables are an error on all of them; caches
    that differ are not used."""
    where = machine(device_type, exchange)
    named = os.environ.get("LLCOLL_TUNING_FILE", "")

    def load() -> list[str]:
        """Kind, text, source, provenance."""
        if named == NO_FILE:
            return ["named", "", "built in", where.default()[1]]
        path = Path(named) if named else cache_path()
        try:
            wanted = named or path.exists()
            found = _text_from(path, where, policy, low_precision) if wanted else None
        except LlcollError as error:
            if named:
                raise
            log.warning("%s; not used", error)
            found = None
        if found is None:
            if named:
                log.warning("tuning table %s has no entry for %s: built-in table", path, where.key)
            return ["named" if named else "cache", "", "built in", where.default()[1]]
        return ["named" if named else "cache", found[0], str(path), found[1]]

    answers = exchange.agree(load)
    mine = answers[exchange.rank]
    chosen = Chosen(mine[1], mine[2], mine[3])
    if len({answer[1] for answer in answers}) > 1:
        hashes = [Chosen(answer[1], answer[2], "").hash for answer in answers]
        if any(answer[0] == "named" for answer in answers):
            told = [f"{h} from {a[2]}" for h, a in zip(hashes, answers, strict=True)]
            check_same("init", [{"the tuning table (LLCOLL_TUNING_FILE)": one} for one in told])
        log.warning("the ranks' cached tuning tables differ (%s): built-in table", hashes)
        chosen = Chosen("", "built in", where.default()[1])
    return chosen


def store(path: Path, entry: dict[str, Any]) -> None:
    """Adds an entry to a file, in place of the one with its key; a reader sees old or new."""
    entries: list[Any] = []
    if path.exists():
        try:
            entries = [e for e in read(path)["entries"] if e.get("key") != entry["key"]]
        except LlcollError as error:
            log.warning("%s; written anew", error)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"version": VERSION, "entries": [*entries, entry]}
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps(data, indent=1) + "\n")
    os.chmod(name, 0o644)
    os.replace(name, path)
