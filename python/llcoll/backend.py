"""torch.distributed.init_process_group("llcoll"): a backend for programs that cannot be changed.

`import llcoll` registers it; "cpu:gloo,cuda:llcoll" works too. A group's collectives go through
llcoll's ops where these serve the call, everything else through stock backends: Gloo for CPU
tensors, NCCL (Gloo where torch has none) for CUDA tensors. llcoll's communicator is made at the
first collective of each device type, which all ranks of the group call anyway. Where it cannot be
made, on any rank, the log says why and every call of that device type is the stock backend's.

Calls come back when they are done (CPU) or enqueued on the current stream (CUDA), with async_op
too: nothing overlaps that the caller's streams do not.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from . import communicator as communicators
from ._errors import LlcollError, converted

log = logging.getLogger("llcoll")

NAME = "llcoll"
_ops: Any = torch.ops.llcoll
_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.PRODUCT: "prod",
}
_DTYPES = {
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
}


def _op_of(options: Any) -> str | None:
    op = getattr(options, "reduceOp", dist.ReduceOp.SUM)
    for known, name in _OPS.items():
        if op == known:
            return name
    return None  # premultiplied sums, bitwise operators


def _done(result: Any, device: torch.device) -> Any:
    """A finished Work: on CUDA its future remembers the current stream."""
    devices: list[Any] | None = [device] if device.type == "cuda" else None
    future: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
    future.set_result(result)
    return c10d._create_work_from_future(future)  # type: ignore[attr-defined]


def _first_tensor(values: Any) -> torch.Tensor | None:
    if isinstance(values, torch.Tensor):
        return values
    if isinstance(values, (list, tuple)):
        for value in values:
            found = _first_tensor(value)
            if found is not None:
                return found
    return None


# torch's stubs know one of the constructor's forms, and C++ overloads.
_ProcessGroup: Any = dist.ProcessGroup


class LlcollGroup(_ProcessGroup):
    """One process group."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._store, self._timeout = store, timeout
        self._stock: dict[str, Any] = {}
        self._names: dict[str, str | None] = {}
        self._sums: dict[tuple[int, torch.dtype, str], bool] = {}
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout)
        gloo._set_sequence_number_for_group()
        self._stock["cpu"] = gloo
        # What torch asks for by itself, and what has no method here.
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        if torch.cuda.is_available():
            kind = dist.ProcessGroup.BackendType
            if dist.is_nccl_available():
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = timeout
                place = dist.PrefixStore("nccl", store)
                nccl = dist.ProcessGroupNCCL(place, rank, size, options)
                self._stock["cuda"] = nccl
                self._register_backend(torch.device("cuda"), kind.NCCL, nccl)
            else:
                self._stock["cuda"] = gloo
                self._register_backend(torch.device("cuda"), kind.GLOO, gloo)

    def getBackendName(self) -> str:
        return NAME

    def _name_for(self, tensor: torch.Tensor) -> str | None:
        """The communicator's group name for this device type; None: the stock backend's."""
        kind = tensor.device.type
        if kind not in self._names:
            try:
                made = communicators.init(self, device=kind, timeout=self._timeout)
                self._names[kind] = made.group_name
            except LlcollError as error:
                log.warning("backend llcoll: %s goes through the stock backend: %s", kind, error)
                self._names[kind] = None
        return self._names[kind]

    def _served(self, tensors: Sequence[torch.Tensor]) -> str | None:
        if len(tensors) != 1 or tensors[0].dtype not in _DTYPES or tensors[0].is_sparse:
            return None
        return self._name_for(tensors[0])

    def _reduces(self, x: torch.Tensor, op: str, name: str) -> bool:
        """Whether llcoll has an algorithm of its own: its fallback would come back here."""
        key = (x.numel(), x.dtype, op)
        known = self._sums.get(key)
        if known is None:
            if op == "avg" and x.dtype == torch.bool:
                known = False
            else:
                backend = communicators.find(name, x.device.type)._backend
                dtype = str(x.dtype).removeprefix("torch.")
                known = backend.resolve(name, x.numel(), dtype, op, "auto") != "torch"
            self._sums[key] = known
        return known

    def _run(self, call: Callable[[], Any], result: Any, device: torch.device) -> Any:
        try:
            with torch.no_grad():
                call()
        except RuntimeError as error:
            raise converted(error) from None
        return _done(result, device)

    def _stock_for(self, tensors: Any) -> Any:
        first = _first_tensor(tensors)
        kind = "no" if first is None else first.device.type
        if kind not in self._stock:
            raise LlcollError(f"backend llcoll serves cpu and cuda tensors, not {kind}")
        return self._stock[kind]

    # The names and arguments are torch's.
    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        opts = c10d.AllreduceOptions() if opts is None else opts
        op, name = _op_of(opts), self._served(tensors)
        if name is None or op is None or not self._reduces(tensors[0], op, name):
            return self._stock_for(tensors).allreduce(tensors, opts)
        x = tensors[0]
        return self._run(lambda: _ops.all_reduce_.default(x, op, name), tensors, x.device)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        name = self._served(tensors)
        if name is None:
            return self._stock_for(tensors).broadcast(tensors, opts)
        x, root = tensors[0], opts.rootRank
        return self._run(lambda: _ops.broadcast_.default(x, root, name), tensors, x.device)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        op, name = _op_of(opts), self._served(tensors)
        if name is None or op is None:
            return self._stock_for(tensors).reduce(tensors, opts)
        x, root = tensors[0], opts.rootRank
        return self._run(lambda: _ops.reduce_.default(x, root, op, name), tensors, x.device)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        opts = c10d.AllgatherOptions() if opts is None else opts
        name = self._served([input])
        if name is None or not output.is_contiguous():
            return self._stock_for(input)._allgather_base(output, input, opts)

        def call() -> None:
            # torch takes a stacked output too: only the elements count.
            flat = output.view(-1)
            _ops.all_gather_out.default(input.reshape(-1), name, out=flat)

        return self._run(call, [output], input.device)

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        opts = c10d.AllgatherOptions() if opts is None else opts
        name = self._served(inputs)
        if name is None or any(o.shape != inputs[0].shape for o in outputs[0]):
            return self._stock_for(inputs).allgather(outputs, inputs, opts)
        x = inputs[0]

        def call() -> None:
            parts = _ops.all_gather.default(x.reshape(1, -1), name)
            for output, part in zip(outputs[0], parts, strict=True):
                output.copy_(part.view(x.shape))

        return self._run(call, outputs, x.device)

    def _reduce_scatter_base(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Any:
        opts = c10d.ReduceScatterOptions() if opts is None else opts
        op, name = _op_of(opts), self._served([input])
        if name is None or op is None or not output.is_contiguous():
            return self._stock_for(input)._reduce_scatter_base(output, input, opts)

        def call() -> None:
            flat = output.view(-1)
            _ops.reduce_scatter_out.default(input.reshape(-1), op, name, out=flat)

        return self._run(call, [output], input.device)

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Any:
        opts = c10d.ReduceScatterOptions() if opts is None else opts
        op, name = _op_of(opts), self._served(outputs)
        if name is None or op is None or any(i.shape != outputs[0].shape for i in inputs[0]):
            return self._stock_for(outputs).reduce_scatter(outputs, inputs, opts)
        output = outputs[0]

        def call() -> None:
            whole = torch.cat([one.reshape(-1) for one in inputs[0]])
            output.copy_(_ops.reduce_scatter.default(whole, op, name).view(output.shape))

        return self._run(call, outputs, output.device)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Any:
        opts = c10d.AllToAllOptions() if opts is None else opts
        name = self._served([input])
        if (
            name is None
            or not output.is_contiguous()
            or bool(output_splits) != bool(input_splits)
            or len(communicators.find(name, input.device.type).nodes) > 1  # it would come back here
        ):
            stock = self._stock_for(input)
            return stock.alltoall_base(output, input, output_splits, input_splits, opts)

        def call() -> None:
            _ops.all_to_all_out.default(
                input, name, input_splits=input_splits, output_splits=output_splits, out=output
            )

        return self._run(call, [output], input.device)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        one = c10d.AllreduceOptions()
        if opts is not None:
            one.reduceOp = opts.reduceOp
        return self._each(tensors, lambda x: self.allreduce([x], one))

    def allgather_into_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        return self._each(outputs, lambda _: self._allgather_base(*next(pairs), opts))

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        return self._each(outputs, lambda _: self._reduce_scatter_base(*next(pairs), opts))

    def _each(self, tensors: list[torch.Tensor], call: Callable[[torch.Tensor], Any]) -> Any:
        """One call after the other; the stock backend's, among them, are awaited here."""
        for tensor in tensors:
            call(tensor).wait()
        return _done(tensors, tensors[0].device)

    def barrier(self, opts: Any = None) -> Any:
        kind = "cuda" if self._names.get("cuda") else "cpu"
        x = torch.zeros(1, device=kind)
        work = self.allreduce([x])
        if kind == "cuda":
            torch.cuda.current_stream().synchronize()
        return work


def _stock(name: str) -> Callable[..., Any]:
    """A call that goes on to the stock backend of its tensors."""

    def call(self: LlcollGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._stock_for(args), name)(*args, **kwargs)

    call.__name__ = name
    return call


for _name in (
    "allgather_coalesced",
    "alltoall",
    "gather",
    "scatter",
    "send",
    "recv",
):
    setattr(LlcollGroup, _name, _stock(_name))


def register() -> None:
    """Makes "llcoll" a backend of torch.distributed; `import llcoll` has done it."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, LlcollGroup, devices=["cpu", "cuda"])


register()
