# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Conditions on the values of tensors, of which one branch only raises: they become checks of the
step.

A trace has no values, so a forward is traced once for each sequence of decisions, until each
decision has been taken both ways. A decision that raises becomes a check. All sequences that
return must compute the same; otherwise the condition is refused at its line.

A condition of which one branch goes on to the next pass of a loop may skip what would compute
nothing, as that of an expert which no token chose. The forward is then traced without skipping, and
once skipping all; `expert_loops` decides whether both compute the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import linecache
import operator
import os
import re
import sys
import types
from typing import Any, Callable, Iterator

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor

from .errors import TraceError
from .locations import LIBRARY, VALUES, current_frame, current_place
from .patches import patched

#: The most decisions of one forward, and the most traces.
DECISIONS, TRACES = 256, 256

#: Parts of torch whose code raises errors of a model.
_RAISING = tuple(LIBRARY + part + os.sep for part in ("distributions", "nn"))
#: How values that a trace does not have are written in a message.
_UNKNOWN = re.compile(r"FakeTensor\(\.\.\., (?:[^()]|\([^()]*\))*\)|\b(?:u|zuf)\d+\b")


@dataclasses.dataclass
class Decision:
    """The branch that a forward takes at a condition."""

    #: The condition, a scalar.
    value: torch.Tensor | None
    #: File and line of the condition.
    place: tuple[str, int] | None
    taken: bool

    def line(self) -> str:
        return "" if self.place is None else f"{self.place[0]}:{self.place[1]}: "


@dataclasses.dataclass(frozen=True)
class Check:
    """A check of the step: not all of the conditions have these values."""

    #: Indices of conditions, and their values.
    conditions: tuple[tuple[int, bool], ...]
    place: tuple[str, int] | None
    message: str


class Conditions:
    """The decisions of a forward. The first ones are given by `explored`."""

    def __init__(self) -> None:
        self.path: list[Decision] = []
        self.checks: list[Check] = []
        #: The decisions not to skip the rest of a pass of a loop, and what `explored` has traced
        #: with these taken the other way; None if there are none.
        self.skips: list[Decision] = []
        self.skipped: Any = None
        #: The numbers and texts that the code has at each of these decisions.
        self._states: list[Any] = []
        #: Whether to skip such passes; None: these decisions are among those of `path`.
        self._skip: bool | None = None
        #: Whether a decision was made that may be such a one.
        self._may_skip = False
        self._given: list[bool] = []
        #: The tensors that numbers (.item()) in the code are read from, by their symbols.
        self._numbers: dict[Any, torch.Tensor] = {}

    @property
    def decides(self) -> bool:
        """Whether the forward depends on conditions."""
        return bool(self.path or self.checks or self.skips)

    def begin(self) -> None:
        """Begins a trace of the forward."""
        self.path, self.skips, self._states, self._numbers = [], [], [], {}

    def decide(self, value: torch.Tensor) -> bool:
        """Returns the branch to take at a condition on a tensor of one element."""
        place = current_place()
        value = value.detach().reshape(())
        value = value if value.dtype == torch.bool else value != 0
        stays = _stays_in_pass(*_instructions(current_frame()))
        self._may_skip |= stays is not None
        if self._skip is not None and stays is not None:
            return self._goes_on(value, place, stays)
        if len(self.path) < len(self._given):
            decision = Decision(value, place, self._given[len(self.path)])
        else:
            decision = Decision(value, place, _expects_truth(place))
        self.path.append(decision)
        if len(self.path) > DECISIONS:
            raise _refused(decision)
        return decision.taken

    def _goes_on(self, value: torch.Tensor, place: tuple[str, int] | None, stays: bool) -> bool:
        """Returns the branch to take at a condition that skips a pass of a loop unless it is
        `stays`."""
        self.skips.append(Decision(value, place, stays is not self._skip))
        self._states.append(_state(current_frame()))
        return self.skips[-1].taken

    def length(self, rows: torch.Tensor) -> int | None:
        """Returns a number that is compared with 0 as the length of `rows` is, to skip a pass of a
        loop if there are none; None if the length is known. Raises TraceError if it is asked for
        otherwise."""
        count = rows.shape[0] if rows.dim() else 0
        if not isinstance(count, torch.SymInt) or count.node.expr not in self._numbers:
            return None
        number, place = self._numbers[count.node.expr], current_place()
        code, at = _instructions(current_frame())
        while at < len(code) and code[at].opname in ("PRECALL", "CALL", "CALL_FUNCTION"):
            at += 1
        compare, other = operator.ne, 0
        if [i.opname for i in code[at:at + 2]] == ["LOAD_CONST", "COMPARE_OP"]:
            compare, other = _COMPARES[code[at + 1].argval], code[at].argval
            at += 1

        def holds(n: Any) -> Any:
            return compare(n, other)

        stays = _stays_in_pass(code, at)
        self._may_skip |= stays is not None
        if stays is None or self._skip is None or other not in (0, 1) \
                or holds(0) is holds(1) or holds(1) is not holds(2):
            raise _refused(Decision(None, place, False))
        taken = self._goes_on(holds(number), place, stays)
        return next(n for n in (0, 1) if holds(n) is taken)

    def require(self, value: Any, error: type[Exception], message: Any = "") -> None:
        """Raises `error` unless the condition is true, as the functions of torch that assert do."""
        value = self.decide(value) if _unknown(value) else bool(value)
        if not value:
            raise error(str(message() if callable(message) else message))

    # Numbers --------------------------------------------------------------------

    def note(self, number: Any, tensor: torch.Tensor) -> None:
        """Records the tensor that a symbolic number has been read from."""
        if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            exact = torch.float32 if tensor.is_floating_point() else torch.int64
            symbols = number.node.expr.free_symbols
            if len(symbols) == 1:
                tensor = tensor.detach().reshape(())
                self._numbers[next(iter(symbols))] = (
                    tensor if tensor.dtype == torch.float64 else tensor.to(exact))

    def number(self, original: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """Returns the replacement of `SymBool.__bool__` and `SymInt.__bool__`."""
        def truth(number) -> bool:
            expression = number.node.expr
            if not expression.free_symbols or not expression.free_symbols <= self._numbers.keys() \
                    or sys._getframe(1).f_code.co_filename.startswith(LIBRARY):
                return original(number)
            with torch._C.DisableTorchFunction():
                value = _evaluated(expression, self._numbers)
            if not isinstance(value, torch.Tensor):
                return original(number) if value is None else bool(value)
            return self.decide(value)
        return truth

    def note_rows(self, result: Any, mask: torch.Tensor) -> None:
        """Records that a result has as many rows as `mask` has elements that are not 0."""
        rows = result[0] if isinstance(result, tuple) else result
        count = rows.shape[0] if isinstance(rows, torch.Tensor) and rows.dim() else 0
        if isinstance(count, torch.SymInt) and count.node.expr.is_Symbol \
                and count.node.expr not in self._numbers:
            self._numbers[count.node.expr] = (mask.detach() != 0).sum()

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """Context manager in which conditions on numbers, and `torch._check`, are decided."""
        original = torch._check_with

        def check_with(error, condition, message=None):
            frame = sys._getframe(1)
            while frame.f_code.co_filename == torch.__file__:
                frame = frame.f_back
            if _is_library(frame.f_code.co_filename):
                return original(error, condition, message)
            self.require(condition, error, message or "Expected cond to be True, but got False")

        with patched((torch.SymBool, "__bool__", self.number(torch.SymBool.__bool__)),
                     (torch.SymInt, "__bool__", self.number(torch.SymInt.__bool__)),
                     (torch, "_check_with", check_with)):
            yield

    # All sequences --------------------------------------------------------------

    def explored(self, trace: Callable[[], Any], alike: Callable[[Any, Any], bool]) -> Any:
        """Returns what `trace` returns for a sequence of decisions that raises nothing; sets `path`,
        `checks`, `skips` and `skipped`. `alike` tells whether two of its results compute the same.
        Raises TraceError for a condition of which no branch only raises, or skips a pass."""
        self._skip, self.skipped, self._may_skip = None, None, False
        try:
            return self._explored(trace, alike)
        except TraceError as error:
            if not self._may_skip:
                raise
            try:
                self._skip = True
                self.skipped = self._explored(trace, alike)
                states, self._skip = self._states, False
                result = self._explored(trace, alike)
            except Exception:
                raise error from None
            if self._states != states:
                # Other passes may read the values that one leaves: some are skipped, and some not.
                raise refused_skip(self.skips[0]) from None
            return result

    def _explored(self, trace: Callable[[], Any], alike: Callable[[Any, Any], bool]) -> Any:
        """Implements `explored`, without `skipped`."""
        self.checks = []
        raised: list[tuple[list[Decision], str]] = []
        returned: list[tuple[list[Decision], Any]] = []
        failure: Exception | None = None
        pending: list[list[bool]] = [[]]
        for _ in range(TRACES):
            # Until one returns, the last decision is the likely cause of an error; then the first
            # ones are tried first, where a trace that raises is short.
            self._given = pending.pop(0 if returned else -1)
            try:
                result = trace()
            except Exception as error:
                if not self.path or not is_raised(error):
                    if returned and len(self.path) >= len(self._given):
                        # The other branch of a condition cannot be traced.
                        raise _refused(self.path[len(self._given) - 1]) from error
                    raise
                failure = failure or error
                raised.append((self.path, _text(error)))
            else:
                returned.append((self.path, result))
                if not alike(result, returned[0][1]):
                    raise _refused(self.path[len(self._given) - 1])
            last, taken = self.path, [d.taken for d in self.path]
            further = [[*taken[:i], not taken[i]] for i in range(len(self._given), len(taken))]
            pending = further + pending if returned else pending + further
            if not pending:
                break
        else:
            raise _refused(self.path[-1])
        if not returned:
            raise failure
        path, result = max(returned, key=lambda found: len(found[0]))
        self.checks = _checks(path, raised, [found for found, _ in returned])
        self._given = [d.taken for d in path]
        if path is not last:
            result = trace()
        return result


def _checks(path: list[Decision], raised: list[tuple[list[Decision], str]],
            returned: list[list[Decision]]) -> list[Check]:
    """Returns the checks without which a forward does not take the decisions `path`. Raises
    TraceError if a condition decides about more."""
    values = [d.taken for d in path]

    def branches_off(other: list[Decision]) -> int:
        return next(i for i, d in enumerate(other) if d.taken != values[i])

    messages: dict[int, tuple[Decision, str]] = {}
    for other, message in raised:
        i = branches_off(other)
        messages.setdefault(i, (other[i], message))
    needed = sorted({branches_off(other) for other in returned if other is not path})
    for i in needed:
        if i in messages or i > max(messages, default=-1):
            raise _refused(path[i])
    return [Check(tuple((j, values[j]) for j in needed if j < i) + ((i, not values[i]),),
                  decision.place, decision.line() + message)
            for i, (decision, message) in sorted(messages.items())]


# Functions ------------------------------------------------------------------------------


def _close(a, b, rtol=1e-5, atol=1e-8, equal_nan=False):
    return torch.isclose(a, b, rtol, atol, equal_nan).all()


def _equal(a, b):
    return (a == b).all() if a.shape == b.shape else False


#: The condition that a function of torch reads, by the function.
_CONDITIONS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.Tensor.__bool__, torch.Tensor.is_nonzero, torch.is_nonzero),
                    lambda x: x if x.numel() == 1 else None),
    **dict.fromkeys((torch.equal, torch.Tensor.equal), _equal),
    **dict.fromkeys((torch.allclose, torch.Tensor.allclose), _close),
    torch.Tensor.__contains__: lambda x, element: (x == element).any(),
}
#: Requirements of functions of torch for their arguments, and their error.
_REQUIRED: dict[Any, tuple[Callable[..., Any], str]] = dict.fromkeys(
    (torch.multinomial, torch.Tensor.multinomial),
    (lambda weights, *_, **__: ((weights >= 0) & (weights < float("inf"))).all()
     & (weights.sum(-1) > 0).all(),
     "multinomial needs weights that are finite, not negative, and not all zero"))
_ASSERTIONS = {torch._assert: AssertionError, torch._assert_async: RuntimeError}


def condition_of(function: Any, args: Any, kwargs: Any, conditions: Conditions) -> Any:
    """Calls a function of torch that reads a condition; returns None for other functions."""
    if function in _ASSERTIONS:
        def asserted(condition, message="", assert_msg=""):
            conditions.require(condition, _ASSERTIONS[function], message or assert_msg)
            return True
        return asserted(*args, **kwargs)
    if function in _REQUIRED and _unknown(args[0]):
        allowed, message = _REQUIRED[function]
        conditions.require(allowed(*args, **kwargs), RuntimeError, message)
    find = _CONDITIONS.get(function)
    if find is None or not any(map(_unknown, args)):
        return None
    value = find(*args, **kwargs)
    return conditions.decide(value) if isinstance(value, torch.Tensor) else value


def _unknown(x: Any) -> bool:
    """Returns whether `x` is a tensor without values."""
    return isinstance(x, FakeTensor) and x.constant is None


# Numbers --------------------------------------------------------------------------------

_COMPARED = {sympy.Eq: torch.eq, sympy.Ne: torch.ne, sympy.Lt: torch.lt, sympy.Le: torch.le,
             sympy.Gt: torch.gt, sympy.Ge: torch.ge}


def _evaluated(expression: Any, numbers: dict[Any, torch.Tensor]) -> Any:
    """Returns an expression of numbers that are read from tensors as a tensor, or as a number;
    None if tensors do not compute it exactly."""
    if expression in numbers:
        return numbers[expression]
    if expression in (sympy.true, sympy.false):
        return bool(expression)
    if expression.is_Integer:
        return int(expression)
    if expression.is_number:
        return float(expression)
    parts = [_evaluated(part, numbers) for part in expression.args]
    if any(part is None for part in parts):
        return None
    if expression.func in _COMPARED:
        return compared(_COMPARED[expression.func], *parts)
    if isinstance(expression, sympy.Not):
        return torch.logical_not(parts[0]) if isinstance(parts[0], torch.Tensor) else not parts[0]
    exact = all(isinstance(p, int) or isinstance(p, torch.Tensor)
                and not p.is_floating_point() for p in parts)
    combine = {sympy.And: lambda a, b: a & b, sympy.Or: lambda a, b: a | b,
               sympy.Add: lambda a, b: a + b, sympy.Mul: lambda a, b: a * b}.get(expression.func)
    if combine is None or not exact:
        return None
    result = parts[0]
    for part in parts[1:]:
        result = combine(result, part)
    return result


def compared(compare: Any, a: Any, b: Any) -> Any:
    """Compares as Python does: a number that the tensor's type does not have is not rounded."""
    if not isinstance(a, torch.Tensor):
        mirrored = {torch.lt: torch.gt, torch.gt: torch.lt, torch.le: torch.ge, torch.ge: torch.le}
        return compared(mirrored.get(compare, compare), b, a) if isinstance(b, torch.Tensor) \
            else None
    if isinstance(b, torch.Tensor):
        return compare(a, b) if a.dtype == b.dtype else None
    if not a.is_floating_point():
        return compare(a, b) if isinstance(b, int) else None
    if a.dtype == torch.float64 or torch.tensor(b, dtype=a.dtype).item() == b or b != b:
        return compare(a, float(b))
    if compare in (torch.eq, torch.ne):
        return torch.full_like(a, compare is torch.ne, dtype=torch.bool)
    up = compare in (torch.gt, torch.ge)
    near = torch.tensor(b, dtype=a.dtype)
    if (near.item() > b) != up:
        near = torch.nextafter(near, torch.tensor(float("inf") if up else -float("inf"),
                                                  dtype=a.dtype))
    return (torch.ge if up else torch.le)(a, near.item())


# Errors -----------------------------------------------------------------------------------


def _refused(decision: Decision) -> TraceError:
    return TraceError(f"torch.export cannot follow the model: {decision.line()}{VALUES}; a "
                      "condition of which one branch only raises an error becomes a check of the "
                      "step")


def refused_skip(decision: Decision) -> TraceError:
    """Returns the error for a condition that skips a pass of a loop, of which it is not known that
    it would compute nothing."""
    return TraceError(f"{_refused(decision)}; one that skips an expert which no token chose is left "
                      "out, if nothing else is computed under it and the loop is one over experts")


def _state(frame: types.FrameType | None) -> Any:
    """Returns the numbers and texts in the variables of `frame`, in their attributes and items."""
    return {} if frame is None else _plain(frame.f_locals, 5)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)) or not depth:
        return _OTHER
    if isinstance(value, dict):
        parts = {str(k): _plain(v, depth - 1) for k, v in value.items()}
    elif isinstance(value, (list, tuple, set)):
        return [type(value).__name__, *(_plain(v, depth - 1) for v in value)]
    else:
        parts = {k: _plain(v, depth - 1) for k, v in getattr(value, "__dict__", {}).items()}
    return {k: v for k, v in parts.items() if v is not _OTHER}


#: A value that is neither number nor text.
_OTHER = object()


# Passes of loops ----------------------------------------------------------------------------

_COMPARES = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
             ">": operator.gt, ">=": operator.ge}


def _instructions(frame: types.FrameType | None) -> tuple[list[dis.Instruction], int]:
    """Returns the instructions of the code of `frame`, and the place of the one that it is at."""
    if frame is None:
        return [], 0
    code = [i for i in dis.get_instructions(frame.f_code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
    return code, next((n for n, i in enumerate(code) if i.offset == frame.f_lasti), len(code))


def _stays_in_pass(code: list[dis.Instruction], at: int) -> bool | None:
    """Returns the value of the condition at place `at` with which the pass of a loop goes on, where
    the other one begins the next pass; None if it is another condition."""
    here = at
    while at < len(code) and code[at].opname in ("COMPARE_OP", "TO_BOOL"):
        at += 1
    if at >= len(code) or not re.fullmatch(r"POP_JUMP_.*IF_(TRUE|FALSE)", code[at].opname):
        return None
    jumps = code[at].opname.endswith("TRUE")
    target = next(i for i in code if i.offset == code[at].argval)
    if _goes_back(target) or target.opname == "FOR_ITER" and target.offset <= code[here].offset:
        return not jumps
    return jumps if _goes_back(code[at + 1]) else None


def _goes_back(instruction: dis.Instruction) -> bool:
    return instruction.opname in ("JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")


def _expects_truth(place: tuple[str, int] | None) -> bool:
    """Returns whether the line is likely to raise if its condition is false."""
    line = linecache.getline(*place).strip() if place else ""
    return line.startswith("assert") or "not " in line


def is_raised(error: Exception) -> bool:
    """Returns whether a `raise` or an `assert` of the model, or of torch for it, has raised
    `error`."""
    return _operation(error) == "RAISE_VARARGS"


def fails_of_itself(error: Exception) -> bool:
    """Returns whether code of the model has used a value of another type than it expects, such as
    None, without a `raise` of its own."""
    return isinstance(error, (AttributeError, TypeError)) \
        and _operation(error) not in ("", "RAISE_VARARGS")


def _operation(error: Exception) -> str:
    """Returns the bytecode operation of the model that has raised `error`; empty if it is not of
    the model."""
    if isinstance(error, TraceError) or type(error).__module__.startswith("cleave"):
        return ""
    frames = error.__traceback__
    if frames is None:
        return ""
    while frames.tb_next is not None:
        frames = frames.tb_next
    code = frames.tb_frame.f_code
    if _is_library(code.co_filename):
        return ""
    return dis.opname[code.co_code[frames.tb_lasti]]


def _is_library(file: str) -> bool:
    """Returns whether a file is one of torch whose errors are not those of a model."""
    return file.startswith(LIBRARY) and not file.startswith(_RAISING)


def _text(error: Exception) -> str:
    """Returns the type and the text of an error of the model, on one line."""
    text = _UNKNOWN.sub("…", " ".join(str(error).split()))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
