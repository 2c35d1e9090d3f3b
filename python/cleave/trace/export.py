# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs torch.export on a model and its loss."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import sys
import warnings
from typing import Any

import torch

from .alike import alike, same_constants, same_operators
from .accepted import devices
from .asked_modes import AskedModes
from .autograd import Originals, autograd_semantics, reached
from .balance import NONE, balanced
from .call_plan import Call, plan_call, position_note, samples_note
from .choices import counted, is_counts
from .conditions import Check, fails_of_itself
from .converters.batch_norm import Groups, batch_norm_modules
from .custom_functions import check_functions
from .decompose import decomposed
from .errors import OUTSIDE, EagerError, ForwardStateError, StateError, TraceError
from .expert_loops import Skips, gather_expert_loops
from .experts import static_experts
from .forward_state import StateChange, restored
from .lazy_code import code_on_demand, without_notes
from .locations import located, untraceable
from .memory import memory_of
from .metrics import Metrics, as_results
from .module_checks import assigned_buffers
from .outputs import called, dropped, loss_and_logits, refuse_object
from .patches import answering_is_compiling, changing, traceable_distributions
from .places import recorded_places
from .process_state import restored_process
from .regions import recorded
from .replacements import refuse_selected
from .scans import recognised_scans
from .widen import computed_types


@dataclasses.dataclass
class Exported:
    """An exported program and the meaning of its outputs."""

    program: torch.export.ExportedProgram
    #: Names of the outputs in order: "loss", "logits".
    outputs: list[str]
    #: Names of the parameters that receive a gradient of the loss from autograd.
    reached: set[str]
    #: The 16-bit types of autocast regions, and those of computations with frozen parameters.
    narrow: set[torch.dtype]
    #: The text of a warning about what a step does not return; empty if the model returns no more.
    dropped: str
    #: The checks of the step, whose conditions are the last outputs, and how many these are.
    checks: list[Check]
    conditions: int
    #: Parameters that the program reads as one stacked tensor: the name of each stack, and the names
    #: of its parts in order.
    stacks: dict[str, list[str]] = dataclasses.field(default_factory=dict)


# The step -----------------------------------------------------------------------------


class _CallRecord:
    """The findings of the last call. torch.export neither restores nor traces the attributes of
    this object, unlike those of a module and the lists and dicts in them."""

    #: Names of the outputs.
    names: list[str] = []
    #: Names of the parameters that receive a gradient of the loss.
    reached: set[str] = set()
    #: Changes of Python state.
    changes: list[StateChange] = []
    #: The text of a warning about what a step does not return.
    dropped: str = ""


class _Step(torch.nn.Module):
    """The model and its loss as one module that returns the outputs `want`."""

    def __init__(self, module: torch.nn.Module, loss_fn, call: Call, want: tuple[str, ...],
                 choices: bool = False, asked: AskedModes | None = None,
                 metrics: Metrics | None = None):
        super().__init__()
        self.choices = choices
        #: In a tuple, so that a function of metrics that is a module does not become a part of this one.
        self.metrics = (metrics,)
        self.module = module
        self.call_plan = call
        self.want = want
        self.found = _CallRecord()
        #: The type of the autocast region that the model is compiled in; None outside of one.
        self.surrounding: torch.dtype | None = None
        object.__setattr__(self, "loss_fn", loss_fn)
        object.__setattr__(self, "originals", Originals(module, loss_fn))
        #: The reads of the mode by the forward, if they are watched.
        object.__setattr__(self, "asked", asked)

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with (restored(self.module, self.loss_fn) as changed,
              autograd_semantics(self.originals, self.module,
                                 dict(zip(self.call_plan.inputs, values))),
              assigned_buffers(self.module), _autocast(self.surrounding),
              self.asked.watched() if self.asked else contextlib.nullcontext()):
            outputs = self.compute(*values)
        self.found.changes = changed
        refuse_selected(outputs)
        if "loss" in self.found.names:
            self.found.reached = reached(outputs[0], self.module)
        conditions = self.originals.conditions
        return *outputs, *(d.value for d in (*conditions.path, *conditions.skips))

    def compute(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Computes the outputs as eager code does. Raises TraceError if there is no loss."""
        inputs = dict(zip(self.call_plan.inputs, values))
        with counted(self.module, self.choices and self.training) as counts:
            output = self.module(*(inputs[n] for n in self.call_plan.positional),
                                 **{k: inputs[n] for k, n in self.call_plan.keyword.items()})
        loss, logits = loss_and_logits(output)
        (metrics,) = self.metrics
        named = metrics.found(output, inputs) if metrics is not None and self.training else {}
        counts.update(as_results(named))
        if self.loss_fn is not None:
            loss, predicted = called(self.loss_fn, output, logits,
                                     [inputs[n] for n in self.call_plan.targets],
                                     self.originals.conditions)
            self.found.dropped = dropped(output, predicted, *named.values(), by_loss_fn=True)
            if logits is None and isinstance(predicted, torch.Tensor):
                logits = predicted
        else:
            refuse_object(output)
            self.found.dropped = dropped(output, loss, logits, *named.values())
        if "loss" in self.want and loss is None:
            raise TraceError(
                "the model returns no scalar loss; pass loss_fn, called as "
                "loss_fn(output, *targets), or give the model its labels, by name if they are "
                "not among its first arguments: {'input_ids': ids, 'labels': ids}"
                + position_note(self.module, self.call_plan))
        found = {"loss": loss, "logits": logits}
        self.found.names = [*(n for n in self.want if found[n] is not None), *counts]
        if self.asked is not None:
            self.asked.more |= len(self.found.names) > 1
        return tuple({**found, **counts}[n] for n in self.found.names)


# Contexts -----------------------------------------------------------------------------


@contextlib.contextmanager
def _mode(module: torch.nn.Module, training: bool):
    """Context manager that puts the module in training or evaluation mode without a key-value
    cache, and restores modes and settings on exit. Submodules in evaluation mode of a module in
    training mode stay in evaluation mode."""
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
def _without_autocast():
    """Context manager that leaves the autocast region that surrounds the call, and yields its type.
    The region becomes part of the exported step."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    torch.set_autocast_enabled("cpu", False)
    try:
        yield dtype
    finally:
        torch.set_autocast_enabled("cpu", dtype is not None)


def _autocast(dtype: torch.dtype | None):
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype)


@contextlib.contextmanager
def _without_torch_logs():
    """Context manager that suppresses the logs that torch prints for an error that it also raises,
    unless TORCH_LOGS is set."""
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
        cause: BaseException | None = error
        while cause is not None and graph is None:
            graph, cause = getattr(cause, "partial_fx_graph", None), cause.__cause__
        raise
    finally:
        for handler in handlers:
            handler.removeFilter(drop)
        # Other text on standard error was printed by the model.
        text = printed.getvalue()
        if graph is not None:
            text = text.replace(str(graph), "").strip()
        sys.stderr.write(text)


# Export -------------------------------------------------------------------------------


def _example(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a copy of an example input on `device`; an input on the meta device becomes zeros."""
    if tensor.is_meta and device.type != "meta":
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
    return tensor.detach().to(device).clone()


@dataclasses.dataclass
class Begun:
    """A step that has been exported, and not been made functional and decomposed."""

    step: _Step
    groups: Groups
    training: bool
    program: torch.export.ExportedProgram
    #: The program that skips each pass of a loop whose skipping is among the last outputs of
    #: `program`; None if there are none.
    skipped: torch.export.ExportedProgram | None

    @property
    def dropped(self) -> str:
        return self.step.found.dropped

    @property
    def is_of_both_modes(self) -> bool:
        """Whether the step of evaluation is known to be the same: the forward read no mode that had
        an effect, and left no state that the next one may read."""
        step = self.step
        return (step.asked is not None and not step.asked.differs and not step.found.changes
                and not step.originals.conditions.decides)

    def computes_as(self, other: Begun) -> bool:
        """Returns whether the operators, and where they are from, are those of a step that has more
        outputs after the first."""
        one, two = self.step, other.step
        decides = any(s.originals.conditions.decides for s in (one, two))
        return (not decides and one.found.names[:1] == two.found.names[:1]
                and one.originals.regions.autocast == two.originals.regions.autocast
                and same_operators(self.program, other.program))

    def finished(self, other: Exported | None = None) -> Exported:
        """Returns the step made functional and decomposed: the program of `other`, which computes
        the same and may have more outputs, if it is given."""
        step = self.step
        if other is not None:
            program, outputs, stacks = other.program, other.outputs, other.stacks
        else:
            samples = step.call_plan.samples
            with _tracing(step, self.groups, self.training):
                outputs, skipping = step.found.names, self.skipped is not None
                program = decomposed(self.program, comparable=skipping)
                skips = Skips(step.originals.conditions.skips, len(outputs),
                              decomposed(self.skipped, comparable=True) if skipping else None)
                stacks = gather_expert_loops(program, step.module, samples, skips)
        narrow = step.originals.regions.autocast | computed_types(step.module, program)
        conditions = step.originals.conditions
        return Exported(program, outputs, step.found.reached, narrow, step.found.dropped,
                        conditions.checks, len(conditions.path), stacks)


def begin(module: torch.nn.Module, call: Call, loss_fn, want: tuple[str, ...],
          training: bool, groups: Groups = Groups(), asked: AskedModes | None = None) -> Begun:
    """Exports the outputs `want` ("loss", "logits") in training or evaluation mode; `finished`
    completes this. `asked` watches the reads of the mode. Both raise TraceError if the model cannot be traced, and StateError if it depends
    on state that an earlier forward computed."""
    weights = next(iter([*module.parameters(), *module.buffers()]), None)
    device = torch.device("cpu") if weights is None else weights.device
    # Clones, because torch.export treats a tensor that is passed twice as one input.
    values = tuple(_example(t, device) for t in call.inputs.values())
    step = _Step(module, loss_fn, call, want, groups.choices, asked, groups.metrics)
    with _tracing(step, groups, training), balanced(module, groups.balance) as balances:
        with _without_torch_logs():
            program = step.originals.conditions.explored(
                lambda: _exported(step, values),
                lambda *both: alike(len(step.found.names), *both))
        if groups.balance and training and not balances:
            raise TraceError(NONE)
        if groups.choices and training and not any(map(is_counts, step.found.names)):
            raise TraceError("expert_counts asks how often experts are chosen, and the model has "
                             "none that are known: call cleave.moe.count_choices, or leave it out")
        check_functions(step.originals.functions)
        _check_forward_state(step, values, program)
    return Begun(step, groups, training, program, step.originals.conditions.skipped)


@contextlib.contextmanager
def _tracing(step: _Step, groups: Groups, training: bool):
    """Context manager in which a step is traced; errors say what the model's author can do."""
    module, call = step.module, step.call_plan
    with (changing, restored_process(), _mode(module, training), static_experts(module, call.samples),
          recognised_scans(module), recorded_places(),
          traceable_distributions(),
          batch_norm_modules(module, groups), torch.enable_grad(), warnings.catch_warnings(),
          recorded(step.originals.regions), code_on_demand(), without_notes(),
          _without_autocast() as step.surrounding):
        warnings.simplefilter("ignore")
        step.training = training
        try:
            yield
        except TraceError:
            raise
        except ForwardStateError as error:
            raise StateError(located(error)) from None
        except EagerError as error:
            raise TraceError(located(error)) from None
        except Exception as error:
            shared = _shared_buffers(module) if "compiled_fn" in str(error) else []
            if shared:
                raise TraceError(
                    f"buffers {' and '.join(shared)} are one tensor, which the forward writes to; "
                    "give it, or the module that holds it, one name in the model") from error
            if "is mutated in the forward method" in str(error):
                raise TraceError(f"a tensor {OUTSIDE}") from error
            raise TraceError(untraceable(error) + devices(module, error) + position_note(module, call)
                             + samples_note(call.inputs)) from error


def _exported(step: _Step, values: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    """Exports a step. If the model asks whether it is compiled, and its code for that fails, exports
    its code for eager execution."""
    asked: list[bool] = []
    with answering_is_compiling(None, asked):
        try:
            return torch.export.export(step, values, strict=False)
        except Exception as error:
            if not asked or not fails_of_itself(error):
                raise
    with answering_is_compiling(False, asked):
        return torch.export.export(step, values, strict=False)


def _shared_buffers(module: torch.nn.Module) -> list[str]:
    """Returns the quoted names of the first buffers that share a storage; empty if there are
    none."""
    names: dict[int, list[str]] = {}
    for name, buffer in module.named_buffers(remove_duplicate=False):
        names.setdefault(memory_of(buffer), []).append(f"'{name}'")
    return next((found for found in names.values() if len(found) > 1), [])


def _check_forward_state(step: _Step, values: tuple[torch.Tensor, ...],
                         program: torch.export.ExportedProgram) -> None:
    """Raises ForwardStateError if the Python state that a forward changed affects the next one: a
    second forward changes numbers again, or its trace differs from `program`."""
    first, constants = step.found.changes, step.originals.constants

    def is_constant(tensor: torch.Tensor) -> bool:
        return memory_of(tensor) in constants

    numbers = [k for k in first if k.numbers()]
    tensors = [x for k in first for x in k.tensors()]
    if not numbers and all(map(is_constant, tensors)):
        return
    with restored(step.module, step.loss_fn):
        for change in first:
            change.reapply(is_constant)
        with _without_torch_logs():
            second = _exported(step, values)
    counted = [k for k in step.found.changes if k.numbers()]
    # A second forward that reads a stored constant table does not compute it again.
    same = any(map(is_constant, tensors)) or (
        second.graph_module.code == program.graph_module.code
        and same_constants(second, program))
    if not counted and (not numbers or same):
        return
    what = ("changes in each forward" if counted
            else "is changed by the first forward, and affects what the next one computes")
    raise ForwardStateError(
        f"{(counted or numbers)[0].described()} {what}, and a compiled step does not change it; "
        "keep a number that changes in a buffer (register_buffer), and change that in place")


@contextlib.contextmanager
def eager_step(module: torch.nn.Module, example_inputs: Any, loss_fn, double: bool = False):
    """Context manager that puts the module in the mode in which its loss is traced. It yields a
    function that computes the loss of the inputs in eager code; with `double`, floating-point
    inputs are f64."""
    call = plan_call(module, example_inputs, loss_fn)
    weights = next(iter([*module.parameters(), *module.buffers()]), None)
    device = torch.device("cpu") if weights is None else weights.device
    step = _Step(module, loss_fn, call, ("loss",))
    values = [_example(t, device) for t in call.inputs.values()]
    if double:
        values = [t.double() if t.is_floating_point() else t for t in values]
    with restored_process(), _mode(module, True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield lambda: step.compute(*values)[0]
