# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Custom autograd functions (torch.autograd.Function).

Their forwards are differentiated as ordinary tensor code; a custom backward that is not the
derivative of its forward is refused.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import torch
from torch.utils import _pytree as pytree

from .errors import EagerError
from .locations import current_line
from .memory import map_tensors
from .patches import without_buffer_writes


class _Context:
    """The `ctx` passed to a function that is differentiated as ordinary tensor code."""

    needs_input_grad = ()

    def save_for_backward(self, *tensors):
        pass

    mark_dirty = mark_non_differentiable = save_for_forward = save_for_backward
    set_materialize_grads = save_for_backward


def _forward(cls, args):
    """Runs the forward of a function as ordinary tensor code, which autograd differentiates."""
    if cls.setup_context is torch.autograd.function._SingleLevelFunction.setup_context:
        return cls.forward(_Context(), *args)
    return cls.forward(*args)


@dataclasses.dataclass
class _Shape:
    """The shape of a floating-point argument."""

    sizes: tuple[int, ...]


@dataclasses.dataclass
class FunctionUse:
    """A call of a custom autograd function, which is checked after the trace."""

    function: type
    #: The arguments; floating-point tensors are replaced by their shapes.
    args: tuple[Any, ...]
    place: str


def apply_function(original: Callable[..., Any], uses: list[FunctionUse],
                   module: torch.nn.Module, checkpoint: Callable[[], Any]) -> classmethod:
    """Returns the replacement of `torch.autograd.Function.apply` in a trace; a checkpointed
    function is called in the context `checkpoint()`."""
    from torch.utils.checkpoint import CheckpointFunction

    def apply(cls, *args, **kwargs):
        graded = torch.is_grad_enabled() and any(
            isinstance(x, torch.Tensor) and x.requires_grad
            for x in pytree.tree_leaves((args, kwargs)))
        if cls is CheckpointFunction:
            # Checkpoint with use_reentrant=True recomputes its function in backward, with equal
            # values. If no argument has a gradient, no result has one.
            function, _, *rest = args
            if not graded:
                with torch.no_grad():
                    return function(*rest)
            with without_buffer_writes(module), checkpoint():
                return function(*rest)
        if graded and not cls.__module__.startswith("torch."):
            shapes = map_tensors(
                lambda x: _Shape(tuple(x.shape)) if x.is_floating_point() else x, args)
            uses.append(FunctionUse(cls, shapes, current_line()))
            return _forward(cls, args)
        return original.__func__(cls, *args, **kwargs)

    return classmethod(apply)


def check_functions(uses: list[FunctionUse]) -> None:
    """Raises EagerError if a function's backward is not the derivative of its forward, which a
    compiled step computes. Both are compared in f64 at random points, with small and large
    arguments and gradients, some of which are zero."""
    for use in uses:
        try:
            same = all(_is_derivative(use, *sizes, seed) for seed, sizes in enumerate(_SIZES))
        except Exception:
            same = False
        if not same:
            raise EagerError(
                f"{use.place}{use.function.__qualname__} is an autograd.Function whose backward "
                "is not the derivative of its forward, and a compiled step does not run it. Write "
                "it as ordinary tensor code: x + (f(x) - x).detach() has the value of f(x) and "
                "the gradient of x, 2 * x.detach() - x reverses a gradient")


#: The scales of arguments and of gradients.
_SIZES = ((0.1, 0.1), (1.0, 1.0), (10.0, 10.0), (1.0, 1e-6), (1.0, 1e-3), (1.0, 1e4), (1e3, 1.0))


def _is_derivative(use: FunctionUse, size: float, gradients: float, seed: int) -> bool:
    """Returns whether the backward of a function equals the derivative of its forward at one random
    point, with arguments of scale `size` and result gradients of scale `gradients`."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(shape, size):
        found = torch.randn(shape, generator=generator, dtype=torch.float64) * size
        zero = torch.rand(shape, generator=generator) < (0.25 if seed % 2 else 0.0)
        return found.masked_fill(zero, 0.0)

    args = map_tensors(lambda s: drawn(s.sizes, size).requires_grad_(), use.args, _Shape)
    points = [x for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
    found = []
    for compute in (use.function.apply, lambda *a: _forward(use.function, a)):
        outputs = [y for y in pytree.tree_leaves(compute(*args)) if isinstance(y, torch.Tensor)]
        state = generator.get_state()
        drawn_gradients = [drawn(y.shape, gradients) for y in outputs]
        found.append(torch.autograd.grad(outputs, points, drawn_gradients, allow_unused=True))
        generator.set_state(state)
    return all((a is None) == (b is None) and (a is None or torch.allclose(
        a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))) for a, b in zip(*found))
