"""Fake kernels and gradients of the ops of one exchange."""

from collections.abc import Sequence
from typing import Any

import torch

from . import _C, _errors

ops: Any = torch.ops.llcoll

KINDS: tuple[str, ...] = tuple(_C.collectives())  # in the order of the C++ enumeration
_REDUCE_OPS = _C.reduce_ops()
_SUM = _REDUCE_OPS.index("sum")

# (rank, world size) by the hash of the group's name: what the result's shape depends on. Entries
# stay after shutdown: a graph may be traced again.
_places: dict[int, tuple[int, int]] = {}


def name_hash(group_name: str) -> int:
    """As the ops pass it: FNV-1a, as a signed number."""
    value = 0xCBF29CE484222325
    for byte in group_name.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value - (1 << 64) if value >> 63 else value


def set_place(group_name: str, is_default: bool, rank: int, world_size: int) -> None:
    _places[name_hash(group_name)] = (rank, world_size)
    if is_default:
        _places[name_hash("")] = (rank, world_size)


def _place(group_hash: int, group_name: str | None = None) -> tuple[int, int]:
    place = _places.get(group_hash)
    if place is None:
        what = f"#{group_hash}" if group_name is None else repr(group_name)
        raise RuntimeError(
            f"LlcollError: no communicator for group {what}; call llcoll.init() before tracing"
        )
    return place


def _rows(kind: str, num_rows: Any, splits: Sequence[Any], place: tuple[int, int]) -> Any:
    """Rows of the result; `splits`: of the output of gathers and all-to-alls, else of the input."""
    rank, world_size = place
    if kind == "all_gather":
        return sum(splits) if splits else num_rows * world_size
    if kind == "reduce_scatter":
        return splits[rank] if splits else num_rows // world_size
    if kind == "all_to_all":
        return sum(splits) if splits else num_rows
    return num_rows


def _fake(
    input: torch.Tensor, kind: str, splits: Sequence[Any], place: tuple[int, int]
) -> torch.Tensor:
    if kind in ("broadcast", "reduce"):
        return input.new_empty(input.shape)
    num_rows = input.shape[0] if input.dim() else 1
    return input.new_empty((_rows(kind, num_rows, splits, place), *input.shape[1:]))


def _checked_out(wanted: torch.Tensor, out: torch.Tensor) -> None:
    for what, mine, theirs in (
        ("device", out.device, wanted.device),
        ("dtype", out.dtype, wanted.dtype),
        ("shape", list(out.shape), list(wanted.shape)),
    ):
        if mine != theirs:
            raise RuntimeError(f"LlcollError: out has {what} {mine}, the result {theirs}")


def _by_name(group_name: str) -> tuple[int, int]:
    return _place(name_hash(group_name), group_name)


@torch.library.register_fake("llcoll::all_gather")
def _fake_all_gather(
    input: torch.Tensor,
    group_name: str = "",
    *,
    splits: Sequence[Any] = (),
    algorithm: str = "auto",
) -> torch.Tensor:
    return _fake(input, "all_gather", splits, _by_name(group_name))


@torch.library.register_fake("llcoll::all_gather_out")
def _fake_all_gather_out(
    input: torch.Tensor,
    group_name: str = "",
    *,
    splits: Sequence[Any] = (),
    algorithm: str = "auto",
    out: torch.Tensor,
) -> None:
    _checked_out(_fake(input, "all_gather", splits, _by_name(group_name)), out)


@torch.library.register_fake("llcoll::reduce_scatter")
def _fake_reduce_scatter(
    input: torch.Tensor,
    reduce_op: str = "sum",
    group_name: str = "",
    *,
    splits: Sequence[Any] = (),
    algorithm: str = "auto",
) -> torch.Tensor:
    return _fake(input, "reduce_scatter", splits, _by_name(group_name))


@torch.library.register_fake("llcoll::reduce_scatter_out")
def _fake_reduce_scatter_out(
    input: torch.Tensor,
    reduce_op: str = "sum",
    group_name: str = "",
    *,
    splits: Sequence[Any] = (),
    algorithm: str = "auto",
    out: torch.Tensor,
) -> None:
    _checked_out(_fake(input, "reduce_scatter", splits, _by_name(group_name)), out)


@torch.library.register_fake("llcoll::all_to_all")
def _fake_all_to_all(
    input: torch.Tensor,
    group_name: str = "",
    *,
    input_splits: Sequence[Any] = (),
    output_splits: Sequence[Any] = (),
    algorithm: str = "auto",
) -> torch.Tensor:
    return _fake(input, "all_to_all", output_splits, (0, 1))


@torch.library.register_fake("llcoll::all_to_all_out")
def _fake_all_to_all_out(
    input: torch.Tensor,
    group_name: str = "",
    *,
    input_splits: Sequence[Any] = (),
    output_splits: Sequence[Any] = (),
    algorithm: str = "auto",
    out: torch.Tensor,
) -> None:
    _checked_out(_fake(input, "all_to_all", output_splits, (0, 1)), out)


@torch.library.register_fake("llcoll::broadcast")
def _fake_broadcast(
    input: torch.Tensor, root: int = 0, group_name: str = "", *, algorithm: str = "auto"
) -> torch.Tensor:
    return input.new_empty(input.shape)


@torch.library.register_fake("llcoll::broadcast_")
def _fake_broadcast_(
    input: torch.Tensor, root: int = 0, group_name: str = "", *, algorithm: str = "auto"
) -> None:
    return None


@torch.library.register_fake("llcoll::reduce")
def _fake_reduce(
    input: torch.Tensor,
    root: int = 0,
    reduce_op: str = "sum",
    group_name: str = "",
    *,
    algorithm: str = "auto",
) -> torch.Tensor:
    return input.new_empty(input.shape)


@torch.library.register_fake("llcoll::reduce_")
def _fake_reduce_(
    input: torch.Tensor,
    root: int = 0,
    reduce_op: str = "sum",
    group_name: str = "",
    *,
    algorithm: str = "auto",
) -> None:
    return None


def _fake_numbered(
    input: torch.Tensor,
    kind: int,
    reduce_op: int,
    root: int,
    input_splits: Sequence[Any],
    output_splits: Sequence[Any],
    algorithm: int,
    group_hash: int,
) -> torch.Tensor:
    name = KINDS[kind]
    splits = input_splits if name == "reduce_scatter" else output_splits
    place = _place(group_hash) if name in ("all_gather", "reduce_scatter") else (0, 1)
    return _fake(input, name, splits, place)


torch.library.register_fake("llcoll::_exchange", _fake_numbered)
torch.library.register_fake("llcoll::_exchange_grad", _fake_numbered)

_library = torch.library.Library("llcoll", "IMPL")
for _name in (
    "_exchange",
    "_exchange_plan_create",
    "all_gather_out",
    "reduce_scatter_out",
    "all_to_all_out",
    "broadcast_",
    "reduce_",
):
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    _, ctx.kind, ctx.reduce_op, ctx.root, ctx.ins, ctx.outs, ctx.algorithm, ctx.group_hash = inputs


def _backward(ctx, gradient):  # type: ignore[no-untyped-def]
    """Every rank's loss depends on what it got, so gradients travel the other way and add up."""
    kind, op = KINDS[ctx.kind], _REDUCE_OPS[ctx.reduce_op]
    if kind in ("reduce_scatter", "reduce") and op not in ("sum", "avg"):
        raise _errors.LlcollError(
            f"{kind} with reduce_op {op!r} has no gradient; only 'sum' and 'avg' do"
        )
    # A second derivative needs the op with a gradient.
    exchange = ops._exchange_grad if torch.is_grad_enabled() else ops._exchange
    # An algorithm asked for by name may serve one way only (sentinels do not copy).
    same = ctx.algorithm if kind == "all_to_all" else 0

    def call(name: str, x: torch.Tensor, ins: Any, outs: Any) -> torch.Tensor:
        number = KINDS.index(name)
        return exchange.default(
            x, number, _SUM, ctx.root, list(ins), list(outs), same, ctx.group_hash
        )

    if kind == "all_gather":
        result = call("reduce_scatter", gradient, ctx.outs, [])
    elif kind == "reduce_scatter":
        result = call("all_gather", gradient, [], ctx.ins)
    elif kind == "all_to_all":
        result = call("all_to_all", gradient, ctx.outs, ctx.ins)
    elif kind == "broadcast":
        result = call("reduce", gradient, [], [])
        if _place(ctx.group_hash)[0] != ctx.root:
            result = torch.zeros_like(result)
    else:
        result = call("broadcast", gradient, [], [])
    if op == "avg" and kind in ("reduce_scatter", "reduce"):
        result = result / _place(ctx.group_hash)[1]
    return result, None, None, None, None, None, None, None


torch.library.register_autograd("llcoll::_exchange_grad", _backward, setup_context=_setup_context)
