# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs torch.export on a model and its loss, with structure left whole."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import logging
import operator
import os
import sys
import traceback
import warnings
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from ..state import not_dense
from .accepted import devices, unwritable_names
from .convert_batch_norm import Groups, batch_norm_modules, is_training
from .convert_complex import converts_complex
from .eager import (OUTSIDE, EagerError, KeptError, Originals, assigned_buffers, check_functions,
                    memory_of, reached, watched)
from .experts import static_experts
from .kept import Kept, restored
from .locations import located, untraceable
from .registry import converter_for


class TraceError(Exception):
    """A model that cannot be traced as it is called; the text says what to do."""


class StateError(TraceError):
    """A model whose forward reads what another forward computed."""


@dataclasses.dataclass
class Call:
    """How the example inputs reach the model and the loss function."""

    #: Name and tensor of every input, in the order of a step's arguments.
    inputs: dict[str, torch.Tensor]
    #: Names given to the model by position, by keyword, and to the loss.
    positional: list[str]
    keyword: dict[str, str]
    targets: list[str]


@dataclasses.dataclass
class Exported:
    """An exported program and which of its outputs are what."""

    program: torch.export.ExportedProgram
    #: Names of the outputs in order: "loss", "logits".
    outputs: list[str]
    #: Names of the parameters to which autograd gives a gradient of the loss.
    reached: set[str]


def _parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _positional_names(function: Callable[..., Any]) -> list[str]:
    return [n for n, p in _parameters_of(function).items() if p.kind in _BY_POSITION]


_PASS_LOSS = ("pass loss_fn, called as loss_fn(output, *targets), where the model returns no "
              "loss of its own")


def _check_taken(forward: Mapping[str, inspect.Parameter], given: Sequence[str],
                 by_name: bool) -> None:
    """Says of inputs that forward does not take, and that no loss_fn takes, what is
    missing."""
    kinds = {p.kind for p in forward.values()}
    rest = inspect.Parameter.VAR_KEYWORD if by_name else inspect.Parameter.VAR_POSITIONAL
    names = [n for n, p in forward.items()
             if p.kind in _BY_POSITION or (by_name and p.kind is inspect.Parameter.KEYWORD_ONLY)]
    if not forward or rest in kinds:
        return
    if by_name:
        unknown = [n for n in given if n not in names]
    else:
        unknown = given[len(names):]
    if unknown:
        takes = f"{len(names)} input{'s' if len(names) != 1 else ''} ({', '.join(names)})"
        what = f"not {', '.join(unknown)}" if by_name else f"and {len(given)} are given"
        raise TraceError(f"the model's forward takes {takes}, {what}; {_PASS_LOSS}")


def plan_call(module: torch.nn.Module, example_inputs: Any,
              loss_fn: Callable[..., Any] | None) -> Call:
    """Decides which input goes where; see `cleave.trace.trace`."""
    if loss_fn is not None and not callable(loss_fn):
        raise TraceError(f"loss_fn is {type(loss_fn).__name__}, not a function")
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    forward = _parameters_of(module.forward)
    names = _positional_names(module.forward)
    if isinstance(example_inputs, Mapping):
        inputs = dict(example_inputs)
        targets = []
        if loss_fn is not None:
            accepts = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in forward.values())
            targets = [n for n in inputs if n not in forward and not accepts]
            if not targets:
                targets = [list(inputs)[-1]]
        else:
            _check_taken(forward, list(inputs), True)
        return Call(_tensors(inputs), [], {n: n for n in inputs if n not in targets}, targets)
    if not isinstance(example_inputs, Sequence) or isinstance(example_inputs, str):
        raise TraceError(f"example_inputs is {type(example_inputs).__name__}, not a tuple of "
                         "tensors or a dict by name")
    example_inputs = tuple(example_inputs)
    if not example_inputs:
        raise TraceError("example_inputs is empty; give one example of each tensor that a "
                         "step takes, as a tuple or a dict by name")
    if len(example_inputs) == 2 and all(isinstance(x, (tuple, list)) for x in example_inputs):
        count = len(example_inputs[0])
        if loss_fn is None and example_inputs[1]:
            raise TraceError(f"example_inputs has targets, which no loss_fn takes; {_PASS_LOSS}")
        example_inputs = tuple(example_inputs[0]) + tuple(example_inputs[1])
    elif loss_fn is not None:
        count = len(example_inputs) - _target_count(loss_fn)
        if count < 1:
            raise TraceError(f"loss_fn takes {_target_count(loss_fn)} targets and "
                             f"example_inputs holds {len(example_inputs)} tensors; none is "
                             "left for the model")
    else:
        count = len(example_inputs)
    given = list(example_inputs[:count])
    order = [names[i] if i < len(names) else f"input{i}" for i in range(count)]
    keyword: dict[str, str] = {}
    if loss_fn is None and count > 1 and "labels" in forward and "labels" not in order:
        # Models that take many optional tensors: the last one given is the target.
        order[-1] = "labels"
        keyword["labels"] = "labels"
    if loss_fn is None:
        _check_taken(forward, [n for n in order if n not in keyword], False)
    inputs = dict(zip(order, given))
    targets = []
    for i, tensor in enumerate(example_inputs[count:]):
        name = _target_name(loss_fn, i, inputs)
        inputs[name] = tensor
        targets.append(name)
    return Call(_tensors(inputs), [n for n in order if n not in keyword], keyword, targets)


def _target_count(loss_fn: Callable[..., Any]) -> int:
    function = loss_fn.forward if isinstance(loss_fn, torch.nn.Module) else loss_fn
    taken = [p for p in _parameters_of(function).values() if p.kind in _BY_POSITION]
    required = [p for p in taken if p.default is inspect.Parameter.empty]
    return 0 if len(taken) == len(required) == 1 else max(len(required) - 1, 1)


def _target_name(loss_fn, index: int, taken: Mapping[str, Any]) -> str:
    function = loss_fn.forward if isinstance(loss_fn, torch.nn.Module) else loss_fn
    names = _positional_names(function)[1:]
    name = names[index] if index < len(names) else f"target{index}"
    while name in taken:
        name += "_"
    return name


def _tensors(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            raise TraceError(f"input '{name}' is {type(value).__name__}, not a tensor; bind "
                             "other arguments beforehand, for example by a wrapping module")
        if kind := not_dense(value):
            raise TraceError(f"input '{name}' {kind}")
    return dict(inputs)


class _Found:
    """Names of the outputs of the last call. torch.export undoes assignments to
    a module's attributes, and follows lists and dicts among them, but not this."""

    names: list[str] = []
    reached: set[str] = set()
    kept: list[Kept] = []


class _Step(torch.nn.Module):
    """The model and its loss as one module that returns the wanted outputs."""

    def __init__(self, module: torch.nn.Module, loss_fn, call: Call, want: tuple[str, ...]):
        super().__init__()
        self.module = module
        self.call_plan = call
        self.want = want
        self.found = _Found()
        object.__setattr__(self, "loss_fn", loss_fn)
        object.__setattr__(self, "originals", Originals(module, loss_fn))

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with (restored(self.module, self.loss_fn) as changed,
              watched(self.originals, self.module, dict(zip(self.call_plan.inputs, values))),
              assigned_buffers(self.module)):
            outputs = self.compute(*values)
        self.found.kept = changed
        if "loss" in self.found.names:
            self.found.reached = reached(outputs[0], self.module)
        return outputs

    def compute(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The wanted outputs, computed as eager code does."""
        inputs = dict(zip(self.call_plan.inputs, values))
        output = self.module(*(inputs[n] for n in self.call_plan.positional),
                             **{k: inputs[n] for k, n in self.call_plan.keyword.items()})
        loss, logits = _loss_and_logits(output)
        if self.loss_fn is not None:
            predicted = logits if logits is not None else output
            loss = self.loss_fn(predicted, *(inputs[n] for n in self.call_plan.targets))
            logits = predicted if isinstance(predicted, torch.Tensor) else None
        if "loss" in self.want and loss is None:
            raise TraceError(
                "the model returns no scalar loss; pass loss_fn, called as "
                "loss_fn(output, *targets), or give the model its labels")
        found = {"loss": loss, "logits": logits}
        self.found.names = [n for n in self.want if found[n] is not None]
        return tuple(found[n] for n in self.found.names)


def _loss_and_logits(output: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The scalar loss and the logits in what a model returned."""
    if isinstance(output, torch.Tensor):
        return (output, None) if _is_loss(output) else (None, output)
    if isinstance(output, Mapping):
        loss, logits = output.get("loss"), output.get("logits")
        return loss, logits
    if isinstance(output, Sequence):
        tensors = [x for x in output if isinstance(x, torch.Tensor) and x.is_floating_point()]
        loss = next((x for x in tensors if _is_loss(x)), None)
        logits = next((x for x in tensors if x.dim() > 0), None)
        return loss, logits
    loss, logits = getattr(output, "loss", None), getattr(output, "logits", None)
    if loss is None and logits is None:
        raise TraceError(f"the model returns {type(output).__name__}, which holds neither a "
                         "loss nor logits; return a tensor, or a tuple or dict of them")
    return loss, logits


def _is_loss(x: torch.Tensor) -> bool:
    return x.dim() == 0 and x.is_floating_point()


@contextlib.contextmanager
def _settings(module: torch.nn.Module, training: bool):
    """The module in training or evaluation mode, without a cache of keys; put
    back as it was. Of a module that is in training mode, parts in evaluation mode
    are trained in that."""
    modes = {m: m.training for m in module.modules()}
    configs = {id(c): c for m in module.modules()
               if getattr(c := getattr(m, "config", None), "use_cache", None) is True}
    if not (training and module.training):
        module.train(training)
    for config in configs.values():
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs.values():
            config.use_cache = True
        for submodule, mode in modes.items():
            submodule.training = mode


@contextlib.contextmanager
def _all_frames():
    """Lets torch.export record helper functions in the stack of an operator,
    not only methods named forward, so that locations point at the very line."""
    from torch.fx.proxy import TracerBase

    original = getattr(TracerBase, "_filter_traceback_frames", None)
    if original is None:
        yield
        return

    def keep(tracer, summary):
        frames = list(summary)
        first = next((i for i, f in enumerate(frames) if f.name == "forward"), None)
        return traceback.StackSummary.from_list([] if first is None else frames[first:])

    TracerBase._filter_traceback_frames = keep
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = original


@contextlib.contextmanager
def _silence():
    """Without what torch prints of an error that it raises as well, unless
    TORCH_LOGS asks for it."""
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    names = [n for n in logging.root.manager.loggerDict if n.split(".")[0] == "torch"]
    handlers = {h for n in names for h in logging.getLogger(n).handlers}

    def drop(record):
        return False

    for handler in handlers:
        handler.addFilter(drop)
    printed = io.StringIO()
    graph = None
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except Exception as error:
        graph = getattr(error, "partial_fx_graph", None)
        raise
    finally:
        for handler in handlers:
            handler.removeFilter(drop)
        # What the model prints is the person's own.
        text = printed.getvalue()
        if graph is not None:
            text = text.replace(str(graph), "").strip()
        sys.stderr.write(text)


def _is_functional(program: torch.export.ExportedProgram) -> bool:
    """Whether no operator writes to its operands and no graph is nested."""
    for node in program.graph.nodes:
        if node.op == "get_attr":
            return False
        if node.op == "call_function" and node.target is not operator.getitem:
            schema = getattr(node.target, "_schema", None)
            if schema is None or schema.is_mutable or is_training(node):
                return False
    return True


def _keep_nested_lines(program: torch.export.ExportedProgram) -> None:
    """Lets the operators of nested graphs, such as those under no_grad, keep their lines
    when they are made part of the whole."""
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule) and part is not program.graph_module:
            part.forward = torch.fx.Interpreter(part).run


def _decomposed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with operators that have no conversion decomposed, where the framework
    says how. One whose decomposition has no conversion either stays as the model has it:
    that is the operator to report."""
    whole: set[Any] = set()
    while True:
        result, table = _decompose(program, whole)
        origins = {name for node in result.graph.nodes if _lacks_conversion(node)
                   for source in node.meta.get("from_node") or () for name in _origins(source)}
        refused = {target for target in table if str(target) in origins}
        if not refused:
            return result
        whole |= refused


def _lacks_conversion(node: torch.fx.Node) -> bool:
    return (node.op == "call_function" and node.target is not operator.getitem
            and converter_for(node.target) is None and not converts_complex(node.target))


def _origins(source: Any) -> Iterator[str]:
    yield str(source.target)
    for before in source.from_node or ():
        yield from _origins(before)


def _decompose(program: torch.export.ExportedProgram, whole: set[Any]
               ) -> tuple[torch.export.ExportedProgram, dict[Any, Any]]:
    """The program after decomposition of all but `whole`, and the rules that were used."""
    table: dict[Any, Any] = {}
    for _ in range(8):
        missing = {n.target for n in program.graph.nodes
                   if _lacks_conversion(n) and isinstance(n.target, torch._ops.OpOverload)}
        found = {target: rule for target in missing - whole
                 if (rule := _decomposition(target)) is not None and target not in table}
        if not found:
            break
        table.update(found)
        try:
            program = program.run_decompositions(dict(found))
        except Exception:
            # The rule of one of them does not fit an exported program; that operator is
            # reported as one without a conversion.
            for target, rule in found.items():
                with contextlib.suppress(Exception):
                    program = program.run_decompositions({target: rule})
    return program, table


def _decomposition(target: Any) -> Any:
    # What the framework makes of other operators at once is taken apart so; its
    # reference functions (torch._refs) have operators of their own, prims.
    if torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"):
        return functools.partial(target._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)
    rule = torch.export.default_decompositions().get(target)
    return rule or torch._decomp.decomposition_table.get(target)


def _example(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.is_meta and device.type != "meta":
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
    return tensor.detach().to(device).clone()


def export(module: torch.nn.Module, call: Call, loss_fn, want: tuple[str, ...],
           training: bool, groups: Groups = Groups()) -> Exported:
    """Exports the wanted outputs in training or evaluation mode."""
    weights = next(iter([*module.parameters(), *module.buffers()]), None)
    device = torch.device("cpu") if weights is None else weights.device
    # Clones, since torch.export takes a tensor that is given twice for one input.
    values = tuple(_example(t, device) for t in call.inputs.values())
    step = _Step(module, loss_fn, call, want)
    sequences = next((x.shape[0] for x in values if x.dim()), 1)
    with (_settings(module, training), static_experts(module, sequences), _all_frames(),
          batch_norm_modules(module, groups), torch.enable_grad(), warnings.catch_warnings()):
        warnings.simplefilter("ignore")
        step.training = training
        try:
            with _silence():
                program = torch.export.export(step, values, strict=False)
            check_functions(step.originals.functions)
            _check_kept(step, values, program)
            if not _is_functional(program):
                _keep_nested_lines(program)
                program = program.run_decompositions({})
            program = _decomposed(program)
        except TraceError:
            raise
        except KeptError as error:
            raise StateError(located(error)) from None
        except EagerError as error:
            raise TraceError(located(error)) from None
        except Exception as error:
            shared = _shared_buffers(module) if "compiled_fn" in str(error) else []
            if shared:
                raise TraceError(f"buffers {' and '.join(shared)} are one tensor, which the forward "
                                 "writes to; give it, or the module that holds it, one name in the "
                                 "model") from error
            if "is mutated in the forward method" in str(error):
                raise TraceError(f"a tensor {OUTSIDE}") from error
            raise TraceError(unwritable_names(module, error)
                             or untraceable(error) + devices(module, error)) from error
    return Exported(program, step.found.names, step.found.reached)


def _shared_buffers(module: torch.nn.Module) -> list[str]:
    """Names, quoted, of buffers that have one memory."""
    names: dict[int, list[str]] = {}
    for name, buffer in module.named_buffers(remove_duplicate=False):
        names.setdefault(memory_of(buffer), []).append(f"'{name}'")
    return next((found for found in names.values() if len(found) > 1), [])


def _check_kept(step: _Step, values: tuple[torch.Tensor, ...],
                program: torch.export.ExportedProgram) -> None:
    """Raises KeptError where a forward reads what one before it kept, and that changes
    with the inputs, or where it counts: by a second forward, which computes otherwise than
    `program`."""
    first, constants = step.found.kept, step.originals.constants

    def is_constant(tensor: torch.Tensor) -> bool:
        return memory_of(tensor) in constants

    numbers = [k for k in first if k.numbers()]
    tensors = [x for k in first for x in k.tensors()]
    if not numbers and all(map(is_constant, tensors)):
        return
    with restored(step.module, step.loss_fn):
        for kept in first:
            kept.keep(is_constant)
        with _silence():
            second = torch.export.export(step, values, strict=False)
    counted = [k for k in step.found.kept if k.numbers()]
    # A table that is kept is no longer computed.
    alike = any(map(is_constant, tensors)) or (
        second.graph_module.code == program.graph_module.code
        and _same_constants(second, program))
    if not counted and (not numbers or alike):
        return
    what = ("changes in each forward" if counted
            else "is changed by the first forward, and the next one computes otherwise")
    raise KeptError(f"{(counted or numbers)[0].said()} {what}, and a compiled step does not change "
                    "it; keep a number that changes in a buffer (register_buffer), and change that "
                    "in place")


def _same_constants(*programs: torch.export.ExportedProgram) -> bool:
    """Whether what was made outside of tensor code is the same in both."""
    one, other = ({k: v for k, v in p.constants.items() if isinstance(v, torch.Tensor)
                   and not isinstance(v, FakeTensor)} for p in programs)
    return one.keys() == other.keys() and all(
        v.shape == other[k].shape and torch.equal(v, other[k]) for k, v in one.items())


@contextlib.contextmanager
def eager_step(module: torch.nn.Module, example_inputs: Any, loss_fn, double: bool = False):
    """Within it the module is as it is traced for its loss; what it gives computes the
    loss of the inputs in eager code, in f64 with `double`."""
    call = plan_call(module, example_inputs, loss_fn)
    weights = next(iter([*module.parameters(), *module.buffers()]), None)
    device = torch.device("cpu") if weights is None else weights.device
    step = _Step(module, loss_fn, call, ("loss",))
    values = [_example(t, device) for t in call.inputs.values()]
    if double:
        values = [t.double() if t.is_floating_point() else t for t in values]
    with _settings(module, True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield lambda: step.compute(*values)[0]
