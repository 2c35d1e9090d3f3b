# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Plans: shardings that a person asks for, in the compiler's form."""

from __future__ import annotations

import os
import re
from typing import Any, Mapping, Sequence

#: The axis of pipeline positions, which hold different tensors.
PIPELINE = "pp"

#: The name of an axis of a mesh.
AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class P:
    """The sharding of a tensor's dimensions over a mesh, in the framework's shape.

    Each dimension is an axis ("tp"), several axes major to minor (("dp", "tp")), or
    None if it is replicated: `P("tp", None)` shards the rows of a matrix. Every
    dimension must be given: `P("tp")` is an error for a matrix.

    Raises:
        TypeError: a dimension is something else.
        ValueError: a name is not an identifier, or an axis is named twice.
    """

    def __init__(self, *dims: str | Sequence[str] | None) -> None:
        self.dims = tuple(_dim(dim) for dim in dims)
        axes = [axis for dim in self.dims for axis in dim]
        for axis in axes:
            if axes.count(axis) > 1:
                raise ValueError(f'{self!r} names axis "{axis}" twice')

    def __eq__(self, other: object) -> bool:
        return isinstance(other, P) and self.dims == other.dims

    def __hash__(self) -> int:
        return hash(self.dims)

    def __repr__(self) -> str:
        def show(dim: tuple[str, ...]) -> str:
            if len(dim) > 1:
                return repr(dim)
            return repr(dim[0]) if dim else "None"

        return f"P({', '.join(map(show, self.dims))})"

    def __str__(self) -> str:
        """In the form of `cleave-compile --plan`: `[tp,-]`."""
        return "[" + ",".join("+".join(dim) or "-" for dim in self.dims) + "]"


def _dim(dim: Any) -> tuple[str, ...]:
    if dim is None:
        return ()
    axes = (dim,) if isinstance(dim, str) else dim
    if not isinstance(axes, (tuple, list)) or not all(
        isinstance(axis, str) for axis in axes
    ):
        raise TypeError(f"{dim!r} is not an axis's name, a tuple of such, or None")
    for axis in axes:
        if not AXIS.fullmatch(axis):
            raise ValueError(f"{axis!r} is not the name of an axis")
    return tuple(axes)


def entries(plan: Any, model: object) -> list[str]:
    """`plan` as a list of recipes and shardings in the compiler's form.

    If the plan has "hf", `model` must have a `tp_plan`.

    Raises:
        TypeError: the plan is of another kind.
        ValueError: "hf", and the model has no plan.
    """
    if plan is None:
        return []
    if isinstance(plan, os.PathLike):
        plan = os.fspath(plan)
        if not plan.endswith(".plan"):
            raise ValueError(f"plan is the path {plan!r}; the name of a plan file ends with .plan")
    if isinstance(plan, (str, Mapping)):
        plan = [plan]
    if not isinstance(plan, Sequence):
        raise TypeError(_wrong(plan))
    result = []
    for part in plan:
        if isinstance(part, Mapping):
            result += _placements(part)
        elif part == "hf":
            result += _hints(model)
        elif isinstance(part, str):
            result.append(part)
        else:
            raise TypeError(_wrong(part))
    return result


def _wrong(plan: object) -> str:
    return (
        f"plan is {plan!r}, not a recipe's name, a dict of names and cleave.P(...), "
        "a list of such, or the path of a plan file"
    )


def _placements(places: Mapping[Any, Any]) -> list[str]:
    result = []
    for pattern, place in places.items():
        if not isinstance(pattern, str) or not isinstance(place, P):
            raise TypeError(
                f"plan places {pattern!r} as {place!r}; write "
                f'{{"layers.*.weight": cleave.P("tp", None)}}'
            )
        result.append(f"{pattern}={place}")
    return result


#: The sharding of a module's weight and bias for the words of a model's `tp_plan`, as
#: (out features, in features) or (entries, features). Other words refer to activations,
#: which propagation decides.
_WORDS = {
    "colwise": ("[tp,-]", "[tp]"),
    "colwise_rep": ("[tp,-]", "[tp]"),
    "colwise_gather_output": ("[tp,-]", "[tp]"),
    "packed_colwise": ("[tp,-]", "[tp]"),
    "local_colwise": ("[tp,-]", "[tp]"),
    "rowwise": ("[-,tp]", "[-]"),
    "rowwise_rep": ("[-,tp]", "[-]"),
    "rowwise_split_input": ("[-,tp]", "[-]"),
    "local_rowwise": ("[-,tp]", "[-]"),
    "embedding_rowwise": ("[tp,-]", None),
    "embedding_colwise": ("[-,tp]", None),
}


def _hints(model: object) -> list[str]:
    plan = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
    if not isinstance(plan, Mapping) or not plan:
        raise ValueError(
            f'plan="hf": {type(model).__name__} has no tp_plan; '
            'plan="megatron" shards the same over "tp" without one'
        )
    result = []
    for module, word in plan.items():
        weight, bias = _WORDS.get(word, (None, None))
        if weight:
            result.append(f"{module}.weight?={weight}")
        if bias:
            result.append(f"{module}.bias?={bias}")
    return result
