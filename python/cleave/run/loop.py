# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The loop of a run."""

from __future__ import annotations

import itertools
import json
import os
import time
from typing import TYPE_CHECKING, Any, Sequence

from ..messages import warn
from ..runtime.state import whole
from . import randomness
from .batches import Batches, call_with
from .callbacks import Callbacks
from .checkpoints import RunCheckpoints
from .progress import Progress
from .rates import Clock, Utilisation, parameter_norms

if TYPE_CHECKING:
    from ..runtime.results import Loss
    from ..runtime.step import Step

#: The norms that a run can compute.
NORMS = ("gradient", "parameter", "each parameter")


class Run:
    """A loop around a compiled step.

    Each step of it draws a batch, trains on it, calls callbacks, and evaluates and saves when that
    is due, in this order. Where ranks are processes, all of them run the same loop, on the same
    batches.

    Args:
        step: of `cleave.compile`.
        data: batches, each a tuple, a dict or a tensor as the step takes it: a loader or a list,
            read again for each epoch; a function that gets the number of an epoch, from 0, and
            returns one; a `cleave.feed.Feed`; or an iterator, read once.
        eval_data: batches, which each evaluation reads from the beginning.
        eval_every: steps between two evaluations; None for one at the end.
        eval_batches: the most batches of an evaluation; None for all.
        callbacks: objects with methods of `cleave.run.Callback`; loggers are such.
        folder: of checkpoints, each named `step-N`; the last state is saved, too.
        save_every: steps between two checkpoints.
        save_minutes: minutes between two.
        keep: how many of the latest checkpoints stay; None for all.
        log_every: steps between two that loggers write; step `steps` of `fit` is written, too.
        norms: of steps that are logged: "parameter", the 2-norm of all parameters; "each
            parameter", that of each; "gradient" makes sure that the step returns the norm of
            all gradients, which it does with `max_grad_norm` of its optimizer.
        peak: operations per second of one device, or the name of one ("h200", "h100", "a100": by
            its peak in matmuls of 16 bits), for the share of it that a step reaches (MFU).
        progress: "bar", "lines", "none", or "auto": a bar on a terminal.

    Attributes:
        until: the number of steps at which `fit` ends; None where the data decides.
        logs: whether the current step is one that loggers write.

    Raises:
        TypeError, ValueError: an argument is of the wrong type, out of range, or needs another one.
    """

    def __init__(self, step: Step, data: Any, *, eval_data: Any = None, eval_every: int | None = None,
                 eval_batches: int | None = None, callbacks: Sequence[Any] = (),
                 folder: str | os.PathLike[str] | None = None, save_every: int | None = None,
                 save_minutes: float | None = None, keep: int | None = None, log_every: int = 1,
                 norms: str | Sequence[str] = (), peak: float | str | None = None,
                 progress: str = "auto") -> None:
        from ..runtime.step import Step

        if not isinstance(step, Step):
            raise TypeError(f"step is {type(step).__name__}, not a cleave.Step, which cleave.compile "
                            "returns")
        self._step = step
        self._batches = Batches(data)
        self._eval_data = eval_data
        self._eval_begin = getattr(eval_data, "position", None)
        self._eval_every = None if eval_every is None else whole("eval_every", eval_every, 1)
        self._eval_batches = None if eval_batches is None else whole("eval_batches", eval_batches, 1)
        if eval_data is None and (eval_every or eval_batches):
            raise ValueError("eval_every and eval_batches are those of eval_data, which is not given")
        self._checkpoints = RunCheckpoints(step, folder, save_every, save_minutes, keep)
        self._log_every = whole("log_every", log_every, 1)
        self._norms = _norms_of(step, norms)
        self._utilisation = None if peak is None else Utilisation(step, peak)
        self._callbacks = Callbacks([*callbacks, Progress(progress)])
        self._clock = Clock()
        self._stopped = self._began = False
        self._evaluated = -1
        self._epochs: int | None = None
        # Where the data was before the batch of the current step, and the steps then done.
        self._mark: tuple[int, dict[str, Any]] | None = None
        self.until: int | None = None
        self.logs = False

    # -------------------------------------------------------------------- facts

    @property
    def step(self) -> Step:
        """The compiled step."""
        return self._step

    @property
    def epoch(self) -> int:
        """The number of epochs that are done."""
        return self._batches.epoch

    @property
    def leads(self) -> bool:
        """Whether this process is the first rank, or the only process: the one that writes."""
        return self._step.rank == 0

    @property
    def seconds_left(self) -> float | None:
        """The time to the end, by that of the last steps; None if the end is not known."""
        done, ends = self._step.step, []
        if self.until is not None:
            ends.append(self.until - done)
        if self._epochs is not None and (each := self._batches.per_epoch):
            ends.append((self._epochs - self.epoch) * each - self._batches.used)
        return self._clock.left(min(ends) if ends else None)

    def stop(self) -> None:
        """Ends `fit` after the current step, with its evaluation and checkpoint. Where ranks are
        processes, it is enough that one of them calls it. (When `on_save` calls it there, one more
        step is made.)"""
        self._stopped = True

    # --------------------------------------------------------------------- runs

    def fit(self, steps: int | None = None, epochs: int | None = None, *,
            resume: str | os.PathLike[str] | None = None) -> Loss | None:
        """Trains until the step has made `steps` steps in all, with those before this call, or
        the data was read `epochs` times in all, whichever comes first; a feed or an iterator may
        end by itself.

        On an exception, Ctrl-C included, the state after the last completed step is saved if
        there is a folder, and the exception is raised. (Not where ranks are processes, which
        save together: only one may have failed.)

        Args:
            steps: the number of steps at which it ends.
            epochs: the number of epochs at which it ends.
            resume: a checkpoint of a run, or a folder of them, whose latest is taken: step,
                position in the data and random numbers go on from there. "auto": the latest in
                the run's own folder, or from the beginning if it has none.

        Returns:
            The result of the last step; None if none was made.

        Raises:
            FileExistsError: the folder has checkpoints of another run, and `resume` is not given.
            FileNotFoundError: there is no checkpoint.
            ValueError: there is neither a number of steps nor of epochs, and the data does not end;
                or a checkpoint does not fit the step or the data.
        """
        self._epochs = None if epochs is None else whole("epochs", epochs, 1)
        self.until = None if steps is None else whole("steps", steps, 1)
        if self._batches.ends_by_itself and epochs is not None:
            raise ValueError("the data counts its epochs itself, as Feed(epochs=...) does, or is read "
                             "once: give steps, or nothing, to read it to its end")
        if steps is None and epochs is None and not self._batches.ends_by_itself:
            raise ValueError("fit needs steps or epochs, since the data can be read for ever")
        self._stopped, self._mark = False, None
        self._enter(resume)
        error: BaseException | None = None
        try:
            self._callbacks.start(self)
            self._train()
        except BaseException as raised:
            error = raised
            self._save_after(raised)
            raise
        finally:
            self._callbacks.end(self, error)
        return self._step.last

    def _enter(self, resume: str | os.PathLike[str] | None) -> None:
        """Loads what the run goes on from, or sees that its folder is its own."""
        first, self._began = not self._began, True
        latest = self._checkpoints.latest() if resume == "auto" or (resume is None and first) else None
        if resume == "auto":
            if self._checkpoints.folder is None:
                raise ValueError('resume="auto" needs the folder of checkpoints: give folder= to Run')
            if latest is not None:
                self._load(latest)
        elif resume is not None:
            self._load(resume)
        elif latest is not None:
            raise FileExistsError(f"{self._checkpoints.folder}: has checkpoints of another run; go on "
                                  'from them by fit(resume="auto"), or give another folder')

    def _load(self, path: str | os.PathLike[str]) -> None:
        kept = self._checkpoints.load(path)
        if kept:
            self._batches.restore(kept["data"])
            self._callbacks.restore(kept["callbacks"])
        elif self._batches.kind == "position":
            self._batches.restore({**self._batches.state(), "position": self._step.data_position})
        else:
            raise ValueError(
                f"{os.fspath(path)}: was not written by a run, and does not say where the run was in "
                "its data. Load it by step.load(folder), and call fit without resume: the data then "
                "begins anew")

    def _train(self) -> None:
        saves = self._checkpoints.folder is not None
        begin = time.perf_counter()
        ended = False
        while not ended and (self.until is None or self._step.step < self.until):
            if saves:
                self._mark = (self._step.step, self._batches.state())
            batch = self._batches.draw(self._epochs)
            if batch is None:
                break
            drawn = time.perf_counter()
            loss = call_with(self._step, batch)
            done = time.perf_counter()
            self.logs = self._step.step % self._log_every == 0 or self._step.step == self.until
            values = self._values(loss, drawn - begin, done - drawn)
            self._callbacks.call("on_step", self, values)
            if self._eval_every is not None and self._step.step % self._eval_every == 0:
                self._evaluate_now()
            ended, late = self._agree()
            if saves and (late or self._checkpoints.due(self._step.step)):
                self._save(self._batches.state())
                ended = ended or (self._stopped and self._step._processes is None)
            now = time.perf_counter()
            self._clock.add(now - begin)
            begin = now
        if self._eval_data is not None and self._evaluated != self._step.step:
            self._evaluate_now()
        if saves and self._checkpoints.saved != self._step.step:
            self._save(self._batches.state())

    def _agree(self) -> tuple[bool, bool]:
        """Whether the run ends, and whether a checkpoint is late. Ranks that are processes end and
        save at the same step: where one of them stops, and when the first one is late."""
        processes = self._step._processes
        own = (self._stopped, self._checkpoints.late())
        if processes is None:
            return own
        found = [json.loads(text) for text in processes.texts(json.dumps(own))]
        return any(stopped for stopped, _ in found), found[0][1]

    def _values(self, loss: Loss, waited: float, seconds: float) -> dict[str, float]:
        """The numbers of a step. The loss of a step that was skipped is left out."""
        found: dict[str, float] = {"skipped": 1.0} if loss.skipped else {"loss": float(loss)}
        if loss.grad_norm is not None and not loss.skipped:
            found["grad_norm"] = loss.grad_norm
        for number, one in enumerate(() if loss.skipped else loss.auxiliary):
            found[f"auxiliary_loss.{number}"] = one
        found |= loss.metrics
        found["lr"] = loss.lr
        if loss.loss_scale is not None:
            found["loss_scale"] = loss.loss_scale
        found |= {"tokens_per_s": loss.tokens_per_s, "ms": seconds * 1e3, "data_ms": waited * 1e3,
                  "epoch": float(self.epoch)}
        if self._utilisation is not None:
            found["mfu"] = self._utilisation.of(seconds)
        if self.logs and {"parameter", "each parameter"} & self._norms:
            norms = parameter_norms(self._step)
            if "parameter" in self._norms:
                found["param_norm"] = sum(norm * norm for norm in norms.values()) ** 0.5
            if "each parameter" in self._norms:
                found |= {f"param_norm/{name}": norm for name, norm in norms.items()}
        return found

    # -------------------------------------------------------------- evaluations

    def evaluate(self, data: Any = None) -> dict[str, float]:
        """The loss over all batches of `data`, by default of the run's `eval_data`: the mean of the
        losses of batches, each weighted by the number of labels that it counts, or all alike
        where the loss has no such number. Random numbers that the data draws are set back.

        Raises:
            ValueError: there are no batches.
        """
        own = data is None
        data = self._eval_data if own else data
        if data is None:
            raise ValueError("there is no data to evaluate: give it here, or as eval_data")
        total = weight = 0.0
        with randomness.untouched(randomness.generators_of(data)):
            if own and self._eval_begin is not None:
                data.position = self._eval_begin
            source = data(0) if callable(data) and not hasattr(data, "__iter__") else data
            for batch in itertools.islice(source, self._eval_batches if own else None):
                found = call_with(self._step.evaluate, batch)
                one = 1.0 if found.weight is None else found.weight
                total += float(found) * one if one else 0.0
                weight += one
        if not weight:
            raise ValueError("the data has no batches, or none with labels; an iterator can be read "
                             "only once")
        return {"loss": total / weight}

    def _evaluate_now(self) -> None:
        if self._eval_data is None:
            return
        self._evaluated = self._step.step
        self._callbacks.call("on_evaluate", self, self.evaluate())

    # -------------------------------------------------------------- checkpoints

    def save(self) -> str:
        """Writes a checkpoint now, as a callback may ask for. Where ranks are processes, all of
        them call it. Returns its folder.

        Raises:
            ValueError: the run has no folder.
        """
        if self._checkpoints.folder is None:
            raise ValueError("the run has no folder to save in: give folder= to Run")
        return self._save(self._batches.state())

    def _save(self, data: dict[str, Any]) -> str:
        self._step.data_position = data.get("position", data["total"])
        path = self._checkpoints.save({"data": data, "callbacks": self._callbacks.state()})
        self._callbacks.call("on_save", self, path)
        return path

    def _save_after(self, error: BaseException) -> None:
        """Saves the state after the last completed step, after an exception."""
        if self._mark is None or self._step._processes is not None:
            return
        number, before = self._mark
        data = before if self._step.step == number else self._batches.state()
        if self._checkpoints.saved == self._step.step or not self._step.step:
            return
        try:
            self._save(data)
        except Exception as own:
            warn(f"the state of step {self._step.step} is not saved: {own}")


def _norms_of(step: Step, norms: str | Sequence[str]) -> set[str]:
    names = {norms} if isinstance(norms, str) else set(norms)
    if unknown := names - set(NORMS):
        raise ValueError(f"norms has {', '.join(map(repr, sorted(unknown)))}; it may have "
                         f"{', '.join(map(repr, NORMS))}")
    if "gradient" in names and "grad_norm" not in step._live.tensors:
        raise ValueError("the step computes no norm of its gradients: give its optimizer "
                         "max_grad_norm, of which a very large one, as 1e30, clips nothing")
    return names


