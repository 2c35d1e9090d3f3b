# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Recorded updates as functions of the module `@updates`."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from .recording import Call, Key, Recording, Refused

Tensors = Sequence[torch.Tensor]


def _scaled(x: Any, factor: Any) -> Any:
    return x if isinstance(factor, (int, float)) and factor == 1 else x * factor


#: Operators with numbers, by operators of tensors alone: torch/_refs and the operators' documentation.
_NUMBERED: dict[str, Callable[..., Any]] = {
    "add": lambda a, b, alpha=1: a + _scaled(b, alpha),
    "sub": lambda a, b, alpha=1: a - _scaled(b, alpha),
    "rsub": lambda a, b, alpha=1: b - _scaled(a, alpha),
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "addcmul": lambda a, b, c, value=1: a + _scaled(b, value) * c,
    "addcdiv": lambda a, b, c, value=1: a + _scaled(b, value) / c,
    "lerp": lambda a, b, weight: a + weight * (b - a),
}


def replayed(recording: Recording, names: Sequence[str], parameter: torch.Tensor, gradient: torch.Tensor,
             state: Tensors, numbers: Sequence[Any]) -> list[torch.Tensor]:
    """The new parameter and the new state `names` of a recorded step, whose state before was `state`;
    `numbers` are in the place of those of its calls, one for each site."""
    values: dict[Key, torch.Tensor] = {recording.parameter: parameter, recording.gradient: gradient}
    values.update((recording.state[name], value) for name, value in zip(names, state) if name in recording.state)
    given = iter(numbers)
    for call in recording.calls:
        leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
        for place, key in enumerate(call.keys):
            if place in call.sites:
                leaves[place] = next(given)
            elif key is not None:
                leaves[place] = _value_of(values, key, call)
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        result = _run(call, args, kwargs, parameter.dtype)
        for old, new in zip(call.made, (x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor))):
            values[old] = new
    ends = [recording.new_parameter, *(recording.new_state[name] for name in names)]
    if not all(end in values for end in ends):
        raise Refused("the update ends with a tensor that none of its operators has made")
    return [values[end] for end in ends]


def _value_of(values: dict[Key, torch.Tensor], key: Key, call: Call) -> torch.Tensor:
    if (value := values.get(key)) is not None:
        return value
    raise Refused(f"{call.place}the update reads a tensor that is neither of its parameter nor of its state, or "
                  "a part of one that it has written to")


def _run(call: Call, args: Any, kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    writes = call.target._schema.is_mutable
    if call.name in _NUMBERED:
        if "rounding_mode" in kwargs:
            raise Refused(f"{call.place}the update divides and rounds")
        result = _NUMBERED[call.name](*args, **kwargs)
        return args[0].copy_(result) if writes else result
    if kwargs.get("dtype") == torch.float32 or "device" in kwargs:
        # The replay may run in f64, and where there are values.
        kwargs = {name: dtype if name == "dtype" and value == torch.float32 else value
                  for name, value in kwargs.items() if name not in ("device", "pin_memory", "layout")}
        kwargs["device"] = torch.device("cpu")
    return call.target(*args, **kwargs)


def write(name: str, function: Callable[..., list[torch.Tensor]], shape: Sequence[int],
          state: Mapping[str, Sequence[int]], numbers: Sequence[str], path: str) -> str:
    """The text of the function `name` that computes as `function(parameter, gradient, state, numbers)`. Raises
    Refused for an operator that has no conversion, with its line."""
    from ...trace.builder import Builder
    from ...trace.convert import Conversion
    from ...trace.errors import UnsupportedError
    from ...trace.evaluate import Evaluator
    from ...trace.ir import Argument, Function, Result, TensorType, Value
    from ...trace.printer import Printer

    def flat(*values: torch.Tensor) -> list[torch.Tensor]:
        own = list(values)
        return function(own[0].clone(), own[1].clone(), [x.clone() for x in own[2:2 + len(state)]],
                        own[2 + len(state):])

    examples = [torch.empty(tuple(size)) for size in (shape, shape, *state.values())]
    examples += [torch.empty(()) for _ in numbers]
    with torch.no_grad():
        graph = make_fx(torch.func.functionalize(flat), tracing_mode="fake")(*examples).graph
    builder = Builder()
    conversion = Conversion(builder, Evaluator({}), Value(TensorType((2,), "i64")))
    roles = ["parameter", "gradient", *["state"] * len(state), *["scalar"] * len(numbers)]
    arguments = []
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    for node, own, role, example in zip(nodes, ["", "", *state, *numbers], roles, examples, strict=True):
        value = Value(TensorType(tuple(example.shape), "f32"))
        arguments.append(Argument(value, own or role, role))
        conversion.bind(node, value)
    try:
        values = conversion.run(graph, [True] * (1 + len(state)))
    except UnsupportedError as error:
        raise Refused(f"{path}the update has an operator that is not compiled: {error}") from None
    for op in builder.ops:
        op.location = None
    written = Function(name, arguments, builder.ops, [Result(v, n) for v, n in zip(values, ["", *state])])
    printer = Printer(named=True)
    printer.add(written)
    return printer.text().split("\n", 1)[1].rsplit("}", 1)[0]
