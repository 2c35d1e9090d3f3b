# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The samples of PyTorch's own operator database, `op_db`.

An operator's name is that of the database with its variant, `div.floor_rounding`;
a sample's is that with its number, `div.floor_rounding#3`.
"""

import dataclasses
import random
import sys
import types
import unittest
from typing import Any, Callable

import pytest
import torch
from torch.utils import _pytree as pytree

#: Families of operators that are left out: mathematics of matrices, of the spectrum
#: and of complex and sparse tensors, none of which the graph dialect holds.
NAMESPACES = ("linalg", "fft", "special", "sparse")

#: Operators that are left out, and why no comparison is made.
LEFT_OUT = {
    **dict.fromkeys(
        ("cdouble", "cfloat", "chalf", "complex", "polar", "view_as_complex", "stft"),
        "complex numbers"),
    "to_sparse": "a sparse tensor",
    **dict.fromkeys(
        ("bernoulli", "normal", "normal.number_mean", "nn.functional.alpha_dropout",
         "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
         "nn.functional.feature_alpha_dropout.with_train",
         "nn.functional.feature_alpha_dropout.without_train",
         "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
         "nn.functional.multi_head_attention_forward", "nn.functional.rrelu",
         "pca_lowrank", "svd_lowrank"),
        "random numbers: those of torch are others"),
    **dict.fromkeys(
        ("_softmax_backward_data", "max_pool2d_with_indices_backward",
         "native_dropout_backward"),
        "a gradient, which differentiation builds itself"),
}


#: Operators whose results are limits of the type: torch computes these in f32 as well.
IN_SINGLE = {"nan_to_num"}


def database():
    """The operators of the database that are looked at, by name, in its order."""
    # What it imports for tests of its own, and does not use here.
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ImportError:
            module = types.ModuleType("expecttest")
            module.TestCase = unittest.TestCase
            sys.modules["expecttest"] = module
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if (op.supports_autograd and torch.float32 in op.supported_dtypes("cpu")
                and op.name.split(".")[0] not in NAMESPACES and name not in LEFT_OUT):
            found[name] = op
    return found


@pytest.fixture(scope="module")
def operators():
    """The database, whose operators run in one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield database()
    torch.set_num_threads(threads)


@dataclasses.dataclass
class Sample:
    """One call of an operator: `function(leaves)` gives its tensors."""

    name: str
    #: The tensors given, each once.
    leaves: list[torch.Tensor]
    #: Whether each of them is differentiated.
    trained: list[bool]
    call: Callable[[list[torch.Tensor]], Any]

    def outputs(self, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of the result."""
        return [x for x in pytree.tree_leaves(self.call(leaves)) if isinstance(x, torch.Tensor)]


def samples(op, name: str) -> list[Sample]:
    """The samples of an operator; the same ones in every process."""
    torch.manual_seed(0)
    given = op.sample_inputs("cpu", torch.float32, requires_grad=True)
    return [_sample(op, f"{name}#{i}", (s.input, s.args, s.kwargs))
            for i, s in enumerate(given)]


#: Samples of one operator that are tried at most: some have more than a thousand.
MOST = 64


def tried(op, name: str) -> list[Sample]:
    """The samples of an operator, or as many drawn by a seed, and those at edges."""
    own = samples(op, name)
    if len(own) > MOST:
        own = random.Random(name).sample(own, MOST)
    return own + edge_samples(op, name)


#: What element-wise functions and reductions turn at.
EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.0, 2.5, -2.5, 3.0, 1e-30, -1e-30, 1e-6, 20.0, -20.0,
         100.0, -100.0, float("inf"), float("-inf"), float("nan"), 1.0)


#: Operators whose gradient at NaN is one thing where torch computes with vectors, and
#: another in what is left of them.
WITHOUT_NAN = {"nn.functional.softshrink"}


def edge_samples(op, name: str) -> list[Sample]:
    """An element-wise operator at edges; with two operands, at each pair of them."""
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    edges = torch.tensor([x for x in EDGES if name not in WITHOUT_NAN or x == x])
    if isinstance(op, UnaryUfuncInfo):
        operands = [edges]
    elif isinstance(op, BinaryUfuncInfo):
        operands = [x.reshape(-1).clone() for x in torch.meshgrid(edges, edges, indexing="ij")]
    else:
        return []
    first = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=True)))
    return [_sample(op, f"{name}#edges", (operands[0].requires_grad_(),
                                          tuple(x.requires_grad_() for x in operands[1:])
                                          or first.args, first.kwargs))]


def _sample(op, name: str, tree: Any) -> Sample:
    values, spec = pytree.tree_flatten(tree)
    leaves: list[torch.Tensor] = []
    trained: list[bool] = []
    places: dict[int, int] = {}
    which: list[int | None] = []
    for value in values:
        if not isinstance(value, torch.Tensor):
            which.append(None)
            continue
        if id(value) not in places:
            places[id(value)] = len(leaves)
            leaves.append(value.detach().clone())
            trained.append(value.requires_grad and value.is_floating_point())
        which.append(places[id(value)])
    changes = op.name.endswith("_") and not op.name.endswith("__")

    def call(given: list[torch.Tensor]) -> Any:
        own = [v if i is None else given[i] for v, i in zip(values, which)]
        first, args, kwargs = pytree.tree_unflatten(own, spec)
        if changes:
            first = first.clone()
        return op(first, *args, **kwargs)

    return Sample(name, leaves, trained, call)
