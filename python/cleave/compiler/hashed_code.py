# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Code in the hash of what a trace may read: functions with their bytecode, closures and globals,
classes and modules; which of it is of an installed package.

Of installed code the name is enough: that it is the code of its file is said in `hashed_packages`.
"""

from __future__ import annotations

import dis
import os
import sys
import types
from typing import TYPE_CHECKING, Any

from .verdicts import installed_folders

if TYPE_CHECKING:
    from .hashed_objects import Objects

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Cleave's own files are hashed wherever they are.
_INSTALLED = (*installed_folders(), _HERE)
#: Names by which code reads what is not in the hash.
_UNSEEN = frozenset({
    "globals", "eval", "exec", "open", "__import__", "import_module", "input", "id", "hash", "sys",
    "inspect", "gc", "time", "datetime", "socket", "subprocess", "ctypes", "getpid", "urandom",
    "tempfile", "uuid", "locals", "vars", "data_ptr", "_cdata",
    "ops", "library", "get_rng_state", "initial_seed", "default_generator", "seed", "fromfile", "memmap",
    "load", "read_text", "read_bytes", "readline", "readlines", "fdopen", "popen", "listdir", "scandir", "glob",
    "iterdir", "walk", "exists", "is_file", "isfile", "stat", "getmtime", "loadtxt", "genfromtxt", "load_file",
    "safe_open", "urlopen", "perf_counter", "monotonic", "time_ns", "getloadavg", "cpu_count", "current_process",
    "current_thread", "get_ident", "getframe", "_getframe", "getsource", "__subclasses__"})
#: Modules of the standard library whose functions follow from their arguments. `random` is none;
#: but a trace refuses what it draws.
_PURE = frozenset({
    "__future__", "abc", "base64", "binascii", "bisect", "builtins", "cmath", "collections", "contextlib", "copy",
    "copyreg", "dataclasses", "enum", "fractions", "functools", "hashlib", "heapq", "itertools", "json",
    "keyword", "logging", "math", "numbers", "operator", "os", "pprint", "random", "re", "reprlib", "sre_compile",
    "sre_parse", "statistics", "string", "struct", "textwrap", "types", "typing", "warnings", "weakref", "zlib",
    "_abc", "_bisect", "_collections", "_collections_abc", "_functools", "_heapq", "_operator", "_random", "_sre",
    "_struct", "_warnings", "_weakref", "_weakrefset"})
#: Of `os`, what code may name: the environment, the folder and the type of the machine are in the hash.
_OF_OS = frozenset({"environ", "environb", "getenv", "getenvb", "path", "fspath", "getcwd", "name", "sep", "linesep",
                    "join", "basename", "dirname", "split", "splitext", "normpath", "isabs", "abc", "PathLike"})
#: Installed packages whose functions code may call.
_KNOWN = frozenset({"torch", "numpy", "cleave", "functorch", "transformers", "peft", "trl", "accelerate", "diffusers",
                    "timm", "einops", "torchvision", "torchaudio", "typing_extensions", "packaging"})
#: Packages whose objects are what their code has made of them.
FIXED = {"torch", "numpy", "sympy", "mpmath", "torchgen", "functorch", "cleave"}
SKIPPED = {"__dict__", "__weakref__", "__doc__", "_abc_impl", "__builtins__", "__cached__",
           "__loader__", "__spec__", "__file__", "__path__", "__abstractmethods__"}
#: Names of what differs in each process: a hash of text, an address, a random name of a session.
OF_PROCESS = {"_original_object_hash", "_torchdynamo_wrapper_id", "SESSION_ID"}
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))
#: The flag of classes that are made while a program runs.
HEAP = 1 << 9


class Unknown(Exception):
    """Raised for what cannot be hashed; says what it is."""


def hash_code(walk: Objects, code: types.CodeType) -> None:
    walk.say("code", code.co_filename, code.co_name, code.co_firstlineno, code.co_flags,
             code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
             code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
             code.co_code.hex(), code.co_linetable.hex(), getattr(code, "co_exceptiontable", b"").hex())
    for constant in code.co_consts:
        walk.visit(constant)


def hash_function(walk: Objects, x: types.FunctionType) -> None:
    walk.say("function", x.__qualname__)
    code = x.__code__
    foreign = is_foreign(x)
    if foreign and not x.__globals__.get("__name__", "").startswith("namedtuple_"):
        walk.met_foreign = True
    walk.visit(code)
    walk.visit(x.__defaults__)
    walk.visit(x.__kwdefaults__)
    for name, value in vars(x).items():
        if name not in OF_PROCESS:
            walk.say(name)
            walk.visit(value)
    for cell in x.__closure__ or ():
        walk.visit(cell)
    if not foreign:
        check_called(x)
        return  # Its globals are those of an installed module.
    own, names = x.__globals__, _names(code)
    if unseen := _UNSEEN & names:
        raise Unknown(f"code that names {min(unseen)}")
    if any(name.split(".", 1)[0] == "os" or own.get(name) is os or own.get(name) is os.path for name in names):
        if of_os := names & (vars(os).keys() | vars(os.path).keys()) - _OF_OS - {"os"}:
            raise Unknown(f"code that names os and {min(of_os)}")
    for name in sorted(names):
        if name in own:
            walk.say("global", name)
            walk.visit(own[name])


def check_called(x: Any) -> None:
    """Raises `Unknown` for a function or class of an installed module that may read what is not in
    the hash, by whatever name code knows it."""
    module, name = getattr(x, "__module__", None) or "builtins", x.__name__
    if name in _UNSEEN or not _is_seen(module) or (module == "os" and name not in _OF_OS):
        raise Unknown(f"code that may call {module}.{name}")


def _is_seen(module: str) -> bool:
    """Whether what the functions of an installed module return follows from what is in the hash."""
    top = module.split(".", 1)[0]
    file = getattr(sys.modules.get(top), "__file__", None)
    if is_standard(top):
        return top in _PURE
    return top in _KNOWN or (file is not None and not is_installed(file))


def hash_class(walk: Objects, x: type) -> None:
    walk.say("class", x.__module__, x.__qualname__)
    if x.__module__ == "builtins" or not x.__flags__ & HEAP or of_installed(x):
        return
    walk.visit(type(x))
    for base in x.__bases__:
        walk.visit(base)
    for name, value in list(vars(x).items()):
        if name not in SKIPPED:
            walk.say(name)
            walk.visit(value)


def hash_module(walk: Objects, x: types.ModuleType) -> None:
    walk.say("module", x.__name__)
    file = getattr(x, "__file__", None)
    top = x.__name__.split(".", 1)[0]
    if top in FIXED or is_standard(top) or (file is not None and is_installed(file)):
        if not _is_seen(top):
            raise Unknown(f"the module {x.__name__}")
        return
    if file is None or x.__name__ == "__main__":
        raise Unknown(f"the module {x.__name__} as an object")
    for name, value in list(vars(x).items()):
        if name not in SKIPPED:
            walk.say(name)
            walk.visit(value)


def _names(code: types.CodeType) -> set[str]:
    """The names that a function and those within it use. Raises `Unknown` if it imports what is not
    installed, whose state is none of the hash."""
    names = set(code.co_names)
    instructions = list(dis.get_instructions(code)) if "IMPORT_NAME" in _opcodes(code) else []
    for i, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            top = str(instruction.argval).split(".", 1)[0]
            file = getattr(sys.modules.get(top), "__file__", None)
            if instructions[i - 2].argval != 0 or not _is_seen(top) or not (
                    is_standard(top) or (file or "").startswith(installed_folders())):
                raise Unknown(f"code that imports {instruction.argval}")
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            names |= _names(constant)
    return names


def _opcodes(code: types.CodeType) -> set[str]:
    return {dis.opname[op] for op in code.co_code[::2]}


def within(member: Any) -> Any:
    """The function of a member of a class, if it is one."""
    if type(member) is property:
        return member.fget
    if type(member) in (staticmethod, classmethod):
        return member.__func__
    return member


def is_standard(top: str) -> bool:
    return top in sys.stdlib_module_names


def is_installed(file: str) -> bool:
    return file.startswith(_INSTALLED) or file[:1] == "<"


def is_foreign(function: types.FunctionType) -> bool:
    """Whether a function is not of an installed file, nor made by code of one in its name."""
    file = function.__code__.co_filename
    if file[:1] != "<" or file.startswith("<frozen"):
        return not file.startswith(("<", *_INSTALLED))
    module = sys.modules.get(function.__globals__.get("__name__", ""))
    of = getattr(module, "__file__", None)
    return (module is None or vars(module) is not function.__globals__ or of is None
            or not is_installed(of))


def is_standing(kind: type) -> bool:
    """Whether a class is one of an installed package or of Python itself."""
    return kind.__module__ == "builtins" or not kind.__flags__ & HEAP or not any(
        type(f) is types.FunctionType and is_foreign(f)
        for f in map(within, vars(kind).values()))


def of_installed(kind: type) -> bool:
    """Whether a class is the one of its name in an installed module, which `hash_installed` hashes."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if module is None or kind.__module__ == "__main__" or (
            file is not None and not is_installed(file)):
        return False
    found: Any = module
    for part in kind.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found is kind
