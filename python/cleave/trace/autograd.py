# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Preserves the autograd semantics of eager code in a trace.

torch.export records what a forward computes, but not its effect on autograd: `no_grad`, writes to
detached tensors, custom autograd functions, hooks. While a model is traced, its tensors still carry
autograd state; `autograd_semantics` makes that state explicit in the program, or raises
`EagerError` at the line of code that a compiled step does not support.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Iterator, Mapping

import torch
import torch.utils.checkpoint
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from .casts import meaning
from .conditions import Conditions, condition_of
from .custom_functions import FunctionUse, apply_function
from .errors import OUTSIDE, EagerError, ForwardStateError
from .forward_state import Constants, name_of
from .generators import only_the_seed_of_the_step, refuse_generator
from .memory import leaves_of, map_tensors, memory_of, requiring_gradients, version_of
from .patches import checkpoint_generator, enter_saved_tensors_hooks, patched, refuse_backward
from .python_random import only_torch_random_numbers
from .regions import Regions
from .replacements import REPLACEMENTS, refuse_selected

#: Functions whose result has a row for each element of their argument that is not 0.
_FINDING = (torch.where, torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere)

_REFUSED: dict[Any, str] = {
    torch.Tensor.register_hook:
        "a hook on a tensor's gradient (register_hook) is not compiled; write what it does into "
        "the forward, for example x.detach() + scale * (x - x.detach()) to scale a gradient",
    torch.Tensor.register_post_accumulate_grad_hook:
        "a hook on a parameter's gradient (register_post_accumulate_grad_hook) is not "
        "compiled; remove it",
    torch.Tensor.retain_grad:
        "retain_grad() has no effect in a compiled step, which does not fill the .grad of tensors; "
        "remove it",
    torch.Tensor.grad.__get__:
        "reading .grad in the forward is not compiled: a step does not expose gradients; remove it",
    torch.Tensor.grad.__set__: "writing .grad in the forward is not compiled; remove it",
    torch.Tensor.data.__set__:
        "assigning .data in the forward is not compiled; compute a new tensor",
}
_DETACH = (torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__)
#: Functions by which torch.func leaves a transform, also after an error.
_LEAVING = {"_jvp_decrement_nesting", "_grad_decrement_nesting", "_vmap_decrement_nesting",
            "_exit_dual_level", "_func_decrement_nesting"}
#: Functions that do not write to a tensor, although their names end with an underscore.
_NOT_WRITTEN = {"requires_grad_", "detach_", "share_memory_", "rename_"}


class Originals:
    """The original parameters of a module, which a trace replaces by fake tensors."""

    def __init__(self, module: torch.nn.Module, loss_fn: Any = None):
        self._kept = list(module.parameters())
        #: The objects in which messages look up the names of tensors.
        self.owners = module, loss_fn
        self.names = {id(p): n for n, p in module.named_parameters()}
        #: Names of the trained parameters, by storage.
        self.memory = {memory_of(p): n for n, p in module.named_parameters()
                       if p.requires_grad and not p.is_meta}
        #: The custom autograd functions that the forward has called.
        self.functions: list[FunctionUse] = []
        #: The regions of autocast and checkpoint that the forward has entered.
        self.regions = Regions()
        #: The decisions of the forward at conditions on values.
        self.conditions = Conditions()
        #: The tensors of the last trace that have the same elements in every forward.
        self.constants = Constants({})


class _AutogradMode(TorchFunctionMode):
    """Intercepts the calls of torch functions in a forward."""

    def __init__(self, originals: Originals, module: torch.nn.Module,
                 inputs: Mapping[str, torch.Tensor]):
        super().__init__()
        self._originals = originals
        self._conditions = originals.conditions
        self._module = module
        self._inputs = {memory_of(t): n for n, t in inputs.items()}
        #: Names of the model's tensors in the trace, by storage.
        self._memory = {memory_of(t): n for n, t in
                        (*module.named_parameters(), *module.named_buffers())}
        self._buffers = {n for n, _ in module.named_buffers()}
        #: For each storage, the tensors that would be aliases of it in eager code, and the version
        #: of each (its number of writes) when it was detached.
        self._aliases: dict[int, list[tuple[torch.Tensor, int]]] = {}
        #: Tensors that have a gradient, by storage. They are kept alive so that no storage is
        #: reused.
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
            if transform.key() != torch._C._functorch.TransformType.Vmap \
                    and getattr(function, "__name__", "") not in _LEAVING:
                refuse_backward()
            refuse_generator(leaves_of((args, kwargs)))
            return function(*args, **kwargs)
        leaves = leaves_of((args, kwargs))
        refuse_generator(leaves)
        function = REPLACEMENTS.get(function, function)
        if function in _REFUSED:
            raise EagerError(_REFUSED[function])
        if function is torch.Tensor.detach_ and args[0].requires_grad:
            raise EagerError("detach_() changes a tensor that other names may hold; write "
                             "x = x.detach()")
        if function in (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__):
            self._check_requires_grad(*args, **kwargs)
        given = [x for x in leaves if isinstance(x, torch.Tensor)]
        tensors = [self._traced(x) for x in given]
        if any(x is not y for x, y in zip(given, tensors)):
            args, kwargs = map_tensors(self._traced, (args, kwargs))
        refuse_selected(tensors, function)
        if getattr(function, "__name__", "") == "__get__" and function not in _DETACH:
            out = function(*args, **kwargs)
            if isinstance(out, torch.Tensor) and not torch.is_grad_enabled() \
                    and requiring_gradients(tensors[:1]):
                return out.detach()
            return out
        self._check_aliases(tensors)
        for tensor in _written_by(function, args, kwargs):
            if not isinstance(tensor, FakeTensor) and self._trace is not None:
                raise EagerError(f"{name_of(tensor, *self._originals.owners)} {OUTSIDE}")
        decided = condition_of(function, args, kwargs, self._conditions)
        if decided is not None:
            return decided
        if function is torch.Tensor.__len__ and (count := self._conditions.length(*args)) is not None:
            return count
        before = [(x, version_of(x)) for x in tensors]
        read = [memory_of(x) for x in tensors if isinstance(x, FakeTensor)]
        if function in _DETACH and tensors[0].is_floating_point():
            out = self._detached(tensors[0])
            self._constants.note(function, read, {memory_of(out): out})
            return out
        if not torch.is_grad_enabled():
            args, kwargs = map_tensors(_without_gradient, (args, kwargs))
        regions = self._originals.regions
        with regions.casting(meaning(function, args, kwargs, sys._getframe(1))):
            out = function(*args, **kwargs)
            if regions.cast and out is args[0]:
                # Decompositions remove a cast between equal types, and keep a view.
                out = out.view(out.shape)
        if function is torch.Tensor.item:
            self._conditions.note(out, *args)
        elif function in _FINDING and len(args) == 1:
            self._conditions.note_rows(out, *args)
        results = [x for x in leaves_of(out) if isinstance(x, torch.Tensor)]
        for tensor, version in before:
            if version_of(tensor) != version:
                self._check_written(tensor)
                results.append(tensor)
        self._constants.note(function, read, {memory_of(x): x for x in results})
        for tensor in requiring_gradients((*tensors, *results)):
            self._graded.setdefault(memory_of(tensor), tensor)
        return out

    def _traced(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the fake tensor for a parameter that the code obtained before the trace. Raises
        EagerError for tensors of earlier traces, and for real tensors that are trained."""
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
        aliases = [*self._aliases.get(memory_of(tensor), ()), (tensor, version_of(tensor))]
        for other, _ in aliases:
            self._aliases.setdefault(memory_of(other), []).append((out, version_of(out)))
        self._aliases[memory_of(out)] = [(x, version_of(x)) for x, _ in aliases]
        return out

    def _check_aliases(self, tensors: list[torch.Tensor]) -> None:
        """Raises EagerError for tensors whose aliases in eager code have been written to."""
        for tensor in tensors:
            for other, version in self._aliases.get(memory_of(tensor), ()):
                if version_of(other) != version:
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


def _written_by(function: Any, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Returns the tensors that a function writes, judged by its name and its argument `out`."""
    name = getattr(function, "__name__", "")
    in_place = name == "__setitem__" or (
        name.startswith("__i") and name not in ("__int__", "__index__", "__invert__")
        if name.endswith("__") else name.endswith("_") and name not in _NOT_WRITTEN)
    written = [*(args[:1] if in_place else ()), kwargs.get("out")]
    return [x for x in leaves_of(written) if isinstance(x, torch.Tensor)]


def _without_gradient(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


@contextlib.contextmanager
def autograd_semantics(originals: Originals, module: torch.nn.Module,
                       inputs: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Context manager that traces a forward of `module` with `inputs` with autograd semantics.
    Raises EagerError, at the line of code, for what a compiled step does not support."""
    originals.functions.clear()
    originals.conditions.begin()
    function = torch.autograd.Function
    hooks = torch.autograd.graph.saved_tensors_hooks
    checkpoint, generator = torch.utils.checkpoint, "_checkpoint_without_reentrant_generator"
    with patched((function, "apply",
                  apply_function(function.__dict__["apply"], originals.functions, module,
                                 originals.regions.checkpoint)),
                 (checkpoint, generator,
                  checkpoint_generator(checkpoint.__dict__[generator], module,
                                       originals.regions.checkpoint)),
                 (hooks, "__enter__", enter_saved_tensors_hooks(hooks.__dict__["__enter__"])),
                 (torch.autograd, "_engine_run_backward", refuse_backward)), \
            only_torch_random_numbers(), only_the_seed_of_the_step(), \
            originals.conditions.deciding(), \
            _AutogradMode(originals, module, inputs):
        yield


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
