"""torch.distributed's forms with lists of tensors, over the collectives of flat ones.

Outside autograd. What ranks give and take is counted in elements, so tensors of a list may have any
shapes and strides. A list costs a copy in, or out: the forms with one tensor are the faster ones.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ._errors import LlcollError
from .collectives import all_gather, all_to_all, reduce_scatter
from .communicator import find


def all_gather_list(
    outputs: Sequence[torch.Tensor],
    input: torch.Tensor,
    group: Any = None,
    *,
    algorithm: str = "auto",
) -> Sequence[torch.Tensor]:
    """torch.distributed.all_gather: rank p's input into outputs[p]; outside autograd.

    `outputs`: a tensor for each rank, of any strides, with as many elements as that rank's input
    has (the same numbers on every rank; they may differ from rank to rank).
    """
    sizes, splits = _sizes(outputs, "outputs", input, "input", group)
    with torch.no_grad():
        flat = all_gather(input.reshape(-1), group, splits=splits, algorithm=algorithm)
        _spread(flat, outputs, sizes)
    return outputs


def reduce_scatter_list(
    output: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    reduce_op: str = "sum",
    group: Any = None,
    *,
    algorithm: str = "auto",
) -> torch.Tensor:
    """torch.distributed.reduce_scatter: the reduction of all ranks' inputs[rank], into `output`.

    `inputs`: a tensor for each rank, with as many elements as that rank's output has (the same
    numbers on every rank; they may differ from rank to rank). Outside autograd.
    """
    _, splits = _sizes(inputs, "inputs", output, "output", group)
    with torch.no_grad():
        whole = torch.cat([one.reshape(-1) for one in inputs])
        part = reduce_scatter(whole, reduce_op, group, splits=splits, algorithm=algorithm)
        output.copy_(part.view(output.shape))
    return output


def all_to_all_list(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    group: Any = None,
    *,
    algorithm: str = "auto",
) -> Sequence[torch.Tensor]:
    """torch.distributed.all_to_all: inputs[p] goes to rank p, outputs[p] came from there.

    What rank a has for b in `inputs` has as many elements as b's outputs[a]. Outside autograd.
    """
    if not inputs or not outputs:
        raise LlcollError("inputs or outputs are empty; they need a tensor for each rank")
    _check_alike([*inputs, *outputs], "inputs + outputs", inputs[0], "inputs[0]")
    # The op checks how many there are, and that they fit.
    ins, outs = ([one.numel() for one in tensors] for tensors in (inputs, outputs))
    with torch.no_grad():
        whole = torch.cat([one.reshape(-1) for one in inputs])
        flat = all_to_all(whole, group, input_splits=ins, output_splits=outs, algorithm=algorithm)
        _spread(flat, outputs, outs)
    return outputs


def _sizes(
    tensors: Sequence[torch.Tensor], what: str, own: torch.Tensor, owns: str, group: Any
) -> tuple[list[int], list[int] | None]:
    """Elements of each rank's tensor, and as splits: None where all are alike.

    Checks them against this rank's single tensor `own`.
    """
    place = find(group, own.device.type)
    sizes = [one.numel() for one in tensors]
    if len(sizes) != place.world_size:
        raise LlcollError(f"{len(sizes)} {what}; the group has {place.world_size} ranks")
    _check_alike(tensors, what, own, owns)
    if sizes[place.rank] != own.numel():
        raise LlcollError(
            f"{what}[{place.rank}] has {sizes[place.rank]} elements, {owns} has {own.numel()}"
        )
    return sizes, None if len(set(sizes)) == 1 else sizes


def _check_alike(tensors: Sequence[torch.Tensor], what: str, one: torch.Tensor, whose: str) -> None:
    for at, tensor in enumerate(tensors):
        if (tensor.dtype, tensor.device) != (one.dtype, one.device):
            raise LlcollError(
                f"{what}[{at}] is {tensor.dtype} on {tensor.device}, {whose} {one.dtype} on "
                f"{one.device}"
            )


def _spread(flat: torch.Tensor, targets: Sequence[torch.Tensor], sizes: list[int]) -> None:
    parts = [part.view(one.shape) for part, one in zip(flat.split(sizes), targets, strict=True)]
    torch._foreach_copy_(list(targets), parts)
