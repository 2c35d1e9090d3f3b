# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What a compiled step says of itself."""

from __future__ import annotations

import json
import os

from . import visualize
from .messages import close_names
from .state import path_of, whole


class Reports:
    """The part of a `Step` that reads what was compiled and counted, and changes
    nothing. `_live` is its program."""

    def ir(self, phase: str = "step") -> str:
        """The IR after a phase: model, step, placed, local, scheduled or
        executable; or the kernels as LLVM IR (llvm) or as CUDA C++ (cuda).

        Raises:
            ValueError: there is no such phase.
        """
        return self._live.compiled.ir(phase)

    def report(self) -> dict:
        """What `cleave-compile --report` writes."""
        return json.loads(self._live.compiled.report())

    def memory(self, position: int | None = None) -> dict[str, int]:
        """Bytes of a device's arena, known before anything ran.

        `arena`: in all; those of the kinds below, and a few between tensors.
        `parameter`, `buffer`, `state`, `input`, `scalar`, `output`: of tensors by
            their role, each with a place of its own. State is the optimizer's,
            scalars are the learning rate, the step and their like, outputs the loss
            and its like.
        `constant`: of tensors that the compiler made: tables, and where a device's
            part lies in a whole.
        `gradient`: of gradients that are kept from step to step, with
            `optimizer_fusion="forward"`.
        `shared`: which activations, gradients and scratch take in turn; as much as
            the entry needs that needs most.
        `train peak`, `evaluate peak`, `logits peak`: of `shared`, what that entry has
            in use at a time, at most.
        `train gradients`: of gradients that are there at a time, at most.
        `train kept`: of what updates overwrite, with `post_validation`.
        `position`: no bytes, but which position of a pipeline this is of; only there.

        Kinds that a program does not have are left out.

        Args:
            position: of the pipeline; that with the largest arena when None.

        Raises:
            ValueError: there is no such position.
        """
        report = self.report()
        count = len(report["plan"].get("positions", [0]))
        if position is not None:
            position = whole("position", position)
            if not 0 <= position < count:
                raise ValueError(
                    f"position is {position}; the step has "
                    + (f"positions 0 to {count - 1}" if count > 1 else "position 0 alone")
                )
        if count == 1:
            return report["memory"]
        plan = report["plan"]
        if position is None:
            position = plan["largest"]
        return {"position": position, **plan["positions"][position]["memory"]}

    def explain(self) -> str:
        """What was decided and why, one line each. In a pipeline, a line that begins
        with a position is of one of its devices, and each position has a line for all
        that it sends; "device" is a position in the lines of the schedule."""
        return "\n".join([*self._live.remarks, *self.report()["decisions"]])

    def visualize(self, name: str, svg: str | os.PathLike | None = None) -> str:
        """A picture of which rank holds which part of a tensor. In a pipeline, the
        ranks of the positions that use it hold it, and others nothing.

        Args:
            name: of a parameter, state or input, as `state_dict` names it.
            svg: also draws it into this file.

        Raises:
            KeyError: there is no such tensor.
        """
        placement = self.report()["placement"]
        tensors = placement.get("tensors", {})
        if name not in tensors:
            close = close_names(name, tensors)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise KeyError(f"the step has no tensor '{name}'{hint}")
        mesh = placement["mesh"]
        if svg is not None:
            with open(svg, "w") as file:
                file.write(visualize.draw(name, tensors[name], mesh))
        return visualize.describe(name, tensors[name], mesh)

    def schedule(self, svg: str | os.PathLike | None = None,
                 trace: str | os.PathLike | None = None,
                 measured: str | os.PathLike | None = None) -> str:
        """When each device does what in a step, by estimates of flops and bytes or by
        the `measured_costs` it was compiled with: the order as text that
        `cleave.compile(schedule=...)` takes again, with a timeline and costs in its
        comments.

        Args:
            svg: also draws the timeline into this file.
            trace: also writes it into this file, for ui.perfetto.dev.
            measured: a trace that `cleave-run --trace` has written: its step of median
                length is shown below what is predicted, in all of these forms.

        Raises:
            cleave.CompileError: `measured` is no such trace.
        """
        shown = "" if measured is None else path_of("measured", measured)
        for path, form in ((svg, "svg"), (trace, "perfetto")):
            if path is not None:
                text = self._live.compiled.schedule(form, shown)
                with open(path, "w") as file:
                    file.write(text)
        return self._live.compiled.schedule("text", shown)

    def communication(self) -> list[dict]:
        """What rank 0 sent in the last step, by kind and axes: `kind`, `axes`,
        `count` (of tensors), `exchanges` (of which small tensors share one),
        `elements`, `bytes` and `ms`. Counted as rings send it; empty on one
        device. In a pipeline rank 0 is of position 0; what others send is in
        `explain` and, as numbers, in `report`."""
        return self._live.session.communication()

    def timings(self) -> dict[str, float]:
        """Milliseconds of the last step of rank 0 by kind of work."""
        return self._live.session.timings()
