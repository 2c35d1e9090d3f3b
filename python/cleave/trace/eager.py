# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Preserves autograd's semantics of eager code in a trace.

torch.export records what a forward computes, but not what autograd makes of it: `no_grad`,
writes to detached tensors, functions with custom backwards, hooks. While a model is traced,
its tensors still have autograd's state; `autograd_semantics` makes it explicit in the program,
or raises `EagerError` at the line of code that a compiled step does not support.
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

from .forward_state import Constants
from .locations import current_line
from .replacements import REPLACEMENTS


class EagerError(Exception):
    """Raised for eager code that a compiled step does not support; the text says what to do."""


class ForwardStateError(EagerError):
    """Raised for a forward that reads state which an earlier forward computed."""


_REFUSED: dict[Any, str] = {
    torch.Tensor.register_hook: "a hook on a tensor's gradient (register_hook) is not compiled; write "
                      "what it does into the forward, for example "
                      "x.detach() + scale * (x - x.detach()) to scale a gradient",
    torch.Tensor.register_post_accumulate_grad_hook:
        "a hook on a parameter's gradient (register_post_accumulate_grad_hook) is not "
        "compiled; remove it",
    torch.Tensor.retain_grad: "retain_grad() has no effect in a compiled step, which fills no .grad of a "
                    "tensor; remove it",
    torch.Tensor.grad.__get__: "reading .grad in the forward is not compiled: a step keeps gradients to "
                     "itself; remove it",
    torch.Tensor.grad.__set__: "writing .grad in the forward is not compiled; remove it",
    torch.Tensor.data.__set__: "assigning .data in the forward is not compiled; compute a new tensor",
}

_DETACH = (torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__)


def refuse_hooks(module: torch.nn.Module) -> None:
    """Raises EagerError for hooks of modules or parameters that backward would run."""
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
    """Raises EagerError where the storage of a trained parameter overlaps that of another
    tensor of the model, which is not the same object: an update would change both."""
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
    """The parameters of a module outside of a trace, which replaces them by fake ones."""

    def __init__(self, module: torch.nn.Module):
        self._kept = list(module.parameters())
        self.names = {id(p): n for n, p in module.named_parameters()}
        #: Names of the trained parameters, by storage.
        self.memory = {memory_of(p): n for n, p in module.named_parameters()
                       if p.requires_grad and not p.is_meta}
        #: Functions with custom backwards that the forward has called.
        self.functions: list[_Use] = []
        #: The tensors of the last trace that have the same elements in every forward.
        self.constants = Constants({})


class _AutogradMode(TorchFunctionMode):
    """Intercepts the calls of torch functions in a forward."""

    def __init__(self, originals: Originals, module: torch.nn.Module,
                 inputs: Mapping[str, torch.Tensor]):
        super().__init__()
        self._originals = originals
        self._module = module
        self._inputs = {memory_of(t): n for n, t in inputs.items()}
        #: Names of the model's tensors in the trace, by storage.
        self._memory = {memory_of(t): n for n, t in
                        (*module.named_parameters(), *module.named_buffers())}
        self._buffers = {n for n, _ in module.named_buffers()}
        #: By storage: the tensors that would be aliases of it in eager code, and the version
        #: of each (its number of writes) when it was detached.
        self._aliases: dict[int, list[tuple[torch.Tensor, int]]] = {}
        #: Tensors that have a gradient, by storage; held, so that it is not reused.
        self._graded: dict[int, torch.Tensor] = {}
        # Tensors computed from parameters are constants in evaluation: a model that stores
        # them must drop them when it is trained again.
        constants = [*module.buffers(), *(() if module.training else module.parameters())]
        self._constants = originals.constants = Constants({memory_of(t): t for t in constants})
        self._trace = next((t.fake_mode for t in inputs.values() if isinstance(t, FakeTensor)),
                           None)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        transform = torch._C._functorch.peek_interpreter_stack()
        if transform is not None:
            if transform.key() != torch._C._functorch.TransformType.Vmap:
                _refuse_backward()
            return function(*args, **kwargs)
        function = REPLACEMENTS.get(function, function)
        if function in _REFUSED:
            raise EagerError(_REFUSED[function])
        if function is torch.Tensor.detach_ and args[0].requires_grad:
            raise EagerError("detach_() changes a tensor that other names may hold; write "
                             "x = x.detach()")
        if function in (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__):
            self._check_requires_grad(*args, **kwargs)
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._traced, (args, kwargs))
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if getattr(function, "__name__", "") == "__get__" and function not in _DETACH:
            out = function(*args, **kwargs)
            if isinstance(out, torch.Tensor) and not torch.is_grad_enabled() and tensors[0].requires_grad:
                return out.detach()
            return out
        self._check_aliases(tensors)
        before = [(x, _version(x)) for x in tensors]
        given = [memory_of(x) for x in tensors if isinstance(x, FakeTensor)]
        if function in _DETACH and tensors[0].is_floating_point():
            out = self._detached(tensors[0])
            self._constants.note(function, given, {memory_of(out): out})
            return out
        if not torch.is_grad_enabled():
            args, kwargs = pytree.tree_map_only(torch.Tensor, _without_gradient, (args, kwargs))
        out = function(*args, **kwargs)
        results = [x for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
        for tensor, version in before:
            if _version(tensor) != version:
                self._check_written(tensor)
                results.append(tensor)
        self._constants.note(function, given, {memory_of(x): x for x in results})
        for tensor in (*tensors, *results):
            if tensor.requires_grad:
                self._graded.setdefault(memory_of(tensor), tensor)
        return out

    def _traced(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the fake tensor for a parameter that the code obtained before the trace.
        Raises for tensors of earlier traces, and for real ones that are trained."""
        if isinstance(tensor, FakeTensor) and self._trace not in (None, tensor.fake_mode):
            raise ForwardStateError(
                "the forward reads a tensor that an earlier forward computed and stored (in an "
                "attribute, a list or a closure), which a compiled step does not keep; compute it "
                "in each forward, or store it in a buffer (register_buffer)")
        if isinstance(tensor, FakeTensor) or tensor.is_meta:
            return tensor
        name = self._originals.names.get(id(tensor))
        if name is not None:
            return self._module.get_parameter(name)
        name = self._originals.memory.get(memory_of(tensor))
        if name is not None:
            raise EagerError(f"the forward uses a tensor that shares the memory of parameter "
                             f"'{name}', which training changes; read the parameter itself, or "
                             "clone it before the model is compiled")
        if tensor.requires_grad:
            raise EagerError("the forward uses a tensor that requires a gradient and is not a "
                             "parameter of the model; register it as a parameter, or detach() it")
        return tensor

    def _check_requires_grad(self, tensor, value=True, **kwargs) -> None:
        value = kwargs.get("requires_grad", value)
        if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad != value:
            raise EagerError("the forward changes requires_grad of a parameter; set it before the "
                             "model is compiled")

    def _detached(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns `tensor` detached, in a new storage. In eager code both would be aliases;
        `_check_aliases` detects writes to either."""
        out = tensor.detach().clone()
        aliases = [*self._aliases.get(memory_of(tensor), ()), (tensor, _version(tensor))]
        for other, _ in aliases:
            self._aliases.setdefault(memory_of(other), []).append((out, _version(out)))
        self._aliases[memory_of(out)] = [(x, _version(x)) for x, _ in aliases]
        return out

    def _check_aliases(self, tensors: list[torch.Tensor]) -> None:
        """Raises EagerError for tensors whose aliases in eager code have been written to."""
        for tensor in tensors:
            for other, version in self._aliases.get(memory_of(tensor), ()):
                if _version(other) != version:
                    raise EagerError(
                        "the forward reads a tensor that shares its memory with one that was "
                        "detached and then written to in place; write to a copy (detach().clone())")

    def _check_written(self, tensor: torch.Tensor) -> None:
        """Raises EagerError for a write that a compiled step does not support: to a parameter,
        an input, an alias of a buffer, or a tensor with a gradient under no_grad()."""
        memory = memory_of(tensor)
        shared = [memory, *(memory_of(x) for x, _ in self._aliases.get(memory, ()))]
        owners = [self._memory[m] for m in shared if m in self._memory]
        if owners:
            name = owners[0]
            if self._memory.get(memory) == name and any(
                    name == n for n, _ in self._module.named_buffers()):
                # A write to the buffer itself is part of the exported program.
                self._constants.forget(memory)
                return
            if name in self._buffers:
                raise EagerError(f"buffer '{name}' is written to through detach() or .data, or "
                                 "through the name of another buffer; write to the buffer itself, "
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


def memory_of(tensor: torch.Tensor) -> int:
    """Returns a number that identifies the storage of a tensor while it is alive."""
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        # Tensors within a transform of torch.func are wrappers without storage.
        return -id(tensor)


def _version(tensor: torch.Tensor) -> int:
    """The number of in-place writes to a tensor."""
    return 0 if tensor.is_inference() else tensor._version


def _without_gradient(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


# Functions with custom backwards -----------------------------------------------------


class _Context:
    """The `ctx` passed to a function that is differentiated as ordinary tensor code."""

    needs_input_grad = ()

    def save_for_backward(self, *tensors):
        pass

    mark_dirty = mark_non_differentiable = save_for_forward = save_for_backward
    set_materialize_grads = save_for_backward


def _forward(cls, args):
    """Runs the forward of a function as ordinary code, which autograd differentiates."""
    if cls.setup_context is torch.autograd.function._SingleLevelFunction.setup_context:
        return cls.forward(_Context(), *args)
    return cls.forward(*args)


@dataclasses.dataclass
class _Shape:
    """The shape of a floating-point argument."""

    sizes: tuple[int, ...]


@dataclasses.dataclass
class _Use:
    """A use of a function with a custom backward, which is checked after the trace."""

    function: type
    #: The arguments; floating-point tensors are replaced by their shapes.
    args: tuple[Any, ...]
    place: str


def check_functions(uses: list[_Use]) -> None:
    """Raises EagerError where a function's backward is not the derivative of its forward, which
    a compiled step computes. Compared in f64 at random points, with small and large arguments
    and gradients, some of them zero."""
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


def _is_derivative(use: _Use, size: float, gradients: float, seed: int) -> bool:
    """Whether the backward of a function equals the derivative of its forward at one random
    point, with arguments of scale `size` and result gradients of scale `gradients`."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(shape, size):
        found = torch.randn(shape, generator=generator, dtype=torch.float64) * size
        zero = torch.rand(shape, generator=generator) < (0.25 if seed % 2 else 0.0)
        return found.masked_fill(zero, 0.0)

    args = pytree.tree_map_only(_Shape, lambda s: drawn(s.sizes, size).requires_grad_(), use.args)
    points = [x for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
    found = []
    for compute in (use.function.apply, lambda *a: _forward(use.function, a)):
        outputs = [y for y in pytree.tree_leaves(compute(*args)) if isinstance(y, torch.Tensor)]
        state = generator.get_state()
        found.append(torch.autograd.grad(outputs, points, [drawn(y.shape, gradients) for y in outputs],
                                         allow_unused=True))
        generator.set_state(state)
    return all((a is None) == (b is None) and (a is None or torch.allclose(
        a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))) for a, b in zip(*found))


@contextlib.contextmanager
def _without_writes(module: torch.nn.Module) -> Iterator[None]:
    """Context of the code that checkpoint runs. Raises EagerError if it writes to a buffer."""
    before = {n: (b, _version(b)) for n, b in module.named_buffers()}
    yield
    for name, buffer in module.named_buffers():
        known, version = before.get(name, (None, 0))
        if known is not buffer or version != _version(buffer):
            raise EagerError(f"buffer '{name}' is written to within torch.utils.checkpoint, which "
                             "eager PyTorch does twice a step; write to it outside, or call the "
                             "code without checkpoint: a compiled step chooses itself what it "
                             "recomputes")


def _generator(original: Callable[..., Any], module: torch.nn.Module) -> Callable[..., Any]:
    """Returns the replacement of the generator that checkpoint runs around its function, with
    use_reentrant=False."""
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
    """Returns the replacement of `torch.autograd.Function.apply` in a trace."""
    from torch.utils.checkpoint import CheckpointFunction

    def apply(cls, *args, **kwargs):
        graded = torch.is_grad_enabled() and any(
            isinstance(x, torch.Tensor) and x.requires_grad for x in pytree.tree_leaves((args, kwargs)))
        if cls is CheckpointFunction:
            # Checkpoint with use_reentrant=True recomputes its function in backward, with equal
            # values. If no argument has a gradient, no result has one.
            function, _, *rest = args
            with _without_writes(module) if graded else torch.no_grad():
                return function(*rest)
        if graded and not cls.__module__.startswith("torch."):
            shapes = pytree.tree_map_only(
                torch.Tensor, lambda x: _Shape(tuple(x.shape)) if x.is_floating_point() else x, args)
            uses.append(_Use(cls, shapes, current_line()))
            return _forward(cls, args)
        return original.__func__(cls, *args, **kwargs)

    return classmethod(apply)


def _enter(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the replacement of `saved_tensors_hooks.__enter__` in a trace."""
    def enter(self):
        if not type(self).__module__.startswith("torch.") or \
                type(self) is torch.autograd.graph.saved_tensors_hooks:
            raise EagerError("saved_tensors_hooks are not run by a compiled step, which saves "
                             "what it needs itself; remove them")
        return original(self)
    return enter


def _refuse_backward(*args, **kwargs):
    """The replacement of autograd's engine in a trace."""
    raise EagerError("a gradient is computed in the forward (autograd.grad, torch.func.grad or "
                     "backward()); a compiled step differentiates the loss once. Write the "
                     "derivative out")


@contextlib.contextmanager
def _patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Context in which each attribute (owner, name, value) is replaced."""
    kept = [(owner, name, owner.__dict__[name]) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


@contextlib.contextmanager
def _only_torch_random_numbers() -> Iterator[None]:
    """Context that restores the random states of Python and NumPy. Raises EagerError at its end
    if the code has drawn random numbers of these."""
    before = random.getstate(), np.random.get_state()
    places: list[str] = []
    drawing = [(owner, name, _recording_calls(vars(owner)[name], places))
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


def _recording_calls(function: Callable[..., Any], places: list[str]) -> Callable[..., Any]:
    """Returns `function` with the lines of its calls appended to `places`, as `file:line: `."""
    def called(*args, **kwargs):
        frame = sys._getframe(1)
        places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}: ")
        return function(*args, **kwargs)
    return called


@contextlib.contextmanager
def autograd_semantics(originals: Originals, module: torch.nn.Module,
                       inputs: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Context in which a forward of `module` with `inputs` is traced with autograd's semantics.
    Raises EagerError, at the line of code, for what a compiled step does not support."""
    originals.functions.clear()
    function = torch.autograd.Function
    hooks = torch.autograd.graph.saved_tensors_hooks
    checkpoint, generator = torch.utils.checkpoint, "_checkpoint_without_reentrant_generator"
    with _patched((function, "apply",
                   _apply(function.__dict__["apply"], originals.functions, module)),
                  (checkpoint, generator, _generator(checkpoint.__dict__[generator], module)),
                  (hooks, "__enter__", _enter(hooks.__dict__["__enter__"])),
                  (torch.autograd, "_engine_run_backward", _refuse_backward)), \
            _only_torch_random_numbers(), _AutogradMode(originals, module, inputs):
        yield


@contextlib.contextmanager
def assigned_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Context at whose end a tensor that the code has assigned to the name of a buffer is
    written to the buffer. Raises EagerError where its shape or type differs."""
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
                "the shape and type of a buffer are fixed")
        with torch.no_grad():
            buffer.copy_(value)
        part._buffers[key] = buffer


def reached(loss: torch.Tensor, module: torch.nn.Module) -> set[str]:
    """Returns the names of the parameters that receive a gradient of `loss` from autograd."""
    names = {id(p): n for n, p in module.named_parameters()}
    # A loss that is a parameter has no grad_fn.
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
