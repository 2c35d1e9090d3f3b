# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""From a model to a compiled program, for the shapes of one batch."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Literal, Mapping, Sequence, overload

import torch

from .. import _cleave
from ..messages import readable_places, some_names, warn
from ..runtime import processes
from ..runtime.forks import TRACING, compiling
from ..runtime.step import log
from . import options as table
from .batch import first_part
from .compare import compare_with_eager
from .kept_traces import kept_trace
from .settings import Settings
from .trainable import (Known, asked_precision, check_statistics, check_trained,
                        coupled_samples, other_types)

if TYPE_CHECKING:
    from ..trace import Groups, Tensor, TracedModel
    from ..trace.metrics import Metrics
    from ..training.optim import Optimizer
    from .batch import Arrange, Tensors


@dataclasses.dataclass(frozen=True)
class Built:
    """What was compiled for the shapes of a batch."""

    #: The model as it was traced.
    traced: TracedModel
    #: The compiler's result.
    compiled: _cleave.Compiled
    #: Lines to explain it with.
    remarks: list[str]


class Builder:
    """Compiles a model for batches of any shapes: what a `Step` calls.

    The first call compares the program with eager PyTorch, and gives the remarks."""

    def __init__(self, model: torch.nn.Module, examples: Sequence[torch.Tensor], arrange: Arrange,
                 loss_fn: Callable[..., Any] | None, settings: Settings,
                 metrics: Metrics | None = None) -> None:
        self.metrics = metrics
        self.model, self.examples, self.arrange = model, examples, arrange
        self.loss_fn, self.settings = loss_fn, settings
        #: The modes that modules were in, training or not.
        self.modes = {part: part.training for part in model.modules()}
        self.precision: str | None = settings.options.get("precision")
        self.known: Known | None = None
        self.warned = False
        #: Even shares of experts' rows that ranks have room for, since a step needed it.
        self.room: float | None = None

    @overload
    def __call__(self, inputs: Tensors, later: Literal[False] = False) -> Built: ...
    @overload
    def __call__(self, inputs: Tensors, later: Literal[True]) -> Callable[[], Built]: ...

    def __call__(self, inputs: Tensors, later: bool = False) -> Built | Callable[[], Built]:
        """What is compiled for the shapes of `inputs`; with `later`, a function that compiles what
        was traced."""
        with TRACING, in_modes(self.modes):
            # The model takes the types of the example.
            inputs = tuple(t.to(e.dtype) for t, e in zip(inputs, self.examples))
            parts, inputs = self._micro_batches(inputs)
            groups = self._groups(parts, inputs[0].shape[0] if inputs and inputs[0].ndim else 1)
            traced = self._trace(inputs, groups)
            self._check_traced(traced, parts)
            options = self._options(traced, parts)
            processes.agree(self.settings.launch, options, self.settings.seed, traced)
            if later:
                return lambda: self._compile(traced, options)
            built = self._compile(traced, options)
            if not self.warned:
                self._compare(inputs, groups, traced, options, built.compiled)
                for remark in map(readable_places, built.compiled.warnings()):
                    warn(remark)
            self.warned = True
            return built

    def grow(self, compiled: _cleave.Compiled) -> str:
        """Gives experts twice the room of `compiled` in what is compiled from now on. Returns how
        the option is then, or "" if a step without room is to end."""
        if self.settings.options.get("expert_overflow", "auto") == "abort":
            return ""
        # Ranks that have room for all rows need no more.
        shares = (json.loads(compiled.report()).get("expert_buffer") or {}).get("shares", 0)
        if not shares:
            return ""
        if self.room is None or self.room <= shares:
            self.room = 2.0 * shares
        return f"--expert-buffer={self.room:g}"

    # ------------------------------------------------------------------ tracing

    def _micro_batches(self, inputs: Tensors) -> tuple[int, Tensors]:
        """The number of micro-batches, and the inputs that are traced."""
        own = self.settings
        batch = inputs[0].shape[0] if inputs and inputs[0].ndim else 1
        if own.updates_each:
            return own.micro_batches, first_part(inputs, batch, own.micro_batches)
        return micro_batches(own.micro_batches, batch, own.sample_parts, own.even), inputs

    def _groups(self, parts: int, batch: int) -> Groups:
        """Which samples share statistics, of `batch` that are traced."""
        from ..trace import Groups

        own = self.settings
        parts = 1 if own.updates_each else parts
        balance = {"model": 0, "sequence": batch, "micro-batch": parts,
                   "rank": parts * own.sample_parts, "global": 1}[own.balance_loss]
        if own.batch_statistics == "batch":
            return Groups(balance=balance, choices=own.expert_counts, metrics=self.metrics)
        ranks = own.sample_parts if own.batch_statistics == "rank" else 1
        return Groups(parts, ranks, balance, own.expert_counts, self.metrics)

    def _trace(self, inputs: Tensors, groups: Groups) -> TracedModel:
        from ..trace import trace

        if self.known:
            self.known.check(self.model)
        with warnings.catch_warnings():
            # The remarks have been given for the batch of the first shape.
            if self.warned:
                warnings.simplefilter("ignore")
            arranged, policy = self.arrange(inputs), self.settings.policy

            def traced_again() -> TracedModel:
                with TRACING, in_modes(self.modes):
                    return trace(self.model, arranged, loss_fn=self.loss_fn, groups=groups,
                                 policy=policy)

            # A policy notes which of its patterns matched.
            traced = traced_again() if policy.patterned else kept_trace(
                self.model, arranged, self.loss_fn, [groups], traced_again)
        self.known = Known(self.model)
        return traced

    def _check_traced(self, traced: TracedModel, parts: int) -> None:
        """Raises an error if the step cannot train what was traced, and finds the precision that
        the model asks for."""
        own = self.settings
        if self.precision is None:
            self.precision = asked_precision(traced)
            if self.precision != "f32":
                log.warning('remark: the model asks for 16 bits, and is compiled with '
                            'precision="%s"', self.precision)
            table.check({**own.options, "precision": self.precision})
        if unmatched := own.policy.unmatched():
            raise ValueError(f"precision_policy has {some_names(unmatched)}, with which no module "
                             "that computes, and no op, is named")
        check_trained(self.model, traced)
        check_statistics(traced, own.batch_statistics, 1 if own.updates_each else parts,
                         own.options.get("deterministic"))

    # ------------------------------------------------------------------ compiling

    def _options(self, traced: TracedModel, parts: int) -> dict[str, Any]:
        """The compiler's options."""
        own = self.settings
        options = {**own.options, "precision": self.precision,
                   "optimizer": own.optimizer.options(),
                   "parameters": parameter_options(own.optimizer, traced.parameters)}
        if self.room is not None:
            options["expert_buffer"] = repr(self.room)
        if "deterministic" not in options:
            options["micro_batches"] = parts
        return options

    def _compile(self, traced: TracedModel, options: Mapping[str, Any]) -> Built:
        """Compiles what was traced; does not touch the model."""
        own = self.settings
        try:
            with compiling():
                compiled = _cleave.compile(with_updates(traced.named_mlir, own.optimizer.module()),
                                           json.dumps(options))
                compiled.offload_dir = own.offload_dir
                _remark_cache(compiled.cache_problem)
                compiled.ranks_per_device = own.ranks_per_device
        except _cleave.CompileError as error:
            raise _cleave.CompileError(self._reason(error, traced, options)) from None
        remarks = map(readable_places, compiled.warnings())
        return Built(traced, compiled, [*remarks, *module_remarks(options, compiled)])

    def _reason(self, error: _cleave.CompileError, traced: TracedModel,
                options: Mapping[str, Any]) -> str:
        """The compiler's message, with what Python knows of it."""
        from ..trace.balance import parts_note
        from ..trace.call_plan import samples_note

        message = readable_places(str(error)) or (
            "the compiler failed and does not say why; this is a defect of Cleave")
        message = table.explained(message, options)
        if " native form " in message or " type" in message:
            message += other_types(self.model)
        if getattr(error, "couples_samples", False):
            message = coupled_samples(message, options.get("micro_batches", 1),
                                      options.get("deterministic"))
            if self.settings.balance_loss == "model":
                message += parts_note(self.model, "deterministic" in options)
        if " samples" in message:
            message += samples_note({n: torch.empty(shape, device="meta")
                                     for n, (shape, _) in traced.input_types.items()})
        return message

    def _compare(self, inputs: Tensors, groups: Groups, traced: TracedModel,
                 options: Mapping[str, Any], compiled: _cleave.Compiled) -> None:
        """Raises CompileError if the program differs from eager PyTorch."""
        from ..trace import trace

        check = self.settings.check
        if check == "off":
            return
        if (groups.count > 1 and traced.batch_statistics) or groups.balance or groups.choices \
                or groups.metrics:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                traced = trace(self.model, self.arrange(inputs), loss_fn=self.loss_fn, logits=False)
        # What applies to one device.
        own = {name: options[name] for name in ("threads", "max_logits_bytes", "bucket_bytes")
               if name in options}
        compare_with_eager(self.model, self.arrange, inputs, self.loss_fn, traced, own,
                           forced=check == "on", lender=compiled)


def with_updates(module: str, updates: str) -> str:
    """The text of a module, with the updates that an optimizer writes."""
    if not updates:
        return module
    head, rest = module.split("\n", 1)
    return f"{head}\n{updates}{rest}"


@contextlib.contextmanager
def in_modes(modes: Mapping[torch.nn.Module, bool]) -> Iterator[None]:
    """Each module in the mode that it was compiled in, in training or not, also for a
    batch of another shape that comes later."""
    now = {part: part.training for part in modes}
    try:
        for part, mode in modes.items():
            part.training = mode
        yield
    finally:
        for part, mode in now.items():
            part.training = mode


def _remark_cache(problem: str) -> None:
    """Says once for each reason why compiled programs are not kept."""
    if problem and problem not in _cache_problems:
        _cache_problems.add(problem)
        log.warning("remark: what is compiled is not kept for the next start: %s; CLEAVE_CACHE "
                    'names another folder, or is "off"', problem)


#: The reasons that were given in this process.
_cache_problems: set[str] = set()


def parameter_options(optimizer: Optimizer, parameters: Iterable[Tensor]) -> dict[str, dict[str, Any]]:
    """Settings of single parameters by the program's names; a stack has those that all
    its parts have."""
    own: dict[str, torch.Tensor] = {}
    for entry in parameters:
        if not entry.frozen:
            own.update(zip(entry.parts, entry.tensor) if entry.parts
                       else [(entry.name, entry.tensor)])
    options = optimizer.parameter_options(own)
    if idle := optimizer.idle_groups(own):
        warn(f"param_groups{idle} of the optimizer: no trained parameter has these settings, because "
             "match is false for all of them, or an earlier group matches first")
    for entry in parameters:
        found = [options.pop(part, {}) for part in entry.parts]
        if any(other != found[0] for other in found):
            raise ValueError(f"{entry.parts[0]} and others of {entry.name} are trained as one "
                             "and need one weight decay and learning rate")
        if found and found[0]:
            options[entry.name] = found[0]
    return options


def micro_batches(asked: int, batch: int, ranks: int, even: bool) -> int:
    """The number of micro-batches, each of which has samples on some rank. Statistics of
    micro-batches, and gradients that each worker keeps, need `even` ones."""
    most = max(min(asked, -(-batch // ranks)), 1)
    parts = max(m for m in range(1, most + 1)
                if not even or batch % (m * ranks) == 0 or m == 1)
    if parts != asked:
        log.warning("remark: a batch of %d %s %d micro-batches; computed in %d", batch,
                    "is not divisible into" if even else "has too few samples for", asked, parts)
    return parts


def module_remarks(options: Mapping[str, Any], compiled: _cleave.Compiled) -> list[str]:
    """The head that trains each module of a gradient horizon."""
    if not (horizon := options.get("grad_horizon")):
        return []
    names: str = options.get("modules", "")
    begins: list[str] = []
    if names.isdecimal():
        count = int(names)
    elif names:
        begins = names.split(",")
        count = len(begins) + 1
    else:
        count = compiled.stages
    lines = []
    for module in range(1, count + 1):
        head = min(module + horizon - 1, count)
        trainer = "the model's head" if head == count else f"the head after module {head}"
        begin = f" from {begins[module - 2]}" if begins and module > 1 else ""
        lines.append(f"module {module} of {count}{begin}: trained by {trainer}")
    return lines
