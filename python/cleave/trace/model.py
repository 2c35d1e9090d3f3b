# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Traces a torch module and its loss to the model phase: `trace`."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Sequence

import torch

from ..runtime.forks import TRACING, refuse_interrupted
from ..messages import warn
from ..runtime.state import wide_type
from .accepted import refuse_name, refuse_tensors, same_names
from .call_plan import plan_call
from .choices import is_counts
from .converters.batch_norm import Groups
from .entry import convert_entry
from .errors import EagerError, TraceError, UnsupportedError
from .export import Exported
from .garbage import seldom_collected
from .ir import Function
from .metrics import is_metric
from .model_tensors import ModelTensors, Tensor, in_all_layers, unread
from .modes import begin_training, evaluation_entry, in_both_modes, same_without_random
from .module_checks import refuse_choices, refuse_hooks, refuse_shared_memory
from .policy import PrecisionPolicy
from .printer import Printer
from .randomness import Randomness
from .repeat import Repeated, repeat
from .widen import PRECISIONS, parameter_types, widen


@dataclasses.dataclass
class TracedModel:
    """A traced model: the text of the model phase, and PyTorch's tensors."""

    #: MLIR text of the module: `@loss`, and `@logits` where there are logits.
    mlir: str
    #: Parameters in PyTorch's order, then buffers that an entry uses.
    tensors: list[Tensor]
    #: Names of the inputs of a step, in the order of its arguments.
    input_names: list[str]
    #: Shape (elements) and element type of each input.
    input_types: dict[str, tuple[tuple[int, ...], torch.dtype]]
    #: Entries of the module, such as ("loss", "logits").
    entries: tuple[str, ...]
    #: The same module as `mlir`, in which the locations of arguments are their names instead of
    #: their places in the text, for a compiler that is not given a file.
    named_mlir: str
    #: Returns the same model with the entry `@loss` alone and without drawn numbers: those of
    #: `Randomness.COUNTED`. Its `mlir` has the form of `named_mlir`.
    deterministic: Callable[[], TracedModel] | None = None
    #: Names of the buffers that a step writes.
    written: tuple[str, ...] = ()
    #: The precisions that the model requests ("bf16", "fp16") by 16-bit parameters or regions of
    #: `torch.autocast`. If there are any, the program uses f32 where eager code uses 16-bit types.
    precisions: tuple[str, ...] = ()
    #: Lines (`file:line`) at which the loss depends on statistics over several samples, those
    #: of batch normalisation; "" for an unknown line.
    batch_statistics: tuple[str, ...] = ()
    #: Why the model has no loss in evaluation mode; "" if it has one.
    unevaluated: str = ""
    #: Why there is no entry for logits; empty if there is one, or if the model returns none.
    no_logits: str = ""
    #: The inputs that the logits depend on.
    logits_inputs: tuple[str, ...] = ()
    #: The identity of the files that were loaded and that the trace loaded; "" if nobody asked.
    files: str = ""

    @property
    def parameters(self) -> list[Tensor]:
        return [t for t in self.tensors if t.role == "parameter"]

    @property
    def buffers(self) -> list[Tensor]:
        return [t for t in self.tensors if t.role == "buffer"]


def trace(module: torch.nn.Module, example_inputs: Any,
          loss_fn: Callable[..., torch.Tensor] | None = None, *,
          logits: bool = True, groups: Groups = Groups(),
          repeated: Sequence[Repeated] = (), keep_types: bool = False,
          policy: PrecisionPolicy = PrecisionPolicy()) -> TracedModel:
    """Traces a module and its loss to Cleave's graph dialect.

    `example_inputs` has one example of each tensor that a training step takes. It fixes shapes and
    types; values do not matter. If it is a tuple, the tensors are passed to `module` by position
    alone. With `loss_fn`, the last of them (as many as `loss_fn` requires after the output) are its
    targets; `((model inputs...), (targets...))` separates them explicitly. If it is a dict, tensors
    are passed by name; those that forward does not take are targets, or else the one that `loss_fn`
    names. A model of `transformers`, whose forward has other parameters before `labels`, takes a
    dict: `{"input_ids": ids, "labels": ids}`.

    `loss_fn(output, *targets)` returns a scalar; it is called with the logits in the output if it
    computes no loss of the whole. Without it the module must return its scalar loss: alone, in a
    tuple with logits, or as `loss` in a dict or an object.

    The module may be on the meta device: no weight is read or allocated. It is traced in
    training mode for `@loss` and in evaluation mode for `@logits`, and its mode is restored.
    Submodules in evaluation mode of a module in training mode stay in evaluation mode for
    `@loss`. A module in evaluation mode is traced entirely in training mode for `@loss`, with
    a warning if its loss then has dropout.

    Parameters with `requires_grad=False`, and those that the loss does not depend on, are
    frozen. Buffers are constants of the model; attention masks in them are recognised by
    value. A buffer that the loss writes to is state: `@loss` returns its new value. The loss in
    evaluation mode is an entry `@evaluate` of its own if it differs from `@loss` by more than
    randomness: if there are such buffers, or the code asks for its mode (`self.training`). If it
    cannot be traced in that mode, the module has an attribute with the reason and no
    `@evaluate`. The entry `@logits` is omitted if `logits` is false, or if they cannot be traced.

    Batch normalisation has the statistics of the whole batch, or of each of `groups`.

    A model with 16-bit parameters, or with regions of `torch.autocast`, requests mixed precision:
    its program uses f32 where eager code uses 16-bit types, except in frozen parameters, and
    `--precision` chooses what is computed in 16 bits. With `keep_types` the program has the types
    of eager code. Ops in f32 in a region `autocast(enabled=False)` get the attribute
    `graph.precision = "f32"`, and ops that `policy` matches, that of the policy.

    `repeated` (`cleave.trace.repeat.Repeated`) names lists of layers that are identical in
    structure. `module`, on the meta device, has only `cleave.trace.repeat.TRACED` of them; the
    others are copied.

    Raises:
        UnsupportedError: operators have no conversion; all are listed with their lines.
        TraceError: the model cannot be called as described, or cannot be traced, or layers of
            `repeated` are not identical in structure.
    """
    refuse_interrupted()
    with TRACING, seldom_collected():
        return _trace(module, example_inputs, loss_fn, logits, groups, repeated, keep_types, policy)


def _trace(module: torch.nn.Module, example_inputs: Any, loss_fn: Callable[..., Any] | None,
           logits: bool, groups: Groups, repeated: Sequence[Repeated], keep_types: bool,
           policy: PrecisionPolicy) -> TracedModel:
    """Implements `trace`, while no other thread traces."""
    call = plan_call(module, example_inputs, loss_fn)
    try:
        refuse_tensors(module)
        for name in call.inputs:
            refuse_name("input", name)
        refuse_hooks(module)
        refuse_choices(module)
        refuse_shared_memory(module)
    except EagerError as error:
        raise TraceError(str(error)) from None
    tensors = ModelTensors(module)
    begun = begin_training(module, call, loss_fn, logits, groups)
    if begun.dropped:
        warn(begun.dropped)
    loss, in_evaluation = in_both_modes(begun, loss_fn, logits)
    tensors.stack(loss.stacks)
    tensors.mark_written(loss.program)
    asked = parameter_types(module) | loss.narrow
    wide = bool(asked) and not keep_types

    def converted(name: str, exported: Exported, *options: Any) -> Function:
        also = ([n for n in exported.outputs if is_counts(n) or is_metric(n)] if name == "loss"
                else [])
        return convert_entry(name, tensors, exported, call, *options, wide=wide, policy=policy,
                             also=also)

    if wide:
        widen(loss.program)
    functions = [converted("loss", loss, groups)]

    @functools.cache
    def without_random_numbers(random: Randomness = Randomness.NONE) -> Function:
        drawing = any(a.role == "rng" for a in functions[0].arguments)
        return converted("loss", loss, groups, random) if drawing else functions[0]

    evaluation = in_evaluation()
    if wide and evaluation.exported is not None \
            and evaluation.exported.program is not loss.program:
        widen(evaluation.exported.program)
    evaluate, unevaluated = None, evaluation.reason
    if evaluation.exported is None or evaluation.exported.program is not loss.program \
            or tensors.written or not same_without_random(loss.program):
        evaluate, unevaluated = evaluation_entry(
            lambda: converted("evaluate", evaluation.exported, groups, Randomness.NONE), evaluation,
            None if tensors.written else without_random_numbers)
    if evaluate is not None:
        functions.append(evaluate)
    if unevaluated:
        warn("the model is trained, and cannot be evaluated, because its loss cannot be traced in "
             f"eval() mode: {unevaluated}")
    no_logits = evaluation.no_logits
    if "logits" in evaluation.outputs:
        try:
            functions.append(converted("logits", evaluation.exported, groups))
        except (TraceError, UnsupportedError) as error:
            no_logits = str(error)
    if no_logits and no_logits != unevaluated:
        warn(f"the model is trained, and has no `logits`, because they cannot be traced: {no_logits}")
    if not module.training and any(a.role == "rng" for a in functions[0].arguments):
        warn("the model is in eval() mode, but is trained with its dropout, as in train() mode; "
             "call model.train() to confirm this, or set the probability of its dropout to 0")
    for function in functions:
        if wrong := same_names((a.role, a.name) for a in function.arguments):
            raise TraceError(wrong)
    unused = functions[0].unused_parameters() | tensors.unreached(loss.reached)
    for function in functions:
        _freeze(function, unused)
        for a in function.arguments:
            if 0 in a.value.type.shape and a.role in ("parameter", "buffer"):
                raise TraceError(f"{a.role} '{a.name}' of {list(a.value.type.shape)} has no "
                                 "elements, and a compiled step has no such tensors; remove it")

    for tensor in tensors.all():
        tensor.frozen |= tensor.name in unused
    every = tensors.all()
    for layers in repeated:
        functions = [repeat(f, layers) for f in functions]
        every = in_all_layers(every, layers)
    printers = Printer(), Printer(named=True)
    for function in functions:
        for printer in printers:
            printer.add(function)
    for printer in printers:
        printer.unread = unread(every, functions)
        printer.unevaluated = unevaluated

    def kept(functions: list[Function]) -> list[Tensor]:
        used = {a.name for f in functions for a in f.arguments if a.role == "buffer"}
        return [t for t in every if t.role == "parameter" or t.name in used]

    def deterministic() -> TracedModel:
        function = functions[0]
        if any(a.role == "rng" for a in function.arguments):
            function = without_random_numbers(Randomness.COUNTED)
            _freeze(function, unused)
            for layers in repeated:
                function = repeat(function, layers)
        printer = Printer(named=True)
        printer.add(function)
        text = printer.text()
        return dataclasses.replace(traced, mlir=text, named_mlir=text, entries=("loss",),
                                   tensors=kept([function]))

    traced = TracedModel(
        mlir=printers[0].text(), named_mlir=printers[1].text(), tensors=kept(functions),
        input_names=list(call.inputs),
        input_types={n: (tuple(t.shape), wide_type(t.dtype) if wide else t.dtype)
                     for n, t in call.inputs.items()},
        precisions=tuple(n for n, dtype in PRECISIONS.items() if dtype in asked),
        entries=tuple(f.name for f in functions), deterministic=deterministic,
        written=tuple(sorted(tensors.written)),
        batch_statistics=tuple(functions[0].batch_statistics), unevaluated=unevaluated,
        no_logits=no_logits,
        logits_inputs=tuple(a.name for f in functions if f.name == "logits"
                            for a in f.arguments if a.role == "input"))
    return traced


def _freeze(function: Function, names: set[str]) -> None:
    """Marks the arguments with these names as not trained."""
    for argument in function.arguments:
        argument.frozen |= argument.name in names
