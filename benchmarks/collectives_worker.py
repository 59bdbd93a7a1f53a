"""One rank of one job of benchmarks/collectives.py: peer_worker's, for the other collectives.

A contender is "library collective", as in "llcoll all_gather". A size is that of the largest of a
rank's two tensors, as in nccl-tests. The worker's protocol is peer_worker's.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, NamedTuple

import peer_worker
from peer_worker import ITEM_BYTES, Call, MpiJob, TorchJob

KINDS = ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")


class Buffers(NamedTuple):
    kind: str
    input: Any
    output: Any  # the input itself where the collective has a root


def num_elements(kind: str, total: int, size: int) -> tuple[int, int]:
    """Of input and output."""
    part = max(1, total // size)
    if kind == "all_gather":
        return part, part * size
    if kind == "reduce_scatter":
        return part * size, part
    return (part * size, part * size) if kind == "all_to_all" else (total, total)


class Checked:
    """Fills and checks for both kinds of jobs, which differ in how they make patterns."""

    rank: int
    size: int

    def pattern(self, count: int, rank: int, like: Any) -> Any:
        raise NotImplementedError

    def fill(self, buffers: Buffers, dtype: str, zero: bool) -> None:
        buffers.input[:] = 0 if zero else self.pattern(len(buffers.input), self.rank, buffers.input)

    def count_wrong(self, buffers: Buffers, dtype: str) -> int:
        kind, got, count = buffers.kind, buffers.output, len(buffers.input)
        if kind == "reduce" and self.rank != 0:
            return 0
        rows = [self.pattern(count, r, buffers.input) for r in range(self.size)]
        part = len(got) // self.size
        wrong = 0
        if kind == "broadcast":
            wrong = (got != rows[0]).sum()
        elif kind in ("reduce", "reduce_scatter"):
            first = self.rank * len(got) if kind == "reduce_scatter" else 0
            total = sum(
                row.astype(float) if hasattr(row, "astype") else row.float() for row in rows
            )
            wanted = total[first : first + len(got)]
            mine = got.astype(float) if hasattr(got, "astype") else got.float()
            wrong = (mine != wanted).sum()
        else:
            for r, row in enumerate(rows):
                own = slice(self.rank * part, (self.rank + 1) * part)
                wanted = row if kind == "all_gather" else row[own]
                wrong += (got[r * part : (r + 1) * part] != wanted).sum()
        return int(wrong)


class MpiCollectives(Checked, MpiJob):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.contenders = {f"{name} {kind}": None for kind in KINDS}

    def pattern(self, count: int, rank: int, like: Any) -> Any:
        return ((self.np.arange(count) * 3 + rank * 5) % 17).astype(like.dtype)

    def prepare(self, contender: str, dtype: str, num_bytes: int) -> tuple[Call, Any]:
        mpi, comm, kind = self.mpi, self.comm, contender.split()[1]
        type_name, mpi_type = {
            "float32": ("float32", mpi.FLOAT),
            "bfloat16": ("uint16", mpi.UINT16_T),
        }[dtype]
        counts = num_elements(kind, num_bytes // ITEM_BYTES[dtype], self.size)
        x = self.np.zeros(counts[0], dtype=type_name)
        y = x if kind in ("broadcast", "reduce") else self.np.zeros(counts[1], dtype=type_name)

        def spec(array: Any, count: int) -> list[Any]:
            return [mpi.buffer(array), count, mpi_type]

        part = max(1, min(counts) if kind != "all_to_all" else counts[0] // self.size)
        calls: dict[str, Call] = {
            "all_gather": partial(comm.Allgather, spec(x, part), spec(y, part)),
            "reduce_scatter": partial(
                comm.Reduce_scatter_block, spec(x, part), spec(y, part), mpi.SUM
            ),
            "all_to_all": partial(comm.Alltoall, spec(x, part), spec(y, part)),
            "broadcast": partial(comm.Bcast, spec(x, counts[0]), 0),
            "reduce": partial(
                comm.Reduce,
                mpi.IN_PLACE if self.rank == 0 else spec(x, counts[0]),
                spec(x, counts[0]) if self.rank == 0 else None,
                mpi.SUM,
                0,
            ),
        }
        return calls[kind], Buffers(kind, x, y)


class TorchCollectives(Checked, TorchJob):
    def __init__(self, rendezvous: str, wanted: list[str]) -> None:
        libraries = list(dict.fromkeys(name.split()[0] for name in wanted))
        super().__init__(rendezvous, None, libraries)
        reasons = self.contenders
        self.contenders = {name: reasons[name.split()[0]] for name in wanted}

    def pattern(self, count: int, rank: int, like: Any) -> Any:
        return ((self.torch.arange(count) * 3 + rank * 5) % 17).to(like.dtype)

    def prepare(self, contender: str, dtype: str, num_bytes: int) -> tuple[Call, Any]:
        library, kind = contender.split()
        counts = num_elements(kind, num_bytes // ITEM_BYTES[dtype], self.size)
        x = self.torch.zeros(counts[0], dtype=getattr(self.torch, dtype))
        y = x if kind in ("broadcast", "reduce") else self.torch.zeros(counts[1], dtype=x.dtype)
        if library == "llcoll":
            ops = self.torch.ops.llcoll
            if kind in ("broadcast", "reduce"):
                return partial(getattr(ops, kind + "_").default, x), Buffers(kind, x, y)
            return partial(getattr(ops, kind + "_out").default, x, out=y), Buffers(kind, x, y)
        if library == "llcoll_plan":
            return self.llcoll.plan(x, collective=kind, out=y), Buffers(kind, x, y)
        dist = self.dist
        calls: dict[str, Call] = {
            "all_gather": partial(dist.all_gather_into_tensor, y, x),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, y, x),
            "all_to_all": partial(dist.all_to_all_single, y, x),
            "broadcast": partial(dist.broadcast, x, 0),
            "reduce": partial(dist.reduce, x, 0),
        }
        return calls[kind], Buffers(kind, x, y)


def make_job(args: Any) -> peer_worker.Job:
    if args.job in ("openmpi", "mpich"):
        return MpiCollectives(args.job)
    return TorchCollectives(args.rendezvous, args.contenders.split(","))


if __name__ == "__main__":
    sys.exit(peer_worker.main(make_job))
