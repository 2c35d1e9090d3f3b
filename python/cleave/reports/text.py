# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Reports of a compiled step."""

from __future__ import annotations

import contextlib
import json
import math
import os
from typing import Any, ContextManager

from ..messages import close_names, format_bytes
from ..runtime.forks import compiling
from ..runtime.held import Held
from ..runtime.native import Sent
from ..runtime.state import path_of, whole
from . import notebook, visualize
from .memory_picture import memory_svg


class Reports(Held):
    """The part of a `Step` that reads the compiled program and its counters, and
    changes nothing."""

    @property
    def rank(self) -> int:
        """The number of this process among the ranks of a launch, as by `torchrun`; 0 if all
        ranks are threads of this process."""
        return 0 if self._processes is None else self._processes.rank

    def ir(self, phase: str = "step") -> str:
        """The IR after a phase: model, step, placed, local, scheduled or
        executable; or the kernels as LLVM IR (llvm) or as CUDA C++ (cuda).

        Raises:
            ValueError: the phase is unknown.
        """
        with self._making_ir():
            return self._live.compiled.ir(phase)

    def _making_ir(self) -> ContextManager[None]:
        """Around what needs the IR, which a program from the cache has not: it is compiled."""
        cached = self._live.compiled.cached
        return compiling() if cached else contextlib.nullcontext()

    def plan(self) -> str:
        """The mesh and what is sharded over it, as the text of a plan file, which `plan` of
        `cleave.compile` and `cleave-compile --plan` read."""
        return self._live.compiled.plan()

    def report(self) -> dict[str, Any]:
        """The report that `cleave-compile --report` writes."""
        report: dict[str, Any] = json.loads(self._live.compiled.report())
        return report

    def memory(self, position: int | None = None,
               svg: str | os.PathLike[str] | None = None) -> dict[str, int]:
        """Bytes of a rank's arena, known before anything runs.

        `arena`: the total of the kinds below, and alignment between tensors.
        `parameter`, `buffer`, `state`, `input`, `scalar`, `output`: tensors by role,
            each with its own memory. State is the optimizer's; scalars are for
            example the learning rate and the step, outputs for example the loss.
        `constant`: tensors that the compiler made, such as tables and the offsets of
            shards.
        `gradient`: gradients that are kept from step to step, with
            `optimizer_fusion="forward"`.
        `shared`: memory that activations, gradients and scratch use in turn; the
            maximum over the entries.
        `train peak`, `evaluate peak`, `logits peak`: the peak bytes that this entry
            uses of `shared`.
        `train gradients`: the peak bytes of gradients.
        `tier`: with `offload`, the bytes of the file of a rank; they are not part of the
            arena, and the tensors in it count neither as `state` nor as `parameter`.
        `train kept`: copies of values that updates overwrite, with `post_validation`.
        `position`: not bytes, but the pipeline position; only in a pipeline.

        Kinds that a program does not have are left out.

        Args:
            position: the pipeline position; if None, the one with the largest arena.
            svg: also draws the bytes in use over the commands of a step into this file,
                by kind, with the peak marked and what is in use then.

        Raises:
            ValueError: the position does not exist.
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
        if svg is not None:
            _write("svg", svg, memory_svg(report, position if count > 1 else None))
        memory: dict[str, int] = report["memory"]
        if count == 1:
            return memory
        plan = report["plan"]
        if position is None:
            position = plan["largest"]
        return {"position": position, **plan["positions"][position]["memory"]}

    def explain(self, detail: str = "summary") -> str:
        """Decisions and their reasons, in lines of text.

        Args:
            detail: "summary": at most ten lines: the memory of a step, the bytes that
                devices send, and what bounds its time (estimated). "layers": a line
                for each kind of decision, however many layers there are: the sum, and
                what it is of, the largest first; what differs only in the numbers of
                layers is one item (`16 x "h.*.mlp.weight"`). "full": a line for each
                decision. In a pipeline, a line that begins with a position is about
                one of its ranks, and each position has a line for all that it sends.
                "memory": a page about the peak of a device: bytes by kind, the command
                that it is in, and the tensors that are in use then. "cost": operations,
                bytes at rest and bytes sent, each beside its closed form.

        Raises:
            ValueError: unknown detail.
        """
        if detail not in ("summary", "layers", "full", "memory", "cost"):
            raise ValueError(f"unknown detail {detail!r}; use 'summary', 'layers', 'full', "
                             "'memory' or 'cost'")
        lines = self._live.compiled.explain(detail)
        remarks = list(self._live.remarks)
        if detail == "summary" and remarks:
            rest = f" (and {len(remarks) - 1} more)" if remarks[1:] else ""
            return "\n".join([*lines[:-1], f"remark: {remarks[0]}{rest}", lines[-1]])
        return "\n".join([*remarks, *lines])

    def visualize(self, name: str, svg: str | os.PathLike[str] | None = None) -> str:
        """A picture of the shard of a tensor on each rank. In a pipeline, only the
        ranks of the positions that use the tensor hold it.

        Args:
            name: of a parameter, state or input, as `state_dict` names it.
            svg: also draws it into this file.

        Raises:
            KeyError: the tensor is unknown.
        """
        placement = self.report()["placement"]
        tensors = placement.get("tensors", {})
        if name not in tensors:
            close = close_names(name, tensors)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise KeyError(f"the step has no tensor '{name}'{hint}")
        mesh = placement["mesh"]
        if svg is not None:
            _write("svg", svg, visualize.draw(name, tensors[name], mesh))
        return visualize.describe(name, tensors[name], mesh)

    def schedule(self, svg: str | os.PathLike[str] | None = None,
                 trace: str | os.PathLike[str] | None = None,
                 measured: str | os.PathLike[str] | None = None) -> str:
        """The predicted timeline of a step, by estimates of flops and bytes or by the
        `measured_costs` it was compiled with: the order as text that
        `cleave.compile(pipeline=...)` accepts, with a timeline and costs in its
        comments.

        Args:
            svg: also draws the timeline into this file.
            trace: also writes it into this file, for ui.perfetto.dev.
            measured: a trace that `cleave-run --trace` has written: its step of median
                length is shown below what is predicted, in all of these forms.

        Raises:
            cleave.CompileError: `measured` is not such a trace.
        """
        shown = "" if measured is None else path_of("measured", measured)
        with self._making_ir():
            for name, path, form in (("svg", svg, "svg"), ("trace", trace, "perfetto")):
                if path is not None:
                    _write(name, path, self._live.compiled.schedule(form, shown))
            return self._live.compiled.schedule("text", shown)

    def placement(self, svg: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Over which axes of the mesh tensors are sharded, as the report has it: `mesh`,
        and `tensors` by name.

        Args:
            svg: also draws it into this file, with layers folded.
        """
        report = self.report()
        if svg is not None:
            _write("svg", svg, notebook.placement_svg(report))
        placement: dict[str, Any] = report["placement"]
        return placement

    def __repr__(self) -> str:
        """The model, where it is, and what a device needs."""
        tensors = [t for t in self._live.session.tensors() if t["role"] == "parameter"]
        count = sum(math.prod(t["shape"]) for t in tensors)
        report, done = self.report(), self._live.session.step
        mesh = ", ".join(f"{axis['axis']}={axis['size']}"
                         for axis in report["placement"].get("mesh", []))
        return (f"<cleave.Step of {type(self._module).__name__}: {count:,} parameters on "
                f"{mesh or 'one device'}, {format_bytes(report['memory']['arena'])} for a device, "
                f"{done} {'step' if done == 1 else 'steps'} done>")

    def _repr_html_(self) -> str:
        return notebook.page(self)

    def _repr_svg_(self) -> str:
        return memory_svg(self.report())

    def communication(self) -> list[Sent]:
        """The data that rank 0 sent in the last step, by kind and axes: `kind`, `axes`,
        `count` (of tensors), `exchanges` (small tensors share one), `elements`, `bytes`
        and `ms`. Counted as in a ring; empty on one device. In a pipeline rank 0 is at
        position 0; what others send is in `explain` and, as numbers, in `report`."""
        return self._live.session.communication()

    def timings(self) -> dict[str, float]:
        """Milliseconds of the last step of rank 0 by kind of work."""
        return self._live.session.timings()


def _write(name: str, path: str | os.PathLike[str], text: str) -> None:
    """Writes a picture. Raises TypeError for anything but a path: a number would be an open file, as 1
    is standard output, which would be closed."""
    with open(path_of(name, path), "w", encoding="utf-8") as file:
        file.write(text)
