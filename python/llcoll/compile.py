"""torch.compile: functional all-reduces become llcoll's, without a change to the model.

enable() adds a pass to Inductor. In graphs of models that torch.distributed or DTensor made
parallel it replaces

- _c10d_functional.all_reduce followed by wait_tensor, on groups that have an llcoll communicator,
  by torch.ops.llcoll.all_reduce;
- such an all-reduce whose result only goes into a residual addition and a root-mean-square norm
  (F.rms_norm, or written out as Llama and Gemma do) by torch.ops.llcoll.all_reduce_rms_norm. Only
  with `fuse_rms_norm=True`: its order of adding is its own, so last bits may differ from eager's.

What is static and larger than `max_bytes` stays with torch, which may overlap it with computation.

Caches: the key of a compiled graph covers this pass and the groups that it serves, so a process
without llcoll compiles its own graph. A graph that holds llcoll's ops needs `import llcoll` and
llcoll.init() before it runs; where they are missing torch or the op says so.
"""

import hashlib
import inspect
import logging
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.fx

from . import _errors, fused
from .communicator import _communicators, find_or_none

log = logging.getLogger("llcoll")

DEFAULT_MAX_BYTES = 8 << 20
_REDUCE_OPS = {"sum": "sum", "avg": "avg", "min": "min", "max": "max", "product": "prod"}
_aten, _prims = torch.ops.aten, torch.ops.prims
_SKIP = (_prims.convert_element_type.default,)


def arguments_of(node: torch.fx.Node) -> dict[str, Any]:
    """What a call gives each parameter of its op's schema; defaults filled in."""
    target: Any = node.target
    found = {}
    for position, parameter in enumerate(target._schema.arguments):
        if position < len(node.args):
            found[parameter.name] = node.args[position]
        elif parameter.name in node.kwargs:
            found[parameter.name] = node.kwargs[parameter.name]
        elif parameter.has_default_value():
            found[parameter.name] = parameter.default_value
    return found


def _value_of(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


class Pass:
    """What enable() hands to Inductor; __call__ rewrites a graph in place."""

    def __init__(
        self, previous: Callable[[torch.fx.Graph], None] | None, fuse: bool, max_bytes: int
    ) -> None:
        self.previous = previous
        self.fuse = fuse
        self.max_bytes = max_bytes
        self.replaced = 0
        self.fused = 0

    def __call__(self, graph: torch.fx.Graph) -> None:
        if self.previous is not None:
            self.previous(graph)
        replaced = [new for node in list(graph.nodes) if (new := self._replace(graph, node))]
        num_fused = sum(self._fuse(graph, node) for node in replaced) if self.fuse else 0
        if replaced:
            graph.eliminate_dead_code()
            graph.lint()
        self.replaced += len(replaced)
        self.fused += num_fused
        log.info("compile: %d all-reduces through llcoll, %d with a norm", len(replaced), num_fused)

    def _replace(self, graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
        """llcoll's op in place of an all-reduce and its waits; None where that is not possible."""
        if node.target is not torch.ops._c10d_functional.all_reduce.default:
            return None
        given = arguments_of(node)
        x = given.get("input", given.get("self"))
        value = _value_of(x)
        op, group = _REDUCE_OPS.get(given.get("reduce_op", "")), given.get("group_name")
        waits = list(node.users)
        wait = torch.ops._c10d_functional.wait_tensor.default
        if value is None or op is None or not isinstance(group, str):
            return None
        if not waits or any(user.target is not wait for user in waits):
            return None
        if find_or_none(group, value.device.type) is None:
            return None
        size = value.numel() * value.element_size()
        if isinstance(size, int) and size > self.max_bytes:
            return None
        if value.is_complex() or value.dtype in (torch.int16,):
            return None
        with graph.inserting_before(node):
            new = graph.call_function(torch.ops.llcoll.all_reduce.default, (x, op, group))
        new.meta.update(node.meta)
        new.meta["val"] = _value_of(waits[0])
        for user in waits:
            user.replace_all_uses_with(new)
            graph.erase_node(user)
        graph.erase_node(node)
        return new

    def _fuse(self, graph: torch.fx.Graph, reduced: torch.fx.Node) -> bool:
        found = match_norm(reduced)
        if found is None:
            return False
        residual, weight, eps, bias, added, normed = found
        x, _, group = reduced.args
        # Behind everything that it reads, before everything that reads it.
        order = {node: position for position, node in enumerate(graph.nodes)}
        last = max((added, weight), key=lambda node: order[node])
        if any(order[user] < order[last] for node in (added, normed) for user in node.users):
            inside = _nodes_between(added, normed)
            outside = (u for node in (added, normed) for u in node.users if u not in inside)
            if any(order[user] < order[last] for user in outside):
                return False
        with graph.inserting_after(last):
            both = graph.call_function(
                torch.ops.llcoll.all_reduce_rms_norm.default,
                (x, residual, weight, eps, group),
                {"weight_bias": bias} if bias else {},
            )
        with graph.inserting_after(both):
            norm = graph.call_function(operator.getitem, (both, 0))
            out = graph.call_function(operator.getitem, (both, 1))
        norm.meta["val"], out.meta["val"] = normed.meta["val"], added.meta["val"]
        both.meta["val"] = (normed.meta["val"], added.meta["val"])
        normed.replace_all_uses_with(norm)
        added.replace_all_uses_with(out, delete_user_cb=lambda user: user is not both)
        return True

    def uuid(self) -> str:
        """Of the code, the options, and the groups that this process serves."""
        groups = sorted(f"{name} {device}" for name, device in _communicators)
        code = Path(inspect.getfile(Pass)).read_bytes()
        text = f"{torch.__version__} {self.fuse} {self.max_bytes} {groups}".encode()
        before = getattr(self.previous, "uuid", None)
        return hashlib.sha256(code + text + str(before() if before else "").encode()).hexdigest()


def _nodes_between(first: torch.fx.Node, last: torch.fx.Node) -> set[torch.fx.Node]:
    """The nodes on paths from the one to the other, both included."""
    found: set[torch.fx.Node] = set()
    open_ = [last]
    while open_:
        node = open_.pop()
        if node not in found:
            found.add(node)
            if node is not first:
                open_ += [n for n in node.all_input_nodes if n not in found]
    return found


def _converted(node: Any) -> Any:
    """The node before changes of type."""
    while isinstance(node, torch.fx.Node) and node.target in _SKIP:
        node = node.args[0]
    return node


def _is(node: Any, *targets: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.target in targets


def _only(users: Any, *targets: Any) -> torch.fx.Node | None:
    """The one user with such a target."""
    found = [user for user in users if user.target in targets]
    return found[0] if len(found) == 1 else None


def _factors(node: torch.fx.Node, one: torch.fx.Node) -> Any:
    """The other operand of a product."""
    a, b = node.args[:2]
    return b if _converted(a) is one else a if _converted(b) is one else None


def match_norm(reduced: torch.fx.Node) -> tuple[Any, ...] | None:
    """(residual, weight, eps, weight_bias, the added node, the normed node), or None.

    `reduced` goes into one addition; the sum, perhaps as float32, is squared and averaged over the
    last dimension, its root's inverse multiplies it, and a weight (plus a constant) that product.
    """
    value = _value_of(reduced)
    if value is None or value.dim() == 0 or len(reduced.users) != 1 or reduced.args[1] != "sum":
        return None
    if value.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return None
    added = next(iter(reduced.users))
    if not _is(added, _aten.add.Tensor) or added.kwargs:
        return None
    residual = added.args[1] if added.args[0] is reduced else added.args[0]
    like = _value_of(residual)
    if like is None or like.dtype != value.dtype or len(like.shape) != len(value.shape):
        return None
    if any(not _same(a, b) for a, b in zip(like.shape, value.shape, strict=True)):
        return None
    wide = added if value.dtype == torch.float32 else _only(added.users, *_SKIP)
    if wide is None or _value_of(wide) is None or wide.meta["val"].dtype != torch.float32:
        return None
    squared = _only(wide.users, _aten.pow.Tensor_Scalar)
    mean = _only(squared.users, _aten.mean.dim) if squared and squared.args[1] == 2 else None
    last = value.dim() - 1
    if mean is None or list(mean.args[1]) not in ([-1], [last]) or mean.args[2:3] != (True,):  # type: ignore[arg-type]
        return None
    shifted = _only(mean.users, _aten.add.Tensor, _aten.add.Scalar)
    root = _only(shifted.users, _aten.rsqrt.default) if shifted else None
    product = _only(root.users, _aten.mul.Tensor) if root else None
    if shifted is None or root is None or product is None or product not in wide.users:
        return None
    eps = shifted.args[1]
    # The weight multiplies the product, before or after it goes back to the narrow type.
    node = product
    while (
        step := _only(node.users, *_SKIP, _aten.mul.Tensor)
    ) is not None and step.target in _SKIP:
        if len(node.users) != 1:
            return None
        node = step
    if step is None or len(node.users) != 1 or not isinstance(eps, float):
        return None
    factor, bias = _converted(_factors(step, product)), 0.0
    if _is(factor, _aten.add.Tensor, _aten.add.Scalar) and isinstance(factor.args[1], (int, float)):
        factor, bias = _converted(factor.args[0]), float(factor.args[1])
    weight = _value_of(factor)
    if weight is None or weight.dtype != value.dtype or weight.dim() != 1:
        return None
    if not _same(weight.shape[0], value.shape[-1]):
        return None
    normed = step
    if step.meta["val"].dtype != value.dtype:
        back = _only(step.users, *_SKIP)
        if back is None or len(step.users) != 1 or back.meta["val"].dtype != value.dtype:
            return None
        normed = back
    return residual, factor, eps, bias, added, normed


def _same(a: Any, b: Any) -> bool:
    """Equal sizes, without a new guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return a == b if isinstance(a, int) and isinstance(b, int) else statically_known_true(a == b)


_enabled: Pass | None = None


def enable(*, fuse_rms_norm: bool = False, max_bytes: int = DEFAULT_MAX_BYTES) -> Pass:
    """Adds the pass to Inductor for this process; a second call changes its options.

    Call it, and llcoll.init(), before the first call of a compiled function: graphs that are
    compiled already stay as they are. Returns the pass, whose `replaced` and `fused` count what it
    did. Raises LlcollError where this torch has no such hook.
    """
    global _enabled
    import torch._inductor.config as config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    if not hasattr(config, "post_grad_custom_pre_pass") or not math.isfinite(max_bytes):
        raise _errors.LlcollError(f"torch {torch.__version__} takes no pass before its own")
    disable()

    class InductorPass(Pass, CustomGraphPass):
        pass

    made = InductorPass(config.post_grad_custom_pre_pass, fuse_rms_norm, max_bytes)
    config.post_grad_custom_pre_pass = made
    _enabled = made
    return made


def disable() -> None:
    """Takes the pass away again; the one that was there before comes back."""
    global _enabled
    import torch._inductor.config as config

    if _enabled is not None and config.post_grad_custom_pre_pass is _enabled:
        config.post_grad_custom_pre_pass = _enabled.previous
    _enabled = None


assert fused.ops is torch.ops.llcoll  # the ops that the pass writes are loaded
