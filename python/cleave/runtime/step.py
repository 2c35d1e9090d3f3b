# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A compiled training step: what `cleave.compile` returns."""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
import weakref
from typing import (TYPE_CHECKING, Any, Callable, Literal, Mapping, NoReturn, Protocol, Sequence, TypeVar,
                    Union, overload)

import torch

from ..compiler.background import Background
from ..messages import close_names, some_names
from ..reports.text import Reports
from .call_inputs import CallInputs, shape_key
from .checkpoint import Checkpoints
from .forks import alone
from .held import Key
from .masters import choose_masters, masters
from .native import N, Note, Result
from .processes import agree_on_values
from .program import Program
from .results import Evaluation, Loss, RoomError, StepError
from .state import (SCALE_FACTS, choose_slots, choose_tensors, initial_values, logical_shape,
                    read_counts, read_loss_scale, split_slots, whole)

if TYPE_CHECKING:
    from .. import _cleave
    from ..compiler.padding import Buckets
    from ..compiler.build import Built
    from ..training.optim import Optimizer

log = logging.getLogger("cleave")
#: The beginning of the names of results that count choices of experts.
_COUNTS = "expert_counts."
#: The beginning of the names of results that are metrics.
_METRIC = "metric/"

Tensors = tuple[torch.Tensor, ...]
T = TypeVar("T", torch.Tensor, Union[torch.Tensor, None])


class Build(Protocol):
    """Traces and compiles a model for the shapes of inputs."""

    @overload
    def __call__(self, inputs: Tensors, later: Literal[False] = False) -> Built: ...
    @overload
    def __call__(self, inputs: Tensors, later: Literal[True]) -> Callable[[], Built]: ...

    def grow(self, compiled: _cleave.Compiled) -> str:
        """Gives experts more room than `compiled` has in what is compiled from now on. Returns
        how much, or "" if a step without room is to end."""


#: How what a person may want to set is set.
_SET_OTHERWISE = {
    "lr": "the learning rate is the optimizer's: a number, or a cleave.Schedule of the step's "
          "number, in optimizer=cleave.AdamW(lr=...)",
    "seed": "the seed is an argument of cleave.compile, and is part of the state that "
            "load_training_state restores",
    "step": "the number of steps is part of the state that load_training_state restores",
    "skipped": "the number of skipped steps is part of the state that load_training_state restores",
    "loss_scale": "the scale of the loss is an argument of cleave.compile, and is part of the state "
                  "that load_training_state restores",
}


class Step(Reports, Checkpoints, CallInputs):
    """A training step of one model.

    Calling it runs forward, backward and update on a whole batch and returns the
    `Loss`. All state (parameters, buffers, optimizer state) is in the arena of the
    compiled program; `state_dict` copies it. A batch of another shape compiles a
    further program, kept for later batches, to which the state moves.

    A signal whose handler raises (Ctrl-C: KeyboardInterrupt) ends a call before the
    step has begun or after it is done, never between: `step` counts completed steps,
    and `last` is the result of the last of them, also if the call could not return it.

    Calls of several threads wait for each other. A process that is forked from this one
    can read the state, and not change it or run the step: RuntimeError. A step is not
    copied or pickled: `save` and `load` move its state.
    """

    def __init__(self, build: Build, module: torch.nn.Module, example_inputs: Sequence[torch.Tensor],
                 optimizer: Optimizer, seed: int, processes: _cleave.Processes | None = None,
                 buckets: Buckets | None = None) -> None:
        """`build(inputs)` traces and compiles for the shapes of `inputs`, and returns a
        `compiler.build.Built`. `processes`
        are its ranks; None for threads of this one. With `buckets`, batches are padded,
        and `build(inputs, later=True)` returns a function that compiles what it traced."""
        self._build = build
        self._module = module
        self._optimizer = optimizer
        self._processes = processes
        self._programs = {}
        self._buckets = buckets
        self._background: Background[Key, Built] | None = None
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._live = self._compile_for(self._padded(tuple(example_inputs)))
        self._live.open().set_all({}, (int(seed), 0, 0, 0))
        if buckets is not None:
            buckets.take_values(self._live.tensors)
        self._load_from_module()

    def __setattr__(self, name: str, value: Any) -> None:
        if name[:1] != "_" and getattr(getattr(type(self), name, None), "fset", None) is None:
            own = [n for n in dir(type(self)) if n[0] != "_"]
            settable = [n for n in own if getattr(getattr(type(self), n), "fset", None)]
            known = f"it has {', '.join(close_names(name, own))}"
            raise AttributeError(
                f"'{name}' of a step cannot be set: "
                + _SET_OTHERWISE.get(name, "a step is what cleave.compile has made; "
                                     + ("it cannot be replaced" if name in own else known))
                + f". What can be set is {', '.join(settable)}")
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a compiled step cannot be copied or pickled, because its state is in the memory of "
            "native code: write it by step.save(folder), and read it by step.load(folder) or "
            "cleave.load(folder, model); or take step.state_dict() and step.training_state()")

    # ------------------------------------------------------------------ state

    @property
    def step(self) -> int:
        """The number of completed steps, each of `updates_per_step` updates."""
        return self._live.session.step

    @property
    def skipped(self) -> int:
        """The number of steps that were skipped because gradients overflowed
        (`precision="fp16"`). Optimizer and learning rate count the others."""
        return self._live.session.skipped

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss in the next step; None where it is not scaled."""
        state = self._live.session.loss_scale
        return None if state is None else state[0]

    @property
    def last(self) -> Loss | None:
        """The result of the last step; None before the first, and after loading a
        training state."""
        result = self._live.session.last
        return None if result is None else self._loss(result)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last step, by the names that `metrics` of `cleave.compile` gives
        them; empty before the first."""
        last = self.last
        return {} if last is None else last.metrics

    @property
    def data_position(self) -> int:
        """A number that the caller keeps with the state, such as the sequences used so
        far."""
        return self._live.session.data_position

    @data_position.setter
    def data_position(self, value: int) -> None:
        self._live.session.data_position = whole("data_position", value)

    def _load_from_module(self) -> None:
        agree_on_values(self._processes, self._live.traced)
        for entry in (*self._live.traced.parameters, *self._live.traced.buffers):
            if entry.tensor.is_meta:
                continue
            if entry.name in self._live.tensors:
                self._live.set(entry.name, entry.tensor)
        for name, source in initial_values(self._live.tensors).items():
            self._live.set(name, self._live.tensor(source))

    def _program(self, built: Built) -> Program[_cleave.Compiled]:
        return Program(built.traced, built.compiled, built.remarks, self._processes)

    def _compile_for(self, inputs: Tensors) -> Program[_cleave.Compiled]:
        key = shape_key(inputs)
        program = self._programs.get(key)
        if program is None and self._background is not None and key in self._background:
            program = self._program(self._background.take(key))
            self._programs[key] = program
        if program is None:
            start = time.perf_counter()
            program = self._program(self._build(inputs))
            if self._programs:
                shapes = ", ".join(str(list(t.shape)) for t in inputs)
                log.warning(
                    "remark: compiled for inputs of shape %s in %.1f s; kept "
                    "for the next batch of this shape",
                    shapes,
                    time.perf_counter() - start,
                )
            self._programs[key] = program
        return program

    def compile_others(self) -> None:
        """Traces the model for the other buckets, and begins to compile them."""
        if self._buckets is None:
            return
        jobs: dict[Key, Callable[[], Built]] = {}
        for inputs in self._buckets.others():
            jobs[shape_key(inputs)] = self._build(inputs, later=True)
        self._background = Background(jobs)
        weakref.finalize(self, self._background.stop)

    def _padded(self, inputs: tuple[T, ...]) -> tuple[T, ...]:
        """The inputs of a call, of which one that is left out is None, as programs take them."""
        return inputs if self._buckets is None else self._buckets.pad(inputs)

    def _program_for(self, inputs: Tensors) -> Program[_cleave.Compiled]:
        """The program for the shapes of `inputs`, holding the state."""
        program = self._compile_for(inputs)
        if program is self._live:
            return program
        program.open(self._live.session)
        self._check_state(program)
        program.session.follow(self._live.session)
        # Tensors with other shardings are given as global ones.
        for name in program.session.take_state(self._live.session):
            facts = self._live.tensors.get(name)
            if facts and facts["shape"] == program.tensors[name]["shape"]:
                program.set(name, self._live.tensor(name))
        # Buffers whose shape depends on the input's come from the new trace.
        for entry in program.traced.buffers:
            old = self._live.tensors.get(entry.name)
            new = program.tensors.get(entry.name)
            if new and (old is None or old["shape"] != new["shape"]):
                program.set(entry.name, entry.tensor)
        before, self._live = self._live, program
        before.close()
        return program

    def _check_state(self, program: Program[_cleave.Compiled]) -> None:
        """Raises CompileError, and closes the program, if the optimizer's state would be lost on
        the way to it."""
        lost = [name for name, facts in self._live.tensors.items() if facts["role"] == "state"
                and (name not in program.tensors
                     or program.tensors[name]["shape"] != facts["shape"])]
        if lost:
            from .. import _cleave

            program.close()
            raise _cleave.CompileError(
                "for a batch of this shape the model does not train all parameters: the state "
                f"{some_names(lost)} has no place in its program, and would be lost. A step trains "
                "the same parameters for each shape: let the model read them in each, as by a "
                "factor of 0, or compile a step for each shape, and move the state by state_dict "
                "and training_state")

    def _framework_view(self, name: str) -> torch.Tensor:
        """A copy of a parameter or buffer, in the framework's shape."""
        facts = self._live.tensors[name]
        return self._live.tensor(name).reshape(logical_shape(facts))

    def state_dict(self, *, masters: bool = False) -> dict[str, torch.Tensor]:
        """Parameters and buffers under the names, shapes, types and order of the module's
        own `state_dict`; tied names share one tensor. They are followed by parameters
        that the module does not have: those of auxiliary heads. With `masters`, what the
        module has in 16 bits is in f32, as the step trains it."""
        known: dict[str, torch.Tensor] = {}
        for entry in (*self._live.traced.parameters, *self._live.traced.buffers):
            if entry.name in self._live.tensors:
                value = self._framework_view(entry.name)
                if not masters:
                    value = value.to(entry.dtype)
                if entry.parts:
                    known.update(zip(entry.parts, value))
                for name in (entry.name, *entry.aliases):
                    known[name] = value
        own = {
            name: known.get(name, value)
            for name, value in self._module.state_dict().items()
        }
        added = initial_values(self._live.tensors)
        return own | {name: self._framework_view(name) for name in added}

    @alone
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replaces parameters and buffers, by the names of the module's own
        `state_dict`. All of these must be present that the step has; those of auxiliary
        heads need not, and a missing one gets the value of the final head's. Buffers
        that are not persistent may be present or not. Values of another type are
        converted, floats as `Tensor.to` rounds them. On an error nothing is replaced.

        Raises:
            KeyError: names are missing or unknown; all listed.
            TypeError: a value is not a tensor, or of a type that does not convert.
            ValueError: shapes differ, names of one tensor have different values, or a
                value is out of the range of the step's type; all listed.
        """
        traced = self._live.traced
        buffers = self._module.named_buffers(remove_duplicate=False)
        own = {*self._module.state_dict(), *(name for name, _ in buffers)}
        chosen = choose_tensors(
            (*traced.parameters, *traced.buffers),
            self._live.tensors,
            own,
            state,
        )
        self._live.set_all(chosen)

    def training_state(self) -> dict[str, Any]:
        """Optimizer state, step, seed and data position, copied. State that belongs to
        no parameter, the scales of `precision="fp8"`, is under "" in "optimizer". With
        `state_dict()` all this continues a run bit for bit: what the module has in 16 bits
        is in "masters" in f32, as the step trains it. `step` counts calls,
        `skipped` those of them that overflowed; each of the others made
        `updates_per_step` updates: more than 1 with "pipedream"."""
        slots: dict[str, dict[str, torch.Tensor]] = {}
        scale = self._live.session.loss_scale
        for name, facts in self._live.tensors.items():
            if facts["role"] == "state":
                value = self._live.tensor(name).reshape(logical_shape(facts))
                slots.setdefault(facts["of"], {})[facts["slot"]] = value
        return {
            "step": self.step,
            "skipped": self.skipped,
            **({} if scale is None else {"loss_scale": dict(zip(SCALE_FACTS, scale))}),
            "updates_per_step": self._live.updates_per_step,
            "seed": self._live.session.seed,
            "data_position": self.data_position,
            "optimizer": split_slots(self._live.traced.parameters, slots),
            **({"masters": own} if (own := self._masters()) else {}),
        }

    def _masters(self) -> dict[str, torch.Tensor]:
        traced = self._live.traced
        return masters((*traced.parameters, *traced.buffers), self._live.tensors,
                       self._framework_view)

    @alone
    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `training_state` returned. Of a module of 16 bits, the `state_dict` of
        the same step is loaded first, since the state has the masters of these weights. On
        an error nothing is changed.

        Raises:
            KeyError: entries are missing, or parameters or slots are unknown;
                all listed.
            TypeError: an entry is of another type.
            ValueError: shapes differ, or a count is negative; all listed. Or the
                updates that were made are not a whole number of steps of this program, or
                the masters are those of other weights.
        """
        traced = self._live.traced
        chosen = choose_slots(traced.parameters, self._live.tensors, state)
        chosen.update(choose_masters((*traced.parameters, *traced.buffers), self._live.tensors,
                                     state, self._framework_view))
        counts = read_counts(state, self._live.updates_per_step)
        self._live.set_all(chosen, counts, read_loss_scale(state))

    # ------------------------------------------------------------------- runs

    def _call(self, program: Program[_cleave.Compiled], entry: str, inputs: Tensors, outputs: Sequence[str],
              scalars: Mapping[str, float], note: N) -> Result[N]:
        """Runs an entry in one piece: returns the outputs by name, the number of the
        step, its seconds, the repeated updates, why it was skipped, and `note`."""
        known = program.tensors
        given = zip(program.traced.input_names, inputs)
        result = program.session.call(
            entry,
            [program.data(name, value) for name, value in given if name in known],
            {name: value for name, value in scalars.items() if name in known},
            [name for name in outputs if name in known],
            note,
        )
        if isinstance(result, str):
            if self._processes is not None and self._processes.error():
                from .. import _cleave

                raise _cleave.ProcessError(result)
            raise (RoomError if program.session.lacks_room else StepError)(result)
        return result

    def _call_with_room(self, entry: str, inputs: Tensors, outputs: Sequence[str],
                        scalars: Mapping[str, float], note: N) -> Result[N]:
        """Runs an entry of the program for `inputs`. Where a rank has no room for its rows of
        experts, and the step grows, a program with more room takes the place of that one, with
        the state, and runs it again: the failed run has changed nothing."""
        while True:
            program = self._program_for(inputs)
            try:
                return self._call(program, entry, inputs, outputs, scalars, note)
            except RoomError as error:
                start = time.perf_counter()
                room = self._build.grow(program.compiled)
                if not room:
                    raise
                self._programs[shape_key(inputs)] = self._program(self._build(inputs))
                log.warning("remark: %s: compiled in %.1f s with %s, and the step is made again",
                            error, time.perf_counter() - start, room)

    def _loss(self, result: Result[Note]) -> Loss:
        """The runtime's results of a step, as a `Loss`."""
        found, number, seconds, again, skipped, (lr, elements, scale) = result
        counts = {} if skipped else {n.removeprefix(_COUNTS): self._live.typed(n, v)
                                     for n, v in found.items() if n.startswith(_COUNTS)}
        values = {n: math.nan if skipped else float(self._live.typed(n, v))
                  for n, v in found.items() if not n.startswith(_COUNTS)}
        metrics = {n.removeprefix(_METRIC): values.pop(n) for n in list(values) if n.startswith(_METRIC)}
        return Loss(
            values.pop("loss"),
            grad_norm=values.pop("grad_norm", None),
            auxiliary=list(values.values()),
            lr=lr,
            tokens_per_s=elements / seconds,
            step=number,
            updated_again=again,
            skipped=skipped,
            loss_scale=scale,
            expert_counts=counts,
            metrics={} if skipped else metrics,
        )

    @alone
    def __call__(self, *inputs: Any, **named: Any) -> Loss:
        """Trains on one batch, given by position or by name.

        Raises:
            TypeError: inputs are missing, too many or unknown, or of another
                type.
            ValueError: an input has no elements.
            cleave.trace.TraceError, cleave.CompileError: the model does not
                take inputs of these shapes.
            StepError: the step stopped (no valid label, a norm that is not
                finite, an index out of range, no room for rows of experts); no
                state was changed.
        """
        given = self._whole(inputs, named)
        elements = given[0].numel()
        given = self._padded(given)
        program = self._program_for(given)
        lr = self._optimizer.lr_at(self.step - self.skipped)
        auxiliary = [n for n in program.tensors if re.fullmatch(r"auxiliary_loss\.\d+", n)]
        beside = [n for n in program.tensors if n.startswith((_COUNTS, _METRIC))]
        return self._loss(
            self._call_with_room(
                "train",
                given,
                ["loss", "grad_norm", *auxiliary, *beside],
                {"lr": lr, **self._optimizer.scalars_at(self.step - self.skipped)},
                (lr, elements, self.loss_scale),
            )
        )

    @alone
    def evaluate(self, *inputs: Any, **named: Any) -> Evaluation:
        """The loss of one batch, as the model computes it in `eval()` mode, without random
        numbers; changes no state.

        Raises:
            StepError: the model has no loss in `eval()` mode.
        """
        padded = self._padded(self._whole(inputs, named))
        program = self._program_for(padded)
        if "evaluate" not in program.session.entries():
            raise StepError(f"the model has no loss in eval() mode: {program.traced.unevaluated}")
        found, *_ = self._call_with_room("evaluate", padded, ["loss", "loss_weight"], {}, None)
        values = {n: float(self._live.typed(n, v)) for n, v in found.items()}
        return Evaluation(values["loss"], weight=values.get("loss_weight"))

    @alone
    def logits(self, *inputs: Any, **named: Any) -> torch.Tensor:
        """The model's logits, as it computes them in `eval()` mode. Inputs on which they do
        not depend, such as labels, may be left out.

        Raises:
            TypeError: an input is left out on which the logits depend.
            StepError: the model has no logits among its outputs, or they cannot be traced.
        """
        traced = self._live.traced
        if "logits" not in traced.entries:
            raise StepError(f"the model's logits cannot be traced: {traced.no_logits}"
                            if traced.no_logits else "the model has no logits among its outputs")
        given = self._given(inputs, named)
        left_out = [n for n in traced.logits_inputs if n not in given]
        if left_out:
            raise TypeError(
                f"the logits depend on {', '.join(map(repr, left_out))}, which "
                f"{'is' if len(left_out) == 1 else 'are'} left out; give "
                f"{'it' if len(left_out) == 1 else 'them'}, as in training: what the model does "
                "without is not compiled")
        some = tuple(given.get(n) for n in traced.input_names)
        padded = self._complete(self._padded(some))
        values, *_ = self._call_with_room("logits", padded, ["logits"], {}, None)
        logits = self._live.typed("logits", values["logits"])
        return logits if self._buckets is None else self._buckets.cut(logits, some)
