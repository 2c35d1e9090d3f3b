# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Converts an exported FX graph to ops of the graph dialect, node by node."""

from __future__ import annotations

import math
import operator
from typing import Any, Iterable

import torch
from torch.utils import _pytree as pytree

from ..runtime.state import not_dense
from .converters import narrow as narrow_integers
from .converters.complex import Complex, convert as convert_complex, part_type
from .errors import UnsupportedError
from .evaluate import Evaluator
from .float_regions import FloatRegions
from .fold import folded
from .builder import Builder
from .ir import DTYPES, TORCH_DTYPES, GraphError, Origin, RandomId, TensorType, Value, type_of
from .locations import DYNAMIC, location_of
from .regions import checkpoint_of, is_outside_autocast
from .randomness import Randomness
from .registry import Unsupported, converter_for
from .widen import eager_result


class Conversion:
    """The state of the conversion of one FX graph; converters take it as `c`."""

    def __init__(self, builder: Builder, evaluator: Evaluator, rng: Value,
                 random: Randomness = Randomness.DRAWN,
                 groups: Any = None, batch: int = -1):
        self.b = builder
        #: The groups of samples with separate batch statistics, and the size of the batch.
        self.groups = groups
        self.batch = batch
        #: Locations of the operators that compute batch statistics.
        self.batch_statistics: list[tuple[str, int, int] | None] = []
        #: The results of random operators.
        self.random = random
        self.evaluator = evaluator
        self._rng = rng
        self._dropouts = 0
        self._values: dict[torch.fx.Node, Any] = {}
        self._failures: dict[tuple[str, str, str], int] = {}
        #: The type of the operator's result, the operator itself, and its node.
        self.type: TensorType | None = None
        self.target: Any = None
        self.node: torch.fx.Node | None = None

    # Interface of converters --------------------------------------------------

    def new_random_op(self) -> tuple[Value, RandomId]:
        """Returns the argument of the generator's state, and the id of a new op that draws
        random numbers."""
        self._dropouts += 1
        return self._rng, RandomId(self._dropouts - 1)

    def known(self, value: Value) -> torch.Tensor | None:
        """Returns the elements of `value` if they are known at trace time, else None."""
        return self.evaluator.value(value)

    def operand(self, value: Any, dtype: str) -> Value:
        """Returns a value or a number as a value of `dtype`."""
        if isinstance(value, Value):
            return self.b.cast(value, dtype)
        return self.b.scalar(value, dtype)

    def operands(self, *values: Any) -> list[Value]:
        """Returns values and numbers as values of one type, promoted by torch's rules."""
        dtype = DTYPES[promoted(values)]
        return [self.operand(v, dtype) for v in values]

    # Traversal --------------------------------------------------------------------

    def bind(self, node: torch.fx.Node, value: Value) -> None:
        """Sets the value of a placeholder."""
        self._values[node] = value

    def run(self, graph: torch.fx.Graph, wanted: list[bool]) -> list[Any]:
        """Converts the nodes that the wanted outputs depend on; returns the outputs' values, None
        for those that are not wanted. Raises UnsupportedError with all operators that cannot be
        converted."""
        output = next(n for n in reversed(graph.nodes) if n.op == "output")
        outputs = [v if w else None for v, w in zip(output.args[0], wanted, strict=True)]
        live = _live(v for v in outputs if isinstance(v, torch.fx.Node))
        regions = FloatRegions(graph)
        for node in graph.nodes:
            if node.op == "call_function" and node in live:
                self._convert(node, regions.contains(node))
        if self._failures:
            raise UnsupportedError([(*key, n) for key, n in self._failures.items()])
        return [self._argument(v) for v in outputs]

    def _convert(self, node: torch.fx.Node, exact: bool) -> None:
        self.b.location, self.b.origin = location_of(node), _origin_of(node, exact)
        if any(self._values.get(n) is _UNKNOWN for n in node.all_input_nodes):
            # The node that made the unknown operand has been reported.
            self._values[node] = _UNKNOWN
            return
        if node.target is operator.getitem:
            value = self._argument(node.args[0])[node.args[1]]
            if value is None and isinstance(node.meta.get("val"), torch.Tensor):
                # Converters omit results that only backward kernels read.
                self._fail(node.args[0], f"its result {node.args[1]} is not computed")
                value = _UNKNOWN
            self._values[node] = value
            return
        try:
            result = self._call(node)
        except (Unsupported, GraphError) as error:
            self._fail(node, str(error))
            result = _placeholder(node)
        self._values[node] = result

    def _call(self, node: torch.fx.Node) -> Any:
        example = node.meta.get("val")
        if _is_dynamic(example):
            raise Unsupported(DYNAMIC)
        args = [self._argument(a) for a in node.args]
        kwargs = {k: self._argument(v) for k, v in node.kwargs.items()}
        self.target, self.node = node.target, node
        try:
            return self._converted(node, example, args, kwargs)
        except (Unsupported, GraphError):
            result = folded(self, node.target, example, args, kwargs)
            if result is None:
                raise
            return result

    def _converted(self, node: torch.fx.Node, example: Any, args: list, kwargs: dict) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        examples = example if isinstance(example, (list, tuple)) else [example]
        parts = next(filter(None, map(part_type, examples)), None)
        if parts is not None or any(isinstance(x, Complex) for x in leaves):
            self.type = None
            if isinstance(example, torch.Tensor):
                self.type = TensorType(tuple(example.shape), DTYPES[parts or example.dtype])
            return convert_complex(self, node.target, args, kwargs)
        if any(isinstance(x, torch.Tensor) for x in leaves):
            known = folded(self, node.target, example, args, kwargs)
            if known is not None:
                return known
            for kind in filter(None, (not_dense(x) for x in leaves if isinstance(x, torch.Tensor))):
                raise Unsupported(f"an operand {kind}")
            args, kwargs = pytree.tree_map_only(
                torch.Tensor, lambda x: narrow_integers.constant(self, x), (args, kwargs))
        if narrow_integers.is_narrow(example):
            return narrow_integers.convert(self, node.target, example, args, kwargs)
        convert = converter_for(node.target)
        if convert is None:
            raise Unsupported("no conversion")
        self.type = type_of(example) if isinstance(example, torch.Tensor) else None
        narrow = None
        if _computes_in_f32(node.target, example, leaves):
            narrow, self.type = self.type.dtype, self.type.with_dtype("f32")
            args, kwargs = pytree.tree_map_only(
                Value, lambda x: self.b.cast(x, "f32") if x.dtype == narrow else x, (args, kwargs))
        try:
            result = convert(self, *args, **kwargs)
        except TypeError as error:
            if error.__traceback__.tb_next is not None:
                raise
            raise Unsupported(f"arguments {error}") from None
        if narrow is not None and isinstance(result, Value) and result.dtype == "f32":
            self.type = self.type.with_dtype(narrow)
            result = self.b.cast(result, narrow)
        if self.type is not None and isinstance(result, Value) and result.type != self.type:
            raise GraphError(f"converted to {result.type}, where torch gives {self.type}; "
                             "this is a defect of the front end")
        return result

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self._values[argument]
        if isinstance(argument, (list, tuple)):
            return type(argument)(self._argument(a) for a in argument)
        return argument

    def _fail(self, node: torch.fx.Node, reason: str) -> None:
        location = location_of(node)
        place = f"{location[0]}:{location[1]}" if location else "<unknown>"
        target = node.target
        if target is torch.ops.higher_order.with_effects:
            # A check, which stays in the graph although its result is unused.
            target = node.args[1]
            reason = "it is called only for its side effect, which is not compiled"
        key = (str(target), reason, place)
        self._failures[key] = self._failures.get(key, 0) + 1


def _origin_of(node: torch.fx.Node, exact: bool) -> Origin:
    """Returns the origin of the ops of a node. Ops that eager code computes in f32 because of a
    cast (`exact`) or under autocast(enabled=False) require f32."""
    stack = node.meta.get("nn_module_stack")
    path = [*stack.values()][-1][0] if stack else ""
    exact |= is_outside_autocast(node) and all(
        x.dtype == torch.float32 for x in pytree.tree_leaves(eager_result(node))
        if isinstance(x, torch.Tensor) and x.is_floating_point())
    return Origin(path.removeprefix("module").removeprefix("."), checkpoint_of(node),
                  "f32" if exact else None)


def _computes_in_f32(target: Any, example: Any, leaves: list[Any]) -> bool:
    """Returns whether an element-wise operator of a 16-bit type has a number as an operand that the
    type cannot represent: eager code rounds only the result, not the number."""
    return (isinstance(example, torch.Tensor) and example.dtype in (torch.float16, torch.bfloat16)
            and torch.Tag.pointwise in getattr(target, "tags", ())
            and any(isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)
                    and torch.tensor(float(x)).to(example.dtype).item() != x for x in leaves))


def _live(outputs: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """Returns the nodes that `outputs` depend on, including themselves."""
    live, pending = set(), [*outputs]
    while pending:
        node = pending.pop()
        if node not in live:
            live.add(node)
            pending.extend(node.all_input_nodes)
    return live


#: The value of a node without a static shape.
_UNKNOWN = object()


def _is_dynamic(example: Any) -> bool:
    """Returns whether an example result is a tensor without a static shape or a symbolic number."""
    if isinstance(example, torch.Tensor):
        return not all(isinstance(d, int) for d in example.shape)
    if isinstance(example, (list, tuple)):
        return any(map(_is_dynamic, example))
    return isinstance(example, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _placeholder(node: torch.fx.Node) -> Any:
    """Returns values of the right types for a node that failed, so that conversion goes on
    and reports further failures."""
    if _is_dynamic(node.meta.get("val")):
        return _UNKNOWN

    def make(example: Any) -> Any:
        if isinstance(example, torch.Tensor):
            dtype = DTYPES.get(example.dtype, "f32")
            return Value(TensorType(tuple(int(d) for d in example.shape), dtype))
        if isinstance(example, (list, tuple)):
            return tuple(make(e) for e in example)
        return example
    return make(node.meta.get("val"))


def promoted(values: Any) -> torch.dtype:
    """Returns the element type that torch's promotion gives for these values and numbers."""
    def example(value: Any) -> Any:
        if isinstance(value, Value):
            shape = (1,) if value.type.rank else ()
            return torch.empty(shape, dtype=TORCH_DTYPES[value.dtype], device="meta")
        return value
    examples = [example(v) for v in values]
    tensors = [e for e in examples if isinstance(e, torch.Tensor)]
    result: Any = examples[0]
    for other in examples[1:]:
        result = torch.empty(
            _wider(result, other), dtype=torch.result_type(result, other), device="meta")
    return result.dtype if tensors else torch.get_default_dtype()


def _wider(a: Any, b: Any) -> tuple[int, ...]:
    return (1,) if any(isinstance(x, torch.Tensor) and x.dim() for x in (a, b)) else ()
