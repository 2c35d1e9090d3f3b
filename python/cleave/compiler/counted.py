# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Eager code on the random numbers of `Randomness.COUNTED`, which a compiled program has in the
comparison with it: dropout keeps all elements, and other numbers follow from their places."""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any, Callable, Iterator, ParamSpec, TypeVar
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from ..trace.randomness import counted

P = ParamSpec("P")
R = TypeVar("R")

#: Functions of torch that have dropout within, which the front end converts as dropout.
_DROPOUTS = {"dropout", "dropout1d", "dropout2d", "dropout3d", "native_dropout", "feature_dropout",
             "scaled_dot_product_attention", "multi_head_attention_forward", "lstm", "gru",
             "rnn_tanh", "rnn_relu"}


def _uniform(like: torch.Tensor, shape: Any = None) -> torch.Tensor:
    """Uniform numbers for the result `like`, at least in f32."""
    numbers = counted(tuple(like.shape if shape is None else shape), like.device)
    return numbers.double() if like.dtype == torch.float64 else numbers


def _normal(like: torch.Tensor) -> torch.Tensor:
    u = _uniform(like)
    return (-2 * torch.log(1 - u)).sqrt() * torch.sin(2 * math.pi * u)


def _exponential(like: torch.Tensor, rate: float = 1.0) -> torch.Tensor:
    left = 1 - _uniform(like)
    least = torch.finfo(left.dtype).eps / 2
    return torch.where(left >= 1 - least, -least, torch.log(left)) * (-1 / rate)


def _geometric(like: torch.Tensor, p: float) -> torch.Tensor:
    return torch.floor(torch.log1p(-_uniform(like)) / math.log1p(-p)) + 1


def _cauchy(like: torch.Tensor, median: float = 0.0, sigma: float = 1.0) -> torch.Tensor:
    angle = (_uniform(like) - 0.5) * math.pi
    return torch.sin(angle) / torch.cos(angle) * sigma + median


def _integers(like: torch.Tensor, low: int, high: int) -> torch.Tensor:
    return torch.floor(_uniform(like) * (high - low)) + low


def _multinomial(weights: torch.Tensor, count: int, replacement: bool) -> torch.Tensor:
    weights = weights if weights.dtype == torch.float64 else weights.float()
    if not replacement or count == 1:
        return (weights / _exponential(weights)).sort(
            dim=-1, descending=True, stable=True)[1][..., :count]
    sums = weights.cumsum(-1)
    total = sums[..., -1:]
    drawn = _uniform(weights, (*weights.shape[:-1], count)) * total
    passed = (sums[..., None, :] <= drawn[..., None]) & (sums < total)[..., None, :]
    return passed.sum(-1)


def _rrelu(x: torch.Tensor, noise: torch.Tensor, low: float, high: float) -> torch.Tensor:
    slope = (_uniform(x) * (high - low) + low).to(x.dtype)
    return x * noise.copy_(torch.where(x <= 0, slope, 1))


#: What operators write in place, of the operand and the further arguments.
_IN_PLACE: dict[str, Callable[..., torch.Tensor]] = {
    "uniform_": lambda x, low=0.0, high=1.0: _uniform(x) * (high - low) + low,
    "normal_": lambda x, mean=0.0, std=1.0: _normal(x) * std + mean,
    "log_normal_": lambda x, mean=1.0, std=2.0: torch.exp(_normal(x) * std + mean),
    "exponential_": lambda x, lambd=1.0: _exponential(x, lambd),
    "geometric_": _geometric,
    "cauchy_": _cauchy,
    "bernoulli_": lambda x, p=0.5: _uniform(x) < p,
}
#: What operators return, of their result and arguments.
_RETURNED: dict[str, Callable[..., torch.Tensor]] = {
    "rand": lambda out, *_: _uniform(out),
    "rand_like": lambda out, *_: _uniform(out),
    "randn": lambda out, *_: _normal(out),
    "randn_like": lambda out, *_: _normal(out),
    "normal": lambda out, mean=0.0, std=1.0, *_: _normal(out) * std + mean,
    "randperm": lambda out, *_: torch.argsort(_uniform(out)),
}


class _CountedNumbers(TorchDispatchMode):
    """Replaces the results of random operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        #: The number of calls of functions with dropout that are running.
        self.dropouts = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        given = {k: v for k, v in kwargs.items() if k in ("p", "mean", "std", "lambd", "median",
                                                          "sigma", "from", "to")}
        if name == "bernoulli_" and self.dropouts:
            # Dropout divides its draw by the probability of keeping.
            return args[0].fill_(args[1] if len(args) > 1 else given.get("p", 0.5))
        if name == "uniform_":
            low = args[1] if len(args) > 1 else 0.0
            high = args[2] if len(args) > 2 else 1.0
            return args[0].copy_(_IN_PLACE[name](args[0], given.get("from", low),
                                                 given.get("to", high)))
        if name == "random_" and len(args) > 1 and args[-1] is not None:
            return args[0].copy_(_integers(args[0], *(args[1:] if len(args) > 2 else (0, args[1]))))
        if name in ("rrelu_with_noise", "rrelu_with_noise_") and args[4]:
            out = _rrelu(*args[:4])
            return args[0].copy_(out) if name.endswith("_") else out
        if name == "native_dropout" and args[2] is not False and 0 < args[1] < 1:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if name == "native_dropout_backward":
            return args[0] * args[1]
        if name == "multinomial":
            replacement = args[2] if len(args) > 2 else kwargs.get("replacement", False)
            return _multinomial(args[0], args[1] if len(args) > 1 else kwargs["num_samples"],
                                replacement)
        if name in _IN_PLACE:
            return args[0].copy_(_IN_PLACE[name](*args, **given))
        if name == "bernoulli":
            p = args[0] if function is torch.ops.aten.bernoulli.default else \
                args[1] if len(args) > 1 else given["p"]
            return (_uniform(args[0]) < p).to(args[0].dtype)
        out = function(*args, **kwargs)
        if name in ("randint", "randint_like"):
            bounds = [x for x in args if isinstance(x, int)]
            return out.copy_(_integers(out, *(bounds if len(bounds) > 1 else [0, *bounds])))
        if name in _RETURNED:
            own = args if name == "normal" else ()
            return out.copy_(_RETURNED[name](out, *own, **(given if name == "normal" else {})))
        return out


class _Dropouts(TorchFunctionMode):
    """Tells `numbers` which functions have dropout within."""

    def __init__(self, numbers: _CountedNumbers) -> None:
        super().__init__()
        self._numbers = numbers

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        name = getattr(function, "__name__", "")
        # In place, it is converted as the draw and the product that it is.
        written = name.startswith("dropout") and (
            (kwargs or {}).get("inplace") or (len(args) > 3 and args[3]))
        within = name in _DROPOUTS and not written
        self._numbers.dropouts += within
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self._numbers.dropouts -= within


@contextlib.contextmanager
def _recomputed_under(mode: Callable[[], TorchFunctionMode]) -> Iterator[None]:
    """Context manager under which regions of torch.utils.checkpoint recompute under a mode: the
    backward of an operator has the modes in which it ran, without those that handled its call."""
    begin, backward = checkpoint._CheckpointFrame.__init__, checkpoint.CheckpointFunction.backward

    def under(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with mode():
                return function(*args, **kwargs)
        return run

    def begun(frame: Any, recompute: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        begin(frame, under(recompute), *args, **kwargs)

    with mock.patch.object(checkpoint._CheckpointFrame, "__init__", begun), \
            mock.patch.object(checkpoint.CheckpointFunction, "backward",
                              staticmethod(under(backward))):
        yield


@contextlib.contextmanager
def counted_numbers() -> Iterator[None]:
    """Context manager under which eager code has the random numbers of `Randomness.COUNTED`."""
    numbers = _CountedNumbers()
    with numbers, _Dropouts(numbers), _recomputed_under(lambda: _Dropouts(numbers)):
        yield
