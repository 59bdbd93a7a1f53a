"""Calls of the collectives whose bits are known: inputs, arguments, what comes out."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import torch
from jobs_all_reduce import as_integers, differs, from_bits, poison

MAX_REPORTS = 8
ops: Any = torch.ops.llcoll


class Call(NamedTuple):
    """`rows`: of the whole message (root), of each part, or, all_to_all, matrix [giver][taker]."""

    kind: str
    algorithm: str
    dtype: str
    op: str
    root: int
    rows: Any
    width: int  # elements of a row; 0: one dimension
    offset: int  # into the prepared inputs
    splits: bool  # given, or left to be equal


class Prepared:
    """All ranks' inputs, and the reductions of whole rows, from the files that the test wrote."""

    def __init__(self, directory: str, rank: int, world_size: int, device: str) -> None:
        self.directory, self.rank, self.world_size = directory, rank, world_size
        self.device = device
        self.arrays: dict[str, np.ndarray] = {}

    def array(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            self.arrays[name] = np.load(os.path.join(self.directory, name + ".npy"), mmap_mode="r")
        return self.arrays[name]

    def inputs(self, dtype: str, rank: int, first: int, count: int) -> np.ndarray:
        return within(self.array(f"in.{dtype}")[rank, first : first + count], count)

    def reduced(self, dtype: str, op: str, first: int, count: int) -> np.ndarray:
        return within(self.array(f"{op}.{dtype}")[first : first + count], count)


def within(piece: np.ndarray, count: int) -> np.ndarray:
    assert len(piece) == count, f"the shared data end {count - len(piece)} elements too early"
    return piece


def starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:p]) for p in range(len(sizes))]


def lay_out(rows: int, width: int, dtype: torch.dtype, device: str, layout: int) -> torch.Tensor:
    """An uninitialised tensor: 0 contiguous, 1 off by odd elements, 2 strided, 3 transposed."""
    shape = (rows,) if width == 0 else (rows, width)
    numel = rows * max(width, 1)
    if layout == 1:
        shift = 1 + numel % 3
        return poison(torch.empty(numel + shift, dtype=dtype, device=device))[shift:].view(shape)
    if layout == 2:
        return (
            poison(torch.empty((rows, 2 * max(width, 1)), dtype=dtype, device=device))[
                :, ::2
            ].reshape(shape)
            if width == 0
            else poison(torch.empty((rows, 2 * width), dtype=dtype, device=device))[:, ::2]
        )
    if layout == 3 and width:
        return poison(torch.empty((width, rows), dtype=dtype, device=device)).t()
    return poison(torch.empty(shape, dtype=dtype, device=device))


class Caller:
    def __init__(self, prepared: Prepared, group_name: str = "") -> None:
        self.prepared, self.group_name = prepared, group_name
        self.rank, self.world_size = prepared.rank, prepared.world_size

    def tensor(self, call: Call, bits: np.ndarray, rows: int, layout: int) -> torch.Tensor:
        source = from_bits(bits, call.dtype, self.prepared.device)
        x = lay_out(rows, call.width, source.dtype, self.prepared.device, layout)
        x.copy_(source.view(x.shape))
        return x

    def bits(self, call: Call) -> tuple[np.ndarray, np.ndarray | None]:
        """This rank's input and its expected result (None: not defined)."""
        unit, p = max(call.width, 1), self.prepared
        rank, ranks = self.rank, range(self.world_size)
        if call.kind in ("broadcast", "reduce"):
            count = call.rows * unit
            mine = p.inputs(call.dtype, rank, call.offset, count)
            if call.kind == "broadcast":
                return mine, p.inputs(call.dtype, call.root, call.offset, count)
            wanted = p.reduced(call.dtype, call.op, call.offset, count)
            return mine, wanted if rank == call.root else mine
        if call.kind == "all_to_all":
            matrix = call.rows
            mine = p.inputs(call.dtype, rank, call.offset, sum(matrix[rank]) * unit)
            got = [
                p.inputs(
                    call.dtype,
                    giver,
                    call.offset + starts(matrix[giver])[rank] * unit,
                    matrix[giver][rank] * unit,
                )
                for giver in ranks
            ]
            return mine, np.concatenate(got)
        first = [call.offset + start * unit for start in starts(call.rows)]
        if call.kind == "all_gather":
            parts = [p.inputs(call.dtype, r, first[r], call.rows[r] * unit) for r in ranks]
            return parts[rank], np.concatenate(parts)
        mine = p.inputs(call.dtype, rank, call.offset, sum(call.rows) * unit)
        return mine, p.reduced(call.dtype, call.op, first[rank], call.rows[rank] * unit)

    def arguments(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        named: dict[str, Any] = {"algorithm": call.algorithm}
        if call.splits and call.kind in ("all_gather", "reduce_scatter"):
            named["splits"] = list(call.rows)
        if call.splits and call.kind == "all_to_all":
            named["input_splits"] = list(call.rows[self.rank])
            named["output_splits"] = [row[self.rank] for row in call.rows]
        args: list[Any] = [call.root] if call.kind in ("broadcast", "reduce") else []
        if call.kind in ("reduce_scatter", "reduce"):
            args.append(call.op)
        return [*args, self.group_name], named

    def run(self, call: Call, style: int) -> str:
        """ "" or what is wrong. The style may differ between ranks."""
        mine, want_bits = self.bits(call)
        assert want_bits is not None
        unit, layout, entry = max(call.width, 1), style % 4, style // 4 % 3
        in_rows, out_rows = len(mine) // unit, len(want_bits) // unit
        if call.width == 0 and layout == 3:
            layout = 0
        want = from_bits(want_bits, call.dtype, self.prepared.device)
        args, named = self.arguments(call)
        x = self.tensor(call, mine, in_rows, layout)
        before = as_integers(x.clone())
        if call.kind in ("broadcast", "reduce"):
            if entry == 0:
                got = getattr(ops, call.kind)(x, *args, **named)
                if (
                    got.numel()
                    and got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
                ):
                    return "the functional result shares the input's storage"
            else:
                getattr(ops, call.kind + "_")(x, *args, **named)
                got = x
            touched = entry == 0 and not torch.equal(as_integers(x.clone()), before)
        else:
            got, touched = self._gather_or_scatter(call, x, out_rows, style, args, named)
            touched = touched and not torch.equal(as_integers(x.clone()), before)
        if touched:
            return "the input changed"
        shape = (out_rows,) if call.width == 0 else (out_rows, call.width)
        if tuple(got.shape) != shape or got.dtype != x.dtype:
            return f"shape {tuple(got.shape)} {got.dtype}, not {shape} {x.dtype}"
        apart = got.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        if style % 2 and apart:
            as_integers(x).fill_(1)  # the peers must not see what becomes of it
        return differs(got, want)

    def _gather_or_scatter(
        self, call: Call, x: torch.Tensor, out_rows: int, style: int, args: Any, named: Any
    ) -> tuple[torch.Tensor, bool]:
        entry = style // 4 % 3
        op, op_out = getattr(ops, call.kind), getattr(ops, call.kind + "_out")
        device = self.prepared.device
        if entry == 0:
            return op(x, *args, **named), True
        # In place: this rank's own part of the larger tensor.
        if entry == 2 and call.kind == "all_gather":
            out = lay_out(out_rows, call.width, x.dtype, device, style % 2)
            first = starts(call.rows)[self.rank]
            part = out[first : first + x.shape[0]]
            part.copy_(x)
            op_out(part, *args, **named, out=out)
            return out, False
        if entry == 2 and call.kind == "reduce_scatter":
            first = starts(call.rows)[self.rank]
            part = x[first : first + out_rows]
            op_out(x, *args, **named, out=part)
            return part, False
        out = lay_out(out_rows, call.width, x.dtype, device, (style // 12) % 4)
        op_out(x, *args, **named, out=out)
        return out, True
