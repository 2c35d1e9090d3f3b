# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Random numbers of Python and NumPy, which a compiled step would draw once for all steps. They are
refused, but for one that is compared with a bound which it is always on one side of: a layer that
is left out with probability 0."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any, Callable, Iterator

import numpy as np

from .errors import EagerError
from .patches import patched

_REFUSED = ("the forward draws random numbers of Python or NumPy, which a compiled step would draw "
            "once for all steps; draw them by torch")


class _Uniform:
    """A number of an unknown value from `low` to `high`, both included."""

    def __init__(self, low: float, high: float):
        self._low, self._high = low, high

    def __lt__(self, other: Any) -> bool:
        return self._compared(other, self._high < other, self._low >= other)

    def __le__(self, other: Any) -> bool:
        return self._compared(other, self._high <= other, self._low > other)

    def __gt__(self, other: Any) -> bool:
        return self._compared(other, self._low > other, self._high <= other)

    def __ge__(self, other: Any) -> bool:
        return self._compared(other, self._low >= other, self._high < other)

    def _compared(self, other: Any, true: bool, false: bool) -> bool:
        if not isinstance(other, (int, float)) or not (true or false):
            raise EagerError(_REFUSED)
        return true


def _refuse(*_: Any) -> Any:
    raise EagerError(_REFUSED)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod"):
    setattr(_Uniform, f"__{_name}__", _refuse)
    setattr(_Uniform, f"__r{_name}__", _refuse)
for _name in ("eq", "ne", "bool", "float", "int", "index", "abs", "neg", "pos", "round", "trunc",
              "floor", "ceil", "format", "str", "hash", "complex"):
    setattr(_Uniform, f"__{_name}__", _refuse)


def _range(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, float] | None:
    """Returns the least and the greatest number that a function draws; None if it does not draw
    one uniform number."""
    if name in ("random", "rand", "random_sample", "ranf", "sample") and not args and not kwargs:
        return 0.0, 1.0
    if name == "uniform":
        names = ("low", "high") if kwargs.keys() & {"low", "high"} or not kwargs else ("a", "b")
        given = dict(zip(names, args)) | kwargs
        if given.keys() <= set(names) and len(args) <= 2 \
                and all(isinstance(x, (int, float)) for x in given.values()):
            bounds = given.get(names[0], 0.0), given.get(names[1], 1.0)
            return min(bounds), max(bounds)
    return None


@contextlib.contextmanager
def only_torch_random_numbers() -> Iterator[None]:
    """Context manager that restores the random states of Python and NumPy. Raises EagerError, on
    exit or where they are used, if the code has drawn random numbers from these."""
    before = random.getstate(), np.random.get_state()
    places: list[str] = []
    drawing = [(owner, name, _recording_calls(name, vars(owner)[name], places))
               for owner, methods in ((random, random.Random), (np.random, np.random.RandomState))
               for name in vars(owner).keys() & set(dir(methods))
               if name[0] != "_" and "state" not in name]
    try:
        with patched(*drawing):
            yield
        drawn = random.getstate() != before[0] or any(
            np.any(a != b) for a, b in zip(np.random.get_state(), before[1]))
    except TypeError as error:
        if "_Uniform" in str(error):
            # A function of torch takes no such number. The traceback has its line.
            raise EagerError(_REFUSED).with_traceback(error.__traceback__) from error
        raise
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
    if drawn:
        raise EagerError("".join(places[:1]) + _REFUSED)


def _recording_calls(name: str, function: Callable[..., Any],
                     places: list[str]) -> Callable[..., Any]:
    """Returns `function` with the lines of its calls appended to `places`, as `file:line: `. One
    uniform number is not drawn."""
    def called(*args, **kwargs):
        bounds = _range(name, args, kwargs)
        if bounds is not None:
            return _Uniform(*bounds)
        frame = sys._getframe(1)
        places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}: ")
        return function(*args, **kwargs)
    return called
