# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Whether a model computes the same in training and in evaluation mode, decided while its forward
runs in training mode.

A forward depends on the mode by the reads of `training`, which are watched. A read is harmless if
the expression that it is part of has the same value in both modes, as `0.0 if not self.training else
self.p` where `p` is 0.0, or if it is an argument of a dropout of probability 0. Expressions are
evaluated if they are made of names, attributes, constants, comparisons, `not`, `and`, `or` and
conditionals alone. Any other read makes the modes different, so that the model is exported in both.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import inspect
import sys
import threading
import types
from typing import Any, Callable, Iterator

import torch
import torch.nn.functional as F

from .errors import TraceError
from .forward_state import containers, contents

_NAME = "training"
_PLAIN = (bool, int, float, str, type(None))
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b, ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b, ast.Gt: lambda a, b: a > b, ast.GtE: lambda a, b: a >= b,
    ast.Is: lambda a, b: a is b, ast.IsNot: lambda a, b: a is not b}


class _Unknown(Exception):
    """The value of an expression is not known without running code."""


# The model --------------------------------------------------------------------------------


def may_be_alike(module: torch.nn.Module, loss_fn: Any) -> bool:
    """Returns whether all that depends on the mode of `module` is what its code reads as
    `training`: its classes set modes, and keep them, as torch does, and no code of theirs has the
    name of the attribute as a string."""
    library = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    setting = torch.nn.Module.train, getattr(library, "train", None)
    for part in module.modules():
        # The library's models replace kernels where they are asked to use these.
        if part.__dict__.get(_NAME) not in (True, False) or "train" in part.__dict__ \
                or getattr(part, "use_kernels", False):
            return False
    kinds = {type(part) for part in module.modules()}
    return all(_is_plain(kind) and kind.train in setting for kind in kinds) \
        and not any(map(_says_training, _codes_of(module, loss_fn)))


def _is_plain(kind: type[torch.nn.Module]) -> bool:
    """Returns whether objects of a class keep their mode as torch does."""
    return (kind.__getattribute__ is object.__getattribute__
            and kind.__setattr__ is torch.nn.Module.__setattr__
            and not any(_NAME in vars(base) for base in kind.__mro__)
            and not issubclass(kind, torch.jit.ScriptModule))


def _codes_of(module: torch.nn.Module, loss_fn: Any) -> Iterator[types.CodeType]:
    """Yields the code of the classes of a model and of the functions that it holds, and of the files
    that define these, except torch's; of files that are not of an installed package, also that of
    the files that they import."""
    held = [value for _, container, _ in containers(module, (loss_fn,))
            for value in contents(container)]
    kinds = {type(x) for x in (*module.modules(), loss_fn, *filter(callable, held))}
    pending: list[Any] = [base for kind in kinds for base in kind.__mro__]
    pending += [loss_fn, *(getattr(x, "func", x) for x in held if callable(x))]
    seen: set[str] = set()
    while pending:
        value = pending.pop()
        file = _file(value)
        if file.partition(".")[0] in ("torch", "builtins", ""):
            continue
        yield from _codes(value)
        if file in seen or file not in sys.modules:
            continue
        seen.add(file)
        for other in list(vars(sys.modules[file]).values()):
            yield from _codes(other)
            if not _is_installed(file) and not _is_installed(_file(other)):
                pending.append(other)


def _codes(value: Any) -> Iterator[types.CodeType]:
    """Yields the code of a function, or of the functions of a class."""
    for one in list(vars(value).values()) if isinstance(value, type) else [value]:
        one = getattr(one, "fget", getattr(one, "__func__", one))
        while isinstance(one, types.FunctionType):
            yield one.__code__
            one = getattr(one, "__wrapped__", None)


def _file(value: Any) -> str:
    """Returns the name of the file, as a module of Python, that defines a value or is it."""
    name = value.__name__ if isinstance(value, types.ModuleType) \
        else getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""


@functools.cache
def _is_installed(file: str) -> bool:
    """Returns whether a file is of the standard library, of an installed package, or of Cleave."""
    path = getattr(sys.modules.get(file), "__file__", None) or ""
    package = file.partition(".")[0]
    return (package in sys.stdlib_module_names - {"__main__"} or package == "cleave"
            or not path or "-packages" in path)


@functools.lru_cache(maxsize=65536)
def _says_training(code: types.CodeType) -> bool:
    """Returns whether code has the name of the mode as a string, by which it may read the mode
    without being seen, as by `__dict__`."""
    return any(c == _NAME if isinstance(c, str) else
               isinstance(c, types.CodeType) and _says_training(c) for c in code.co_consts)


# The reads --------------------------------------------------------------------------------


class ModesDiffer(TraceError):
    """The forward reads its mode, and the trace is of no use."""


class AskedModes:
    """The reads of `training` while a forward runs, in the thread that makes this object: others may
    have models of their own. With `ends`, the first one that may have another effect in evaluation
    mode raises ModesDiffer."""

    def __init__(self, ends: bool = False) -> None:
        self._ends = ends
        self._thread = threading.get_ident()
        #: Whether a read may have another effect in evaluation mode.
        self.differs = False
        #: Whether the forward has returned more than a loss.
        self.more = False

    def watches(self) -> bool:
        """Returns whether a read in this thread counts."""
        return not self.differs and threading.get_ident() == self._thread

    def note(self) -> None:
        """Records that the modes differ."""
        self.differs = True
        if self._ends:
            raise ModesDiffer

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Context manager that watches the reads of all modules."""
        # A property of the class comes before the attribute of the object.
        torch.nn.Module.training = _Watched(self)  # type: ignore[assignment]
        try:
            yield
        finally:
            del torch.nn.Module.training


class _Watched:
    """The attribute `training` of modules, while its reads are watched."""

    def __init__(self, asked: AskedModes) -> None:
        self._asked = asked

    def __get__(self, module: torch.nn.Module | None, kind: type) -> bool:
        if module is None or _NAME not in module.__dict__:
            raise AttributeError(_NAME)
        if self._asked.watches() and not _is_harmless(sys._getframe(1)):
            self._asked.note()
        return module.__dict__[_NAME]

    def __set__(self, module: torch.nn.Module, value: bool) -> None:
        module.__dict__[_NAME] = value

    def __delete__(self, module: torch.nn.Module) -> None:
        del module.__dict__[_NAME]


def _is_harmless(frame: types.FrameType) -> bool:
    """Returns whether the attribute `training` that `frame` reads has no effect."""
    try:
        found = _read(frame.f_code, frame.f_lasti)
    except Exception:
        # The source is not known.
        return False
    for i, part in enumerate(found):
        try:
            one, other = (_Value(frame, found[0], mode).of(part) for mode in (True, False))
        except _Unknown:
            call = found[i + isinstance(part, ast.keyword)]
            return isinstance(call, ast.Call) and _is_dropout_of_nothing(frame, call, found[i - 1])
        if type(one) is type(other) and isinstance(one, _PLAIN) and repr(one) == repr(other):
            return True
    return False


def _is_dropout_of_nothing(frame: types.FrameType, call: ast.Call, argument: ast.AST) -> bool:
    """Returns whether `argument` is the argument `training` of a call of a dropout whose probability
    is 0, and that does not write to its operand."""
    given = dict(zip(("input", "p", _NAME, "inplace"), call.args))
    given.update((k.arg or "**", k.value) for k in call.keywords)
    if "**" in given or any(isinstance(x, ast.Starred) for x in call.args) \
            or given.get(_NAME) is not argument or "p" not in given:
        return False
    value = _Value(frame, None, False)
    try:
        p = value.of(given["p"])
        return (value.of(call.func) is F.dropout and type(p) in (int, float) and p == 0
                and ("inplace" not in given or value.of(given["inplace"]) is False))
    except _Unknown:
        return False


@functools.lru_cache(maxsize=4096)
def _read(code: types.CodeType, instruction: int) -> tuple[ast.AST, ...]:
    """Returns the attribute that an instruction reads, as it is in the source, and the expressions
    that it is part of, from the inside. Raises an exception if there is none."""
    first, last, begin, end = list(code.co_positions())[instruction // 2]
    lines, start = inspect.getsourcelines(code)
    # An indented function is the body of a statement.
    indented = lines[0][:1].isspace()
    tree = ast.parse(("if 1:\n" if indented else "") + "".join(lines))
    shift = max(start, 1) - 1 - indented
    _check_same(tree, code)

    def path(node: ast.AST) -> list[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if found := path(child):
                return [*found, node]
        is_it = (isinstance(node, ast.Attribute) and node.attr == _NAME
                 and (node.lineno + shift, node.end_lineno + shift, node.col_offset,
                      node.end_col_offset) == (first, last, begin, end))
        return [node] if is_it else []

    found = path(tree)
    if not found:
        raise _Unknown
    return tuple(found)


def _check_same(tree: ast.Module, code: types.CodeType) -> None:
    """Raises _Unknown if the source is not that of the code, because a file has changed."""
    pending: list[Any] = [compile(tree, code.co_filename, "exec")]
    while pending:
        one = pending.pop()
        if isinstance(one, types.CodeType):
            if one.co_name == code.co_name and one.co_names == code.co_names \
                    and one.co_varnames == code.co_varnames and _texts(one) == _texts(code):
                return
            pending += one.co_consts
    raise _Unknown


def _texts(code: types.CodeType) -> list[str]:
    """Returns the constants of code, as text, but for code."""
    return [repr(c) for c in code.co_consts if not isinstance(c, types.CodeType)]


class _Value:
    """Values of expressions in a frame, where `read` has the value `mode`; reads of the mode in
    other places have none."""

    def __init__(self, frame: types.FrameType, read: ast.AST | None, mode: bool) -> None:
        self._frame, self._read, self._mode = frame, read, mode

    def of(self, node: ast.AST) -> Any:
        """Returns the value of an expression. Raises _Unknown if that would take running code."""
        if node is self._read:
            return self._mode
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(id):
                for names in (self._frame.f_locals, self._frame.f_globals, vars(builtins)):
                    if id in names:
                        return names[id]
            case ast.Attribute(value, attr) if attr != _NAME:
                return _attribute(self.of(value), attr)
            case ast.UnaryOp(ast.Not(), operand):
                return not self._plain(operand)
            case ast.BoolOp(op, values):
                for part in values[:-1]:
                    one = self._plain(part)
                    if bool(one) == isinstance(op, ast.Or):
                        return one
                return self.of(values[-1])
            case ast.IfExp(test, body, orelse):
                return self.of(body if self._plain(test) else orelse)
            case ast.Compare(left, [op], [right]) if type(op) in _COMPARISONS:
                a, b = self._plain(left), self._plain(right)
                if isinstance(a, str) == isinstance(b, str) and None not in (a, b):
                    return _COMPARISONS[type(op)](a, b)
        raise _Unknown

    def _plain(self, node: ast.AST) -> Any:
        value = self.of(node)
        if not isinstance(value, _PLAIN):
            raise _Unknown
        return value


def _attribute(owner: Any, name: str) -> Any:
    """Returns an attribute of an object that reading runs no code for."""
    of_class = [vars(kind)[name] for kind in type(owner).__mro__ if name in vars(kind)][:1]
    if any(hasattr(type(x), "__set__") for x in of_class):
        raise _Unknown
    own = getattr(owner, "__dict__", {})
    if isinstance(owner, type) or not isinstance(own, dict):
        raise _Unknown
    if name in own:
        return own[name] if type(owner).__getattribute__ in _READING else getattr(owner, name)
    if of_class and isinstance(of_class[0], _PLAIN):
        return of_class[0]
    if not of_class and isinstance(owner, torch.nn.Module) and name in owner._modules:
        return owner._modules[name]
    raise _Unknown


_READING = (object.__getattribute__, types.ModuleType.__getattribute__)
