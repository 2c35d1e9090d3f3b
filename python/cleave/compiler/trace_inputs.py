# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What a trace may read, as one hash.

Two processes whose hashes are equal trace the same module: Python runs the same code on the same
objects. The hash covers the model, its loss and the inputs, with all that they refer to (classes,
functions with their bytecode, closures, defaults and the globals that they name, numbers, values
of buffers, but not those of parameters and inputs, which a trace does not read); what a program
may have replaced or set in installed packages; the modes and settings of torch; the environment;
and all loaded files. What is of a kind that is not known here raises `Unknown`, and the model is
then traced.
"""

from __future__ import annotations

import collections
import dis
import enum
import functools
import hashlib
import logging
import os
import pathlib
import re
import sys
import threading
import types
import typing
import weakref
from typing import Any, Iterable

import torch

from .verdicts import installed_folders, loaded_files

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Variables that differ between shells, and that no model reads.
_SHELL = {"_", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "TERM_SESSION_ID", "WINDOWID",
          "CLEAVE_CACHE", "CLEAVE_CACHE_BYTES", "CLEAVE_CACHE_VERIFY", "CLEAVE_CHECK"}
#: Names by which code reads what is not in the hash.
_UNSEEN = frozenset({
    "globals", "eval", "exec", "open", "__import__", "import_module", "input", "id", "hash", "sys",
    "inspect", "gc", "time", "datetime", "socket", "subprocess", "ctypes", "getpid", "urandom",
    "tempfile", "uuid", "locals", "vars", "data_ptr", "_cdata",
    "ops", "library", "get_rng_state", "initial_seed", "default_generator", "seed", "fromfile", "memmap",
    "load", "read_text", "read_bytes", "readline", "readlines", "fdopen", "popen", "listdir", "scandir", "glob",
    "iterdir", "walk", "exists", "is_file", "isfile", "stat", "getmtime", "loadtxt", "genfromtxt", "load_file",
    "safe_open", "urlopen", "perf_counter", "monotonic", "time_ns", "getloadavg", "cpu_count", "current_process",
    "current_thread", "get_ident", "getframe", "_getframe", "getsource"})
#: Packages whose modules hold nothing that a trace reads.
_UNREAD = {"sympy", "mpmath", "torchgen", "asyncio", "pytest", "_pytest", "pluggy", "xdist", "execnet",
           "jinja2", "yaml", "httpx2", "httpcore2", "httpx", "httpcore", "anyio", "h11", "email",
           "filelock", "huggingface_hub", "tqdm", "markupsafe", "unittest", "ssl", "http", "urllib",
           "logging", "importlib", "multiprocessing", "concurrent", "hypothesis", "coverage"}
#: Of torch, those of its compiler, which a trace does not run.
_UNREAD_TORCH = ("torch._inductor", "torch._dynamo.", "torch.testing", "torch.onnx", "torch.profiler",
                 "torch.distributed", "torch._refs", "torch._prims", "torch._numpy", "torch.jit",
                 "torch.package", "torch.quantization", "torch.ao", "torch.utils.data", "torch.ops",
                 "torch._ops.", "torch._vendor", "torch.utils.benchmark", "torch.utils.tensorboard")
#: Packages whose objects are what their code has made of them.
_FIXED = {"torch", "numpy", "sympy", "mpmath", "torchgen", "functorch", "cleave"}
#: Modules of these whose tables a program may have changed.
_READ = ("torch.nn.modules.module", "torch.utils.checkpoint", "cleave.trace.registry",
         "cleave.trace.replacements")
#: Modules of settings.
_CONFIGURED = ("torch._dynamo.config", "torch._functorch.config", "torch._export.config",
               "torch.fx.experimental._config")
_SKIPPED = {"__dict__", "__weakref__", "__doc__", "_abc_impl", "__builtins__", "__cached__",
            "__loader__", "__spec__", "__file__", "__path__", "__abstractmethods__"}
#: Names of what differs in each process: a hash of text, an address, a random name of a session.
_OF_PROCESS = {"_original_object_hash", "_torchdynamo_wrapper_id", "SESSION_ID"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, range, slice,
          typing.TypeVar, types.GenericAlias, types.UnionType, type(typing.Union[int, str]),
          type(typing.List[int]), typing.ForwardRef, type(typing.Any))
#: The type of fields of a namedtuple.
_FIELD = type(collections.namedtuple("_Field", "a").a)  # type: ignore[attr-defined]  # set by namedtuple
#: The flag of classes that are made while a program runs.
_HEAP = 1 << 9
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
            types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodWrapperType,
            types.ClassMethodDescriptorType)
#: The most bytes of values that are hashed.
_MOST_BYTES = 256 << 20


class Unknown(Exception):
    """Raised for what cannot be hashed; says what it is."""


def trace_key(model: torch.nn.Module, inputs: Any, loss_fn: Any, *others: Any) -> list[str]:
    """The texts that name a trace of `model` in the cache. Raises `Unknown`."""
    files = loaded_files()
    if files is None:
        raise Unknown("a program that is in no file")
    walk = _Walk(model)
    walk.add("others", others)
    walk.settings()
    walk.add("model", model)
    walk.add("loss", loss_fn)
    walk.add("inputs", inputs)
    for name, module in sorted(sys.modules.items()):
        walk.namespace(name, module)
    return ["trace", sys.version, torch.__version__, str(torch.version.git_version), files,
            walk.digest()]


class _Walk:
    """Visits objects, and hashes what they are."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._hash = hashlib.sha256()
        self._text: list[str] = []
        self._known: dict[int, int] = {}
        self._kept: list[Any] = []
        self._storages: dict[int, int] = {}
        self._bytes = 0
        self._depth = 0
        #: Whether code that is not of an installed package was visited.
        self._met_foreign = False
        #: Tensors whose values a trace does not read.
        self._valueless = {id(p) for p in model.parameters()}
        # Cleave's own files are hashed wherever they are.
        self._installed = (*installed_folders(), _HERE)

    def digest(self) -> str:
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update("\x1f".join(self._text).encode("utf-8", "surrogatepass"))
        self._text.clear()

    def _say(self, *facts: object) -> None:
        self._text.extend(f"{len(t)}:{t}" for t in map(str, facts))
        if len(self._text) > 4096:
            self._flush()

    def add(self, label: str, value: Any) -> None:
        """Hashes an object and what it refers to."""
        self._say("=", label)
        if label == "inputs":
            self._valueless.update(id(t) for t in _tensors(value))
        self._visit(value)

    def settings(self) -> None:
        """Hashes the modes of the process."""
        self._say("env", sorted((k, v) for k, v in os.environ.items() if k not in _SHELL), os.getcwd())
        if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
            # torch.device as a context and torch.set_default_device are such modes.
            raise Unknown("a mode of torch that is active")
        backends = torch.backends
        self._say(
            torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            torch.is_anomaly_enabled(), torch.is_autocast_cache_enabled(),
            [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.get_float32_matmul_precision(), torch.get_num_threads(), torch.cuda.is_available(),
            backends.cuda.flash_sdp_enabled(), backends.cuda.mem_efficient_sdp_enabled(),
            backends.cuda.math_sdp_enabled(), backends.cuda.cudnn_sdp_enabled(),
            backends.cuda.matmul.allow_tf32, backends.cudnn.enabled, backends.cudnn.deterministic,
            backends.cudnn.benchmark, backends.cudnn.allow_tf32, backends.mkldnn.enabled,
            backends.mha.get_fastpath_enabled(), backends.opt_einsum.enabled,
            backends.opt_einsum.strategy, torch.overrides.is_tensor_like(None),
            torch.__future__.get_overwrite_module_params_on_conversion(),
            getattr(torch.utils.deterministic, "fill_uninitialized_memory", None),
            sys.getrecursionlimit(), sys.flags)
        for name in _CONFIGURED:
            values = getattr(sys.modules.get(name), "_config", {})
            self._say(name, [(k, v) for k, entry in sorted(values.items())
                             if type(v := getattr(entry, "user_override", None)) in _PLAIN])

    # ---------------------------------------------------------------- installed packages

    def namespace(self, name: str, module: Any) -> None:
        """Hashes what a program may have replaced in an installed module, and what is set in one
        that is not of torch."""
        top = name.split(".", 1)[0]
        if top in _UNREAD or name.startswith(_UNREAD_TORCH) or top == "__main__":
            return
        values = getattr(module, "__dict__", None)
        file = getattr(module, "__file__", None)
        if type(values) is not dict or (file is not None and not self._is_installed(file)):
            return
        # A module of a class of its own loads others when they are asked for.
        fixed = (file is None or top in _FIXED or _is_standard(top)
                 or type(module) is not types.ModuleType)
        self._say("module", name)
        # Their order may be that of a set.
        for key, value in sorted(values.items(), key=_first):
            if key in _SKIPPED or key in _OF_PROCESS:
                continue
            kind = type(value)
            if kind is types.FunctionType:
                self._function_of(key, value, fixed)
            elif isinstance(value, type):
                self._class_of(key, value, name, fixed)
            elif kind in _PLAIN:
                if not fixed or name.startswith("torch.nn"):
                    self._say(key, kind.__name__, repr(value))
            elif kind is types.BuiltinFunctionType:
                self._say(key, value.__module__, value.__qualname__)
            elif isinstance(value, types.ModuleType):
                self._say(key, value.__name__)
            elif not fixed or name in _READ:
                self._say(key)
                self._visit_loosely(value)
            else:
                self._say(key, kind.__module__, kind.__qualname__)
                function = (value.func if kind is functools.partial else
                            value.__func__ if kind is types.MethodType else None)
                if not self._is_standing(kind) or (
                        type(function) is types.FunctionType and self._is_foreign(function)):
                    self._visit(value)

    def _function_of(self, key: str, value: types.FunctionType, fixed: bool) -> None:
        """Hashes a function in an installed module."""
        code = value.__code__
        if self._is_foreign(value):
            self._say("replaced", key)
            self._visit(value)
            return
        self._text.append(f"{key} {value.__qualname__} {code.co_firstlineno}")
        if code.co_filename != value.__globals__.get("__file__"):
            self._text.append(code.co_filename)
        if value.__defaults__:
            self._text.append(" ".join([repr(v) for v in value.__defaults__ if type(v) in _PLAIN]))
        if value.__closure__ and not fixed:
            self._visit_loosely(value)

    def _class_of(self, key: str, value: type, module: str, fixed: bool) -> None:
        """Hashes a class in an installed module."""
        self._text.append(f"{key} {value.__module__}.{value.__qualname__}")
        if value.__module__ != module:
            if any(self._is_foreign(f) for f in map(_within, vars(value).values())
                   if type(f) is types.FunctionType):
                self._say("replaced")
                self._visit(value)
            return  # Else where it is defined.
        for name, member in sorted(vars(value).items(), key=_first):
            if name in _SKIPPED:
                continue
            member = _within(member)
            kind = type(member)
            if kind is types.FunctionType:
                self._function_of(name, member, fixed)
            elif not fixed or (kind in _PLAIN and module.startswith("torch.nn")):
                self._say(name)
                self._visit_loosely(member)
            elif kind not in _PLAIN:
                self._text.append(name + kind.__name__)

    def _visit_loosely(self, value: Any) -> None:
        """Hashes an object of an installed package; of what is not known, the type alone, unless the
        program has put code of its own into it."""
        self._met_foreign = False
        try:
            self._visit(value)
        except Unknown:
            if self._met_foreign:
                raise
            self._say("opaque", type(value).__name__)

    def _is_installed(self, file: str) -> bool:
        return file.startswith(self._installed) or file[:1] == "<"

    def _is_foreign(self, function: types.FunctionType) -> bool:
        """Whether a function is not of an installed file, nor made by code of one in its name."""
        file = function.__code__.co_filename
        if file[:1] != "<" or file.startswith("<frozen"):
            return not file.startswith(("<", *self._installed))
        module = sys.modules.get(function.__globals__.get("__name__", ""))
        of = getattr(module, "__file__", None)
        return (module is None or vars(module) is not function.__globals__ or of is None
                or not self._is_installed(of))

    def _is_standing(self, kind: type) -> bool:
        """Whether a class is one of an installed package or of Python itself."""
        return kind.__module__ == "builtins" or not kind.__flags__ & _HEAP or not any(
            type(f) is types.FunctionType and self._is_foreign(f)
            for f in map(_within, vars(kind).values()))

    def _of_installed(self, kind: type) -> bool:
        """Whether a class is the one of its name in an installed module, which `namespace` hashes."""
        module = sys.modules.get(kind.__module__)
        file = getattr(module, "__file__", None)
        if module is None or kind.__module__ == "__main__" or (
                file is not None and not self._is_installed(file)):
            return False
        found: Any = module
        for part in kind.__qualname__.split("."):
            found = getattr(found, "__dict__", {}).get(part)
        return found is kind

    # ---------------------------------------------------------------- objects

    def _visit(self, x: Any) -> None:
        kind = type(x)
        if kind in _PLAIN:
            self._say(kind.__name__, repr(x))
            return
        number = self._known.get(id(x))
        if number is not None:
            self._say("again", number)
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
            self._class(x)
        elif isinstance(x, torch.Tensor):
            self._tensor(x, kind)
        elif kind is types.FunctionType:
            self._function(x)
        elif kind is types.MethodType:
            self._all("method", (x.__func__, x.__self__))
        elif kind is types.CodeType:
            self._code(x)
        elif kind is types.ModuleType or isinstance(x, types.ModuleType):
            self._module(x)
        elif isinstance(x, _NAMED):
            self._say(kind.__qualname__, repr(x))
        elif isinstance(x, _BUILTIN):
            self._say("builtin", x.__qualname__)
            owner = getattr(x, "__self__", None)
            if owner is not None and not isinstance(owner, types.ModuleType):
                self._visit(owner)
        elif isinstance(x, enum.Enum):
            self._all("enum", (kind, x.name, x._value_))
        elif kind is property:
            self._all("property", (x.fget, x.fset, x.fdel))
        elif kind in (staticmethod, classmethod):
            self._all(kind.__name__, (x.__func__,))
        elif kind is functools.partial:
            self._all("partial", (x.func, x.args, x.keywords))
        elif kind is functools.cached_property:
            self._all("cached", (x.func, x.attrname))
        elif kind is functools._lru_cache_wrapper:
            if x.cache_info().currsize and self._is_foreign(x.__wrapped__):
                raise Unknown("what a function has cached")
            self._all("cache", (x.__wrapped__,))
        elif kind is types.CellType:
            self._say("cell")
            try:
                content = x.cell_contents
            except ValueError:
                return
            self._visit(content)
        elif kind in (weakref.ref, weakref.ProxyType):
            self._all("weak", (x() if kind is weakref.ref else None,))
        elif isinstance(x, logging.Logger):
            self._say("logger", x.name)
        elif kind is _FIELD:
            self._say("field", x.__reduce__()[1])
        elif isinstance(x, _LOCKS):
            self._say("lock")
        elif isinstance(x, pathlib.PurePath):
            self._say("path", str(x))
        elif kind is re.Pattern:
            self._say("pattern", x.pattern, x.flags)
        else:
            self._object(x, kind)

    def _all(self, label: str, values: Iterable[Any]) -> None:
        self._say("(", label)
        for value in values:
            self._visit(value)
        self._say(")")

    def _object(self, x: Any, kind: type) -> None:
        """Hashes containers and instances of classes of Python."""
        content = False
        self._say("(", kind.__qualname__)
        self._visit(kind)
        if isinstance(x, dict):
            content = True
            # No code of theirs runs.
            ordered = isinstance(x, collections.OrderedDict)
            for key, value in list((collections.OrderedDict if ordered else dict).items(x)):
                self._visit(key)
                self._visit(value)
        elif isinstance(x, (list, tuple, collections.deque)):
            content = True
            sequence: Any = next(b for b in (list, tuple, collections.deque) if isinstance(x, b))
            for value in [*sequence.__iter__(x)]:
                self._visit(value)
        elif isinstance(x, (set, frozenset)):
            content = True
            x = set(x)
            if not all(type(v) in _PLAIN or isinstance(v, type) for v in x):
                raise Unknown(f"a set of {sorted({type(v).__name__ for v in x})}")
            for text in sorted(v.__module__ + "." + v.__qualname__ if isinstance(v, type)
                               else type(v).__name__ + repr(v) for v in x):
                self._say(text)
        elif isinstance(x, types.MappingProxyType):
            content = True
            self._visit(dict(x))
        elif isinstance(x, (int, float, str, bytes)):
            content = True
            self._say(next(b.__repr__(x) for b in (int, float, str, bytes) if isinstance(x, b)))
        elif type(x).__module__ == "numpy":
            self._numpy(x)
            content = True
        try:
            own = object.__getattribute__(x, "__dict__")
        except AttributeError:
            own = None
        if type(own) is dict:
            for key, value in list(own.items()):
                if key not in _OF_PROCESS:
                    self._say(key)
                    self._visit(value)
        for base in kind.__mro__:
            slots = vars(base).get("__slots__", ())
            slots = (slots,) if isinstance(slots, str) else tuple(slots)
            if not content and base is not object and _hides(base, len(slots)):
                raise Unknown(f"an object of {kind.__module__}.{kind.__qualname__}")
            for slot in slots:
                if slot not in ("__dict__", "__weakref__"):
                    member: Any = vars(base).get(slot) or vars(base).get(
                        f"_{base.__name__.lstrip('_')}{slot}")
                    self._say(slot)
                    try:
                        self._visit(member.__get__(x))
                    except AttributeError:
                        self._say("unset")
        self._say(")")

    def _numpy(self, x: Any) -> None:
        if hasattr(x, "tobytes") and getattr(x.dtype, "hasobject", True) is False:
            data = x.tobytes()
            self._say(x.dtype, x.shape)
            self._data(data)
        elif type(x).__name__.endswith(("DType", "dtype")):
            self._say(repr(x))
        else:
            raise Unknown(f"an object of numpy.{type(x).__qualname__}")

    def _data(self, data: Any) -> None:
        self._bytes += len(data)
        if self._bytes > _MOST_BYTES:
            raise Unknown("buffers of many bytes")
        self._flush()
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
        self._say("tensor", kind.__qualname__, x.dtype, x.device, tuple(x.shape), x.stride(),
                  x.storage_offset(), x.requires_grad, x.is_conj(), x.is_neg(), x.is_inference(),
                  owner)
        if vars(x):
            self._visit(vars(x))
        if id(x) not in self._valueless and not x.is_meta:
            flat = x.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            self._data(flat.view(torch.uint8).numpy() if flat.numel() else b"")

    # ---------------------------------------------------------------- code

    def _code(self, code: types.CodeType) -> None:
        self._say("code", code.co_filename, code.co_name, code.co_firstlineno, code.co_flags,
                  code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
                  code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
                  code.co_code.hex(), code.co_linetable.hex(), getattr(code, "co_exceptiontable", b"").hex())
        for constant in code.co_consts:
            self._visit(constant)

    def _function(self, x: types.FunctionType) -> None:
        self._say("function", x.__qualname__)
        code = x.__code__
        if self._is_foreign(x) and not x.__globals__.get("__name__", "").startswith("namedtuple_"):
            self._met_foreign = True
        self._visit(code)
        self._visit(x.__defaults__)
        self._visit(x.__kwdefaults__)
        for name, value in vars(x).items():
            if name not in _OF_PROCESS:
                self._say(name)
                self._visit(value)
        for cell in x.__closure__ or ():
            self._visit(cell)
        if not self._is_foreign(x):
            return  # Its globals are those of an installed module.
        own, names = x.__globals__, _names(code)
        if unseen := _UNSEEN & names:
            raise Unknown(f"code that names {min(unseen)}")
        for name in sorted(names):
            if name in own:
                self._say("global", name)
                self._visit(own[name])

    def _class(self, x: type) -> None:
        self._say("class", x.__module__, x.__qualname__)
        if x.__module__ == "builtins" or not x.__flags__ & _HEAP or self._of_installed(x):
            return
        self._visit(type(x))
        for base in x.__bases__:
            self._visit(base)
        for name, value in list(vars(x).items()):
            if name not in _SKIPPED:
                self._say(name)
                self._visit(value)

    def _module(self, x: types.ModuleType) -> None:
        self._say("module", x.__name__)
        file = getattr(x, "__file__", None)
        top = x.__name__.split(".", 1)[0]
        if top in _FIXED or _is_standard(top) or (file is not None and self._is_installed(file)):
            return
        if file is None or x.__name__ == "__main__":
            raise Unknown(f"the module {x.__name__} as an object")
        for name, value in list(vars(x).items()):
            if name not in _SKIPPED:
                self._say(name)
                self._visit(value)


def _first(item: tuple[Any, Any]) -> str:
    return str(item[0])


def _within(member: Any) -> Any:
    """The function of a member of a class, if it is one."""
    if type(member) is property:
        return member.fget
    if type(member) in (staticmethod, classmethod):
        return member.__func__
    return member


def _hides(base: type, slots: int) -> bool:
    """Whether objects of a class have fields that are no attributes of Python, as those of native
    code have."""
    more = base.__basicsize__ - (base.__base__ or object).__basicsize__
    seen = slots + ("__dict__" in vars(base)) + ("__weakref__" in vars(base))
    return more > 8 * seen or base.__itemsize__ > 0


def _names(code: types.CodeType) -> set[str]:
    """The names that a function and those within it use. Raises `Unknown` if it imports what is not
    installed, whose state is none of the hash."""
    names = set(code.co_names)
    instructions = list(dis.get_instructions(code)) if "IMPORT_NAME" in _opcodes(code) else []
    for i, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            top = str(instruction.argval).split(".", 1)[0]
            file = getattr(sys.modules.get(top), "__file__", None)
            if instructions[i - 2].argval != 0 or not (
                    _is_standard(top) or (file or "").startswith(installed_folders())):
                raise Unknown(f"code that imports {instruction.argval}")
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            names |= _names(constant)
    return names


def _opcodes(code: types.CodeType) -> set[str]:
    return {dis.opname[op] for op in code.co_code[::2]}


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _is_standard(top: str) -> bool:
    return top in sys.stdlib_module_names
