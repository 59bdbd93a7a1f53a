"""NCCL, or any library with its interface, through ctypes: plain memory and symmetric windows.

NCCL up to 2.29, torch's own too, refuses two ranks on one GPU. LLCOLL_BENCH_NCCL_LIBS=nccl=PATH
names another libnccl.so (2.30 and newer run in loopback with NCCL_MULTI_RANK_GPU_ENABLE=1), or a
library that stands in for it, under a name of its own. NCCL chooses among its algorithms by size;
a communicator made under NCCL_ALGO has that one alone, so one run can hold several.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .contenders import Contender
from .forms import Call, Cell, Form
from .session import Session

UNIQUE_ID_BYTES = 128
WINDOW_SYMMETRIC = 1
WINDOW_BYTES = 128 << 20
DTYPES = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 4,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * UNIQUE_ID_BYTES)]


def library_path(name: str) -> Path | None:
    for pair in filter(None, os.environ.get("LLCOLL_BENCH_NCCL_LIBS", "").split(",")):
        key, _, path = pair.partition("=")
        if key == name:
            return Path(path)
    # torch's wheel brings it as a package of its own.
    places = Path(torch.__file__).resolve().parents[1].glob("nvidia/nccl/lib/libnccl.so*")
    return next(places, None)


class Library:
    """One communicator of one library."""

    def __init__(self, path: Path, session: Session) -> None:
        self.lib = ctypes.CDLL(str(path))
        pointer: Any = ctypes.c_void_p
        size = ctypes.c_size_t
        self.lib.ncclCommInitRank.argtypes = [
            ctypes.POINTER(pointer),
            ctypes.c_int,
            UniqueId,
            ctypes.c_int,
        ]
        self.lib.ncclAllReduce.argtypes = [
            *[pointer, pointer, size],
            *[ctypes.c_int, ctypes.c_int, pointer, pointer],
        ]
        self.lib.ncclGetErrorString.restype = ctypes.c_char_p
        number = ctypes.c_int()
        self.check(self.lib.ncclGetVersion(ctypes.byref(number)), "ncclGetVersion")
        major, rest = divmod(number.value, 10000)
        self.version = f"{major}.{rest // 100}.{rest % 100}"
        unique = UniqueId()
        if session.rank == 0:
            self.check(self.lib.ncclGetUniqueId(ctypes.byref(unique)), "ncclGetUniqueId")
        data = session.from_rank_0(bytes(unique.internal))
        ctypes.memmove(ctypes.byref(unique), data, UNIQUE_ID_BYTES)
        self.comm = pointer()
        self.check(
            self.lib.ncclCommInitRank(
                ctypes.byref(self.comm), session.world_size, unique, session.rank
            ),
            "ncclCommInitRank",
        )

    def check(self, status: int, what: str) -> None:
        if status != 0:
            text = self.lib.ncclGetErrorString(ctypes.c_int(status)).decode()
            raise RuntimeError(f"{what}: {text}")

    def window(self, num_bytes: int) -> int:
        """Address of memory that is registered as a symmetric window. Collective."""
        address, handle = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(
            self.lib.ncclMemAlloc(ctypes.byref(address), ctypes.c_size_t(num_bytes)), "ncclMemAlloc"
        )
        self.check(
            self.lib.ncclCommWindowRegister(
                self.comm,
                address,
                ctypes.c_size_t(num_bytes),
                ctypes.byref(handle),
                ctypes.c_int(WINDOW_SYMMETRIC),
            ),
            "ncclCommWindowRegister",
        )
        assert address.value is not None
        return address.value

    def all_reduce(self, send: int, receive: int, count: int, dtype: int, op: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        self.check(
            self.lib.ncclAllReduce(send, receive, count, dtype, op, self.comm, stream),
            "ncclAllReduce",
        )


class _DeviceArray:
    """Foreign device memory for torch.as_tensor."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class Nccl(Contender):
    def __init__(self, name: str, library: Library) -> None:
        self.name, self.library, self.version = name, library, library.version

    def why_not(self, cell: Cell) -> str:
        return "" if cell.case.dtype in DTYPES else f"NCCL has no {cell.dtype_name()} here"

    def call(self, cell: Cell, x: torch.Tensor, y: torch.Tensor) -> Call:
        return partial(
            self.library.all_reduce,
            *(x.data_ptr(), y.data_ptr(), cell.numel),
            *(DTYPES[cell.case.dtype], OPS[cell.case.op]),
        )

    def forms(self, cell: Cell) -> list[Form]:
        pairs = list(zip(cell.inputs, cell.outs, strict=True))
        return [
            Form(cell, [self.call(cell, x, y) for x, y in pairs], in_place=False),
            Form(cell, [self.call(cell, x, x) for x, _ in pairs], in_place=True),
        ]


class NcclWindow(Nccl):
    """The same on symmetric windows, which its symmetric kernels need."""

    def __init__(self, name: str, library: Library, session: Session) -> None:
        super().__init__(f"{name}-window", library)
        self.pool = torch.as_tensor(
            _DeviceArray(library.window(WINDOW_BYTES), WINDOW_BYTES), device=session.device
        )

    def why_not(self, cell: Cell) -> str:
        if 2 * cell.num_bytes > WINDOW_BYTES:
            return f"the window has {WINDOW_BYTES >> 20} MiB for input and output"
        return super().why_not(cell)

    def forms(self, cell: Cell) -> list[Form]:
        half = WINDOW_BYTES // 2
        x, y = (self.pool[at : at + cell.num_bytes].view(cell.case.dtype) for at in (0, half))

        def out_of_place() -> torch.Tensor:
            self.library.all_reduce(
                x.data_ptr(), y.data_ptr(), cell.numel, DTYPES[cell.case.dtype], OPS[cell.case.op]
            )
            return y

        return [
            Form(cell, [out_of_place], in_place=False, inputs=[x]),
            Form(cell, [self.call(cell, x, x)], in_place=True, inputs=[x]),
        ]


@contextmanager
def restricted_to(algorithm: str) -> Iterator[None]:
    """Communicators made inside know NCCL's `algorithm` (Ring, Tree) alone; "": all of them."""
    before = os.environ.get("NCCL_ALGO")
    if algorithm:
        os.environ["NCCL_ALGO"] = algorithm
    try:
        yield
    finally:
        if algorithm and before is None:
            del os.environ["NCCL_ALGO"]
        elif algorithm and before is not None:
            os.environ["NCCL_ALGO"] = before


def make_nccl(
    session: Session, name: str, missing: type[Exception], algorithm: str = ""
) -> list[Contender]:
    """`name` and its form on windows; with an `algorithm`, `name-algorithm` on plain memory."""
    if not session.is_cuda:
        raise missing("it reduces CUDA tensors")
    path = library_path(name)
    if path is None:
        raise missing("no libnccl.so.2 beside torch; LLCOLL_BENCH_NCCL_LIBS=nccl=PATH names one")
    if session.machine.shares_device:
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    with restricted_to(algorithm):
        library = Library(path, session)
    if algorithm:
        # NCCL says at the first call only that it cannot reduce by that algorithm here.
        x = torch.zeros(256, device=session.device)
        library.all_reduce(x.data_ptr(), x.data_ptr(), x.numel(), DTYPES[x.dtype], OPS["sum"])
        session.synchronize()
        return [Nccl(f"{name}-{algorithm.lower()}", library)]
    made: list[Contender] = [Nccl(name, library)]
    if hasattr(library.lib, "ncclCommWindowRegister"):
        made.append(NcclWindow(name, library, session))
    return made
