# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Objects in the hash of what a trace may read: containers, instances, tensors, and what they refer to."""

from __future__ import annotations

import collections
import enum
import functools
import hashlib
import logging
import pathlib
import re
import threading
import types
import typing
import weakref
from typing import Any, Iterable

import torch

from .hashed_code import (OF_PROCESS, PLAIN, Unknown, check_called, hash_class, hash_code, hash_function, hash_module,
                          is_foreign)

_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, range, slice,
          typing.TypeVar, types.GenericAlias, types.UnionType, type(typing.Union[int, str]),
          type(typing.List[int]), typing.ForwardRef, type(typing.Any))
#: The type of fields of a namedtuple.
_FIELD = type(collections.namedtuple("_Field", "a").a)  # type: ignore[attr-defined]  # set by namedtuple
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
            types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodWrapperType,
            types.ClassMethodDescriptorType)
#: The most bytes of values that are hashed.
_MOST_BYTES = 256 << 20


class Objects:
    """Visits objects, and hashes what they are."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._hash = hashlib.sha256()
        #: Facts that are not hashed yet; `say` bounds their number.
        self.text: list[str] = []
        self._known: dict[int, int] = {}
        self._kept: list[Any] = []
        self._storages: dict[int, int] = {}
        self._bytes = 0
        self._depth = 0
        #: Whether code that is not of an installed package was visited.
        self.met_foreign = False
        #: Tensors whose values a trace does not read.
        self._valueless = {id(p) for p in model.parameters()}

    def digest(self) -> str:
        self.flush()
        return self._hash.hexdigest()

    def flush(self) -> None:
        self.text.append("")
        self._hash.update("\x1f".join(self.text).encode("utf-8", "surrogatepass"))
        self.text.clear()

    def say(self, *facts: object) -> None:
        """Adds facts, each in the form in which Python writes it."""
        self.text.append(repr(facts))
        if len(self.text) > 4096:
            self.flush()

    def add(self, label: str, value: Any) -> None:
        """Hashes an object and what it refers to."""
        self.say("=", label)
        if label == "inputs":
            self._valueless.update(id(t) for t in _tensors(value))
        self.visit(value)

    def visit_loosely(self, value: Any) -> None:
        """Hashes an object of an installed package; of what is not known, the type alone, unless the
        program has put code of its own into it."""
        self.met_foreign = False
        try:
            self.visit(value)
        except Unknown:
            if self.met_foreign:
                raise
            self.say("opaque", type(value).__name__)

    def visit(self, x: Any) -> None:
        kind = type(x)
        if kind in PLAIN:
            self.text.append(f"{kind.__name__} {x!r}")
            return
        number = self._known.get(id(x))
        if number is not None:
            self.say("again", number)
            return
        self._known[id(x)] = len(self._kept)
        self._kept.append(x)
        self._depth += 1
        if self._depth > 200:
            raise Unknown("objects that are nested too deeply")
        try:
            self._visit_new(x, kind)
        finally:
            self._depth -= 1

    def _visit_new(self, x: Any, kind: type) -> None:
        if isinstance(x, type):
            check_called(x)
            hash_class(self, x)
        elif isinstance(x, torch.Tensor):
            self._tensor(x, kind)
        elif kind is types.FunctionType:
            hash_function(self, x)
        elif kind is types.MethodType:
            self.all("method", (x.__func__, x.__self__))
        elif kind is types.CodeType:
            hash_code(self, x)
        elif kind is types.ModuleType or isinstance(x, types.ModuleType):
            hash_module(self, x)
        elif isinstance(x, _NAMED):
            self.say(kind.__qualname__, repr(x))
        elif isinstance(x, _BUILTIN):
            self.say("builtin", x.__qualname__)
            owner = getattr(x, "__self__", None)
            if kind is types.BuiltinFunctionType and not isinstance(owner, torch.Tensor):
                check_called(x)
            if owner is not None and not isinstance(owner, types.ModuleType):
                self.visit(owner)
        elif isinstance(x, enum.Enum):
            self.all("enum", (x.name, x._value_))
            self.visit_class(kind)
        elif kind is property:
            self.all("property", (x.fget, x.fset, x.fdel))
        elif kind in (staticmethod, classmethod):
            self.all(kind.__name__, (x.__func__,))
        elif kind is functools.partial:
            self.all("partial", (x.func, x.args, x.keywords))
        elif kind is functools.cached_property:
            self.all("cached", (x.func, x.attrname))
        elif kind is functools._lru_cache_wrapper:
            if x.cache_info().currsize and is_foreign(x.__wrapped__):
                raise Unknown("what a function has cached")
            self.all("cache", (x.__wrapped__,))
        elif kind is types.CellType:
            self.say("cell")
            try:
                content = x.cell_contents
            except ValueError:
                return
            self.visit(content)
        elif kind in (weakref.ref, weakref.ProxyType):
            self.all("weak", (x() if kind is weakref.ref else None,))
        elif isinstance(x, logging.Logger):
            self.say("logger", x.name)
        elif kind is _FIELD:
            self.say("field", x.__reduce__()[1])
        elif isinstance(x, _LOCKS):
            self.say("lock")
        elif isinstance(x, pathlib.PurePath):
            self.say("path", str(x))
        elif kind is re.Pattern:
            self.say("pattern", x.pattern, x.flags)
        else:
            self._object(x, kind)

    def visit_class(self, x: type) -> None:
        """Hashes the class of an object, which is not called for that."""
        if id(x) not in self._known:
            self._known[id(x)] = len(self._kept)
            self._kept.append(x)
            hash_class(self, x)
        else:
            self.say("again", self._known[id(x)])

    def all(self, label: str, values: Iterable[Any]) -> None:
        self.say("(", label)
        for value in values:
            self.visit(value)
        self.say(")")

    def _object(self, x: Any, kind: type) -> None:
        """Hashes containers and instances of classes of Python."""
        content = False
        self.say("(", kind.__qualname__)
        self.visit_class(kind)
        if isinstance(x, dict):
            content = True
            # No code of theirs runs.
            ordered = isinstance(x, collections.OrderedDict)
            for key, value in list((collections.OrderedDict if ordered else dict).items(x)):
                self.visit(key)
                self.visit(value)
        elif isinstance(x, (list, tuple, collections.deque)):
            content = True
            sequence: Any = next(b for b in (list, tuple, collections.deque) if isinstance(x, b))
            for value in [*sequence.__iter__(x)]:
                self.visit(value)
        elif isinstance(x, (set, frozenset)):
            content = True
            x = set(x)
            if not all(type(v) in PLAIN or isinstance(v, type) for v in x):
                raise Unknown(f"a set of {sorted({type(v).__name__ for v in x})}")
            for text in sorted(v.__module__ + "." + v.__qualname__ if isinstance(v, type)
                               else type(v).__name__ + repr(v) for v in x):
                self.say(text)
        elif isinstance(x, types.MappingProxyType):
            content = True
            self.visit(dict(x))
        elif isinstance(x, (int, float, str, bytes)):
            content = True
            self.say(next(b.__repr__(x) for b in (int, float, str, bytes) if isinstance(x, b)))
        elif type(x).__module__ == "numpy":
            self._numpy(x)
            content = True
        try:
            own = object.__getattribute__(x, "__dict__")
        except AttributeError:
            own = None
        if type(own) is dict:
            for key, value in list(own.items()):
                if key not in OF_PROCESS:
                    self.say(key)
                    self.visit(value)
        for base in kind.__mro__:
            slots = vars(base).get("__slots__", ())
            slots = (slots,) if isinstance(slots, str) else tuple(slots)
            if not content and base is not object and _hides(base, len(slots)):
                raise Unknown(f"an object of {kind.__module__}.{kind.__qualname__}")
            for slot in slots:
                if slot not in ("__dict__", "__weakref__"):
                    member: Any = vars(base).get(slot) or vars(base).get(
                        f"_{base.__name__.lstrip('_')}{slot}")
                    self.say(slot)
                    try:
                        self.visit(member.__get__(x))
                    except AttributeError:
                        self.say("unset")
        self.say(")")

    def _numpy(self, x: Any) -> None:
        if hasattr(x, "tobytes") and getattr(x.dtype, "hasobject", True) is False:
            data = x.tobytes()
            self.say(x.dtype, x.shape)
            self._data(data)
        elif type(x).__name__.endswith(("DType", "dtype")):
            self.say(repr(x))
        else:
            raise Unknown(f"an object of numpy.{type(x).__qualname__}")

    def _data(self, data: Any) -> None:
        self._bytes += len(data)
        if self._bytes > _MOST_BYTES:
            raise Unknown("buffers of many bytes")
        self.flush()
        self._hash.update(data)

    def _tensor(self, x: torch.Tensor, kind: type) -> None:
        if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise Unknown(f"a tensor of {kind.__qualname__}")
        if x.layout is not torch.strided or x.is_quantized or x.is_nested or x.grad_fn is not None \
                or x._backward_hooks or x.device.type not in ("cpu", "meta"):
            raise Unknown("a tensor that is sparse, quantized, computed, has hooks, or is on a device")
        if getattr(x, "_post_accumulate_grad_hooks", None):
            raise Unknown("a tensor with hooks")
        storage = 0 if x.is_meta else x.untyped_storage().data_ptr()
        owner = self._storages.setdefault(storage, len(self._storages)) if storage else -1
        self.say("tensor", kind.__qualname__, x.dtype, x.device, tuple(x.shape), x.stride(),
                 x.storage_offset(), x.requires_grad, x.is_conj(), x.is_neg(), x.is_inference(),
                 owner)
        if vars(x):
            self.visit(vars(x))
        if id(x) not in self._valueless and not x.is_meta:
            flat = x.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            self._data(flat.view(torch.uint8).numpy() if flat.numel() else b"")


def _hides(base: type, slots: int) -> bool:
    """Whether objects of a class have fields that are no attributes of Python, as those of native
    code have."""
    more = base.__basicsize__ - (base.__base__ or object).__basicsize__
    seen = slots + ("__dict__" in vars(base)) + ("__weakref__" in vars(base))
    return more > 8 * seen or base.__itemsize__ > 0


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
