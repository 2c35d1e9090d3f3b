# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What eager code does to gradients, watched while it is traced.

torch.export keeps what a forward computes and forgets what autograd would make
of it: `no_grad`, writes to detached tensors, functions with a backward of their
own, hooks. While a model is traced its tensors still have autograd's state, and
`watched` makes that explicit in the program, or raises `EagerError` at the line
of what a compiled step cannot do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
from typing import Any, Callable, Iterator, Mapping

import numpy as np
import torch
import torch.utils.checkpoint
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .kept import Constants, name_of
from .locations import here
from .rewritten import REWRITTEN


class EagerError(Exception):
    """Something that eager code does and a compiled step cannot; the text says
    what to do."""


class KeptError(EagerError):
    """A forward reads a tensor that another one computed."""


_T = torch.Tensor

_REFUSED: dict[Any, str] = {
    _T.register_hook: "a hook on a tensor's gradient (register_hook) is not compiled; write "
                      "what it does into the forward, for example "
                      "x.detach() + scale * (x - x.detach()) to scale a gradient",
    _T.register_post_accumulate_grad_hook:
        "a hook on a parameter's gradient (register_post_accumulate_grad_hook) is not "
        "compiled; remove it",
    _T.retain_grad: "retain_grad() has no effect in a compiled step, which fills no .grad of a "
                    "tensor; remove it",
    _T.grad.__get__: "reading .grad in the forward is not compiled: a step keeps gradients to "
                     "itself; remove it",
    _T.grad.__set__: "writing .grad in the forward is not compiled; remove it",
    _T.data.__set__: "assigning .data in the forward is not compiled; compute a new tensor",
}

_DETACH = (_T.detach, torch.detach, _T.data.__get__)


def refuse_hooks(module: torch.nn.Module) -> None:
    """Raises EagerError where backward would run hooks of a module or parameter."""
    places = torch.nn.modules.module
    if places._global_backward_hooks or places._global_backward_pre_hooks:
        raise EagerError("backward hooks of all modules are registered, and a compiled step "
                         "does not run them; remove them")
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            what = f"module '{name}'" if name else "the model"
            raise EagerError(f"{what} has backward hooks, which a compiled step does not run; "
                             "remove them (the handle's remove())")
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and (parameter._backward_hooks
                                        or parameter._post_accumulate_grad_hooks):
            raise EagerError(f"parameter '{name}' has hooks on its gradient, which a compiled "
                             "step does not run; remove them (the handle's remove())")


def refuse_shared_memory(module: torch.nn.Module) -> None:
    """Raises EagerError where an update of a trained parameter writes to another
    tensor of the model, one that is not the same object."""
    named = {id(t): (n, t) for n, t in
             (*module.named_buffers(), *module.named_parameters())}
    spans = []
    for name, tensor in named.values():
        if tensor.is_meta or not tensor.numel() or tensor.layout is not torch.strided:
            continue
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
        begin = tensor.data_ptr()
        trained = isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad
        spans.append((begin, begin + (last + 1) * tensor.element_size(), name, trained))
    spans.sort()
    for i, (_, end, name, trained) in enumerate(spans):
        for begin, _, other, trained_too in spans[i + 1:]:
            if begin >= end:
                break
            if trained or trained_too:
                raise EagerError(
                    f"'{name}' and '{other}' share memory and are two tensors: an update of one "
                    "would change the other. Make them one parameter (model.b.weight = "
                    "model.a.weight), or clone one")


class Originals:
    """The parameters of a module as they are outside of a trace, where others take
    their place."""

    def __init__(self, module: torch.nn.Module, loss_fn: Any = None):
        self._kept = list(module.parameters())
        #: Where the name of a tensor that is none of the module's is looked for.
        self.owners = module, loss_fn
        self.names = {id(p): n for n, p in module.named_parameters()}
        #: Names of those that are trained, by memory.
        self.memory = {memory_of(p): n for n, p in module.named_parameters()
                       if p.requires_grad and not p.is_meta}
        #: Functions with a backward of their own that the forward has called.
        self.functions: list[_Use] = []
        #: The tensors of the last trace that are the same in every forward.
        self.constants = Constants({})


class _Watch(TorchFunctionMode):
    """Sees each call of torch that a forward makes."""

    def __init__(self, originals: Originals, module: torch.nn.Module,
                 inputs: Mapping[str, torch.Tensor]):
        super().__init__()
        self._originals = originals
        self._module = module
        self._inputs = {memory_of(t): n for n, t in inputs.items()}
        #: Names of the model's tensors by memory, within the trace.
        self._memory = {memory_of(t): n for n, t in
                        (*module.named_parameters(), *module.named_buffers())}
        self._buffers = {n for n, _ in module.named_buffers()}
        #: By memory: tensors that eager code would share it with, and how often
        #: each had been written to when it was cut off.
        self._partners: dict[int, list[tuple[torch.Tensor, int]]] = {}
        #: Memory of tensors that have a gradient; kept, so that it is not used again.
        self._graded: dict[int, torch.Tensor] = {}
        # What evaluation keeps of parameters is computed anew, as by a model that drops it
        # when it is trained again.
        alike = [*module.buffers(), *(() if module.training else module.parameters())]
        self._constants = originals.constants = Constants({memory_of(t): t for t in alike})
        self._trace = next((t.fake_mode for t in inputs.values() if isinstance(t, FakeTensor)),
                           None)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        transform = torch._C._functorch.peek_interpreter_stack()
        if transform is not None:
            if transform.key() != torch._C._functorch.TransformType.Vmap:
                _no_backward()
            return function(*args, **kwargs)
        function = REWRITTEN.get(function, function)
        if function in _REFUSED:
            raise EagerError(_REFUSED[function])
        if function is _T.detach_ and args[0].requires_grad:
            raise EagerError("detach_() changes a tensor that other names may hold; write "
                             "x = x.detach()")
        if function in (_T.requires_grad_, _T.requires_grad.__set__):
            self._check_requires_grad(*args, **kwargs)
        args, kwargs = pytree.tree_map_only(_T, self._own, (args, kwargs))
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, _T)]
        if getattr(function, "__name__", "") == "__get__" and function not in _DETACH:
            out = function(*args, **kwargs)
            if isinstance(out, _T) and not torch.is_grad_enabled() and tensors[0].requires_grad:
                return out.detach()
            return out
        self._check_alike(tensors)
        for tensor in _written_by(function, args, kwargs):
            if not isinstance(tensor, FakeTensor) and self._trace is not None:
                raise EagerError(f"{name_of(tensor, *self._originals.owners)} {OUTSIDE}")
        before = [(x, _version(x)) for x in tensors]
        given = [memory_of(x) for x in tensors if isinstance(x, FakeTensor)]
        if function in _DETACH and tensors[0].is_floating_point():
            out = self._detached(tensors[0])
            self._constants.note(function, given, {memory_of(out): out})
            return out
        if not torch.is_grad_enabled():
            args, kwargs = pytree.tree_map_only(_T, _cut, (args, kwargs))
        out = function(*args, **kwargs)
        results = [x for x in pytree.tree_leaves(out) if isinstance(x, _T)]
        for tensor, version in before:
            if _version(tensor) != version:
                self._check_written(tensor)
                results.append(tensor)
        self._constants.note(function, given, {memory_of(x): x for x in results})
        for tensor in (*tensors, *results):
            if tensor.requires_grad:
                self._graded.setdefault(memory_of(tensor), tensor)
        return out

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the trace for one that the code took from the model before."""
        if isinstance(tensor, FakeTensor) and self._trace not in (None, tensor.fake_mode):
            raise KeptError("a tensor is read that the forward before this one computed and kept "
                            "(in an attribute, a list or a closure), and a compiled step keeps "
                            "none; compute it anew, or keep it in a buffer (register_buffer)")
        if isinstance(tensor, FakeTensor) or tensor.is_meta:
            return tensor
        name = self._originals.names.get(id(tensor))
        if name is not None:
            return self._module.get_parameter(name)
        name = self._originals.memory.get(memory_of(tensor))
        if name is not None:
            raise EagerError(f"a tensor is used that shares the memory of parameter '{name}', "
                             "which training changes; read the parameter itself, or clone it "
                             "before the model is compiled")
        if tensor.requires_grad:
            raise EagerError("a tensor that requires a gradient and is not a parameter of the "
                             "model is used; register it as a parameter, or detach() it")
        return tensor

    def _check_requires_grad(self, tensor, value=True, **kwargs) -> None:
        value = kwargs.get("requires_grad", value)
        if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad != value:
            raise EagerError("requires_grad of a parameter is changed in the forward; freeze or "
                             "train it before the model is compiled")

    def _detached(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` cut off from its gradient, in memory of its own: a write to either
        would be one to both in eager code, and is seen by `_check_alike`."""
        out = tensor.detach().clone()
        partners = [*self._partners.get(memory_of(tensor), ()), (tensor, _version(tensor))]
        for other, _ in partners:
            self._partners.setdefault(memory_of(other), []).append((out, _version(out)))
        self._partners[memory_of(out)] = [(x, _version(x)) for x, _ in partners]
        return out

    def _check_alike(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            for other, version in self._partners.get(memory_of(tensor), ()):
                if _version(other) != version:
                    raise EagerError(
                        "a tensor is read that shares its memory with one that was detached and "
                        "then written to in place; write to a copy (detach().clone())")

    def _check_written(self, tensor: torch.Tensor) -> None:
        memory = memory_of(tensor)
        shared = [memory, *(memory_of(x) for x, _ in self._partners.get(memory, ()))]
        owners = [self._memory[m] for m in shared if m in self._memory]
        if owners:
            name = owners[0]
            if self._memory.get(memory) == name and any(
                    name == n for n, _ in self._module.named_buffers()):
                # The trace has the new value.
                self._constants.forget(memory)
                return
            if name in self._buffers:
                raise EagerError(f"buffer '{name}' is written to through detach() or .data, or "
                                 "where another buffer's name stood; write to the buffer itself, "
                                 "under torch.no_grad()")
            raise EagerError(f"parameter '{name}' is written to in the forward; a compiled step "
                             "changes parameters by its optimizer alone. Write to a copy "
                             "(clone())")
        written = [self._inputs[m] for m in shared if m in self._inputs]
        if written:
            raise EagerError(f"the model writes to its input '{written[0]}', which a step only "
                             "reads; write to a copy (clone())")
        if memory in self._graded and not torch.is_grad_enabled():
            raise EagerError("a tensor that has a gradient is written to in place under "
                             "no_grad(); compute a new tensor")


#: Of a tensor that the forward writes.
OUTSIDE = ("is written to in the forward, and is no buffer of the model: a compiled step keeps "
           "nothing else. Register it there (register_buffer); a loss function that keeps "
           "tensors can be a part of the model, whose forward then returns the loss")
#: Functions with names like those that write, which do not.
_NOT_WRITTEN = {"requires_grad_", "detach_", "share_memory_", "rename_"}


def _written_by(function: Any, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that a function writes, by its name and its argument `out`."""
    name = getattr(function, "__name__", "")
    in_place = name == "__setitem__" or (
        name.startswith("__i") and name not in ("__int__", "__index__", "__invert__")
        if name.endswith("__") else name.endswith("_") and name not in _NOT_WRITTEN)
    written = [*(args[:1] if in_place else ()), kwargs.get("out")]
    return [x for x in pytree.tree_leaves(written) if isinstance(x, _T)]


def memory_of(tensor: torch.Tensor) -> int:
    """What names the memory of a tensor, while it lives."""
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        # Within a transform of torch.func, whose tensors are wrapped.
        return -id(tensor)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _cut(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


# Functions with a backward of their own ----------------------------------------------


class _Context:
    """Stands for the `ctx` of a function that is differentiated as ordinary code."""

    needs_input_grad = ()

    def save_for_backward(self, *tensors):
        pass

    mark_dirty = mark_non_differentiable = save_for_forward = save_for_backward
    set_materialize_grads = save_for_backward


def _forward(cls, args):
    """The value of a function, computed by code that autograd sees."""
    if cls.setup_context is torch.autograd.function._SingleLevelFunction.setup_context:
        return cls.forward(_Context(), *args)
    return cls.forward(*args)


@dataclasses.dataclass
class _Shape:
    """Stands for a tensor of floats, of which no more is known."""

    sizes: tuple[int, ...]


@dataclasses.dataclass
class _Use:
    """A use of a function, to be tried when the trace is done."""

    function: type
    #: Its arguments; tensors of floats by shape.
    args: tuple[Any, ...]
    place: str


def check_functions(uses: list[_Use]) -> None:
    """Raises EagerError where a function's backward is not the derivative of its
    forward, which is what a step computes; tried in f64 at random points, of small and
    large numbers and gradients, some of them zero."""
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


#: Of numbers and of gradients.
_SIZES = ((0.1, 0.1), (1.0, 1.0), (10.0, 10.0), (1.0, 1e-6), (1.0, 1e-3), (1.0, 1e4), (1e3, 1.0))


def _is_derivative(use: _Use, size: float, gradients: float, seed: int) -> bool:
    generator = torch.Generator().manual_seed(seed)

    def drawn(shape, size):
        found = torch.randn(shape, generator=generator, dtype=torch.float64) * size
        zero = torch.rand(shape, generator=generator) < (0.25 if seed % 2 else 0.0)
        return found.masked_fill(zero, 0.0)

    args = pytree.tree_map_only(_Shape, lambda s: drawn(s.sizes, size).requires_grad_(), use.args)
    points = [x for x in pytree.tree_leaves(args) if isinstance(x, _T)]
    found = []
    for compute in (use.function.apply, lambda *a: _forward(use.function, a)):
        outputs = [y for y in pytree.tree_leaves(compute(*args)) if isinstance(y, _T)]
        state = generator.get_state()
        found.append(torch.autograd.grad(outputs, points, [drawn(y.shape, gradients) for y in outputs],
                                         allow_unused=True))
        generator.set_state(state)
    return all((a is None) == (b is None) and (a is None or torch.allclose(
        a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))) for a, b in zip(*found))


@contextlib.contextmanager
def _without_writes(module: torch.nn.Module) -> Iterator[None]:
    """Within it runs what checkpoint runs."""
    before = {n: (b, _version(b)) for n, b in module.named_buffers()}
    yield
    for name, buffer in module.named_buffers():
        known, version = before.get(name, (None, 0))
        if known is not buffer or version != _version(buffer):
            raise EagerError(f"buffer '{name}' is written to within torch.utils.checkpoint, which "
                             "eager PyTorch does twice a step; write to it outside, or call the "
                             "code without checkpoint: a compiled step chooses itself what it "
                             "computes again")


def _generator(original: Callable[..., Any], module: torch.nn.Module) -> Callable[..., Any]:
    """What checkpoint runs around its function, with use_reentrant=False."""
    def generate(*args, **kwargs):
        inner = original(*args, **kwargs)
        next(inner)
        try:
            with _without_writes(module):
                yield
        except BaseException as error:
            inner.throw(error)
            raise
        yield from inner
    return generate


def _apply(original: Callable[..., Any], uses: list[_Use], module: torch.nn.Module) -> classmethod:
    """`torch.autograd.Function.apply` while a model is traced."""
    from torch.utils.checkpoint import CheckpointFunction

    def apply(cls, *args, **kwargs):
        graded = torch.is_grad_enabled() and any(
            isinstance(x, _T) and x.requires_grad for x in pytree.tree_leaves((args, kwargs)))
        if cls is CheckpointFunction:
            # It computes what it is given again in backward; the values are the same. Where
            # nothing given has a gradient, nothing within has one.
            function, _, *rest = args
            with _without_writes(module) if graded else torch.no_grad():
                return function(*rest)
        if graded and not cls.__module__.startswith("torch."):
            uses.append(_Use(cls, pytree.tree_map_only(
                _T, lambda x: _Shape(tuple(x.shape)) if x.is_floating_point() else x, args), here()))
            return _forward(cls, args)
        return original.__func__(cls, *args, **kwargs)

    return classmethod(apply)


def _enter(original: Callable[..., Any]) -> Callable[..., Any]:
    """`saved_tensors_hooks.__enter__` while a model is traced."""
    def enter(self):
        if not type(self).__module__.startswith("torch.") or \
                type(self) is torch.autograd.graph.saved_tensors_hooks:
            raise EagerError("saved_tensors_hooks are not run by a compiled step, which saves "
                             "what it needs itself; remove them")
        return original(self)
    return enter


def _no_backward(*args, **kwargs):
    raise EagerError("a gradient is computed in the forward (autograd.grad, torch.func.grad or "
                     "backward()); a compiled step differentiates the loss once. Write the "
                     "derivative out")


@contextlib.contextmanager
def _patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    kept = [(owner, name, owner.__dict__[name]) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Raises EagerError where the code draws random numbers outside of torch."""
    before = random.getstate(), np.random.get_state()
    places: list[str] = []
    drawing = [(owner, name, _said_where(vars(owner)[name], places))
               for owner, methods in ((random, random.Random), (np.random, np.random.RandomState))
               for name in vars(owner).keys() & set(dir(methods))
               if name[0] != "_" and "state" not in name]
    try:
        with _patched(*drawing):
            yield
        drawn = random.getstate() != before[0] or any(
            np.any(a != b) for a, b in zip(np.random.get_state(), before[1]))
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
    if drawn:
        raise EagerError("".join(places[:1]) + "the forward draws random numbers of Python or NumPy, "
                         "which a compiled step would draw once for all steps; draw them by torch")


def _said_where(function: Callable[..., Any], places: list[str]) -> Callable[..., Any]:
    """`function`, which puts down the lines that call it as `file:line: `."""
    def called(*args, **kwargs):
        frame = sys._getframe(1)
        places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}: ")
        return function(*args, **kwargs)
    return called


@contextlib.contextmanager
def watched(originals: Originals, module: torch.nn.Module,
            inputs: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Within it a forward of `module` with `inputs` is traced as autograd sees it."""
    originals.functions.clear()
    function = torch.autograd.Function
    hooks = torch.autograd.graph.saved_tensors_hooks
    checkpoint, generator = torch.utils.checkpoint, "_checkpoint_without_reentrant_generator"
    with _patched((function, "apply",
                   _apply(function.__dict__["apply"], originals.functions, module)),
                  (checkpoint, generator, _generator(checkpoint.__dict__[generator], module)),
                  (hooks, "__enter__", _enter(hooks.__dict__["__enter__"])),
                  (torch.autograd, "_engine_run_backward", _no_backward)), \
            _same_random_numbers(), _Watch(originals, module, inputs):
        yield


@contextlib.contextmanager
def assigned_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Within it, a tensor that the code assigns to a buffer is written to it."""
    before = [(name, part, key, buffer) for name, part in module.named_modules()
              for key, buffer in part._buffers.items()]
    yield
    for name, part, key, buffer in before:
        value = part._buffers.get(key)
        if value is buffer:
            continue
        place = f"{name}.{key}".lstrip(".")
        if buffer is None or value is None:
            raise EagerError(f"buffer '{place}' is {'made' if buffer is None else 'removed'} in the "
                             "forward; register it before, with its shape")
        if value.shape != buffer.shape or value.dtype != buffer.dtype:
            raise EagerError(
                f"buffer '{place}' is replaced by one of another shape or type "
                f"({list(value.shape)}, {value.dtype} for {list(buffer.shape)}, {buffer.dtype}); "
                "a step keeps those it has")
        with torch.no_grad():
            buffer.copy_(value)
        part._buffers[key] = buffer


def reached(loss: torch.Tensor, module: torch.nn.Module) -> set[str]:
    """Names of the parameters to which autograd would give a gradient."""
    names = {id(p): n for n, p in module.named_parameters()}
    # A loss that is a parameter has no function that made it.
    found = {names[id(loss)]} if id(loss) in names and loss.requires_grad else set()
    seen, pending = set(), [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in names:
            found.add(names[id(variable)])
        pending += [n for n, _ in node.next_functions]
    return found
