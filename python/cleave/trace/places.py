# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Records the line that each operator of a trace is from."""

from __future__ import annotations

import contextlib
import sys
import traceback
from typing import Any

from torch.fx import proxy

from .locations import PASSED
from .patches import patched


class _Innermost:
    """Stands for `CapturedTraceback` in `torch.fx.proxy`: it has the one frame of the stack that
    `location_of` finds, if a method named forward is running. Torch formats all frames for each
    operator, which takes a third of the time of an export."""

    @staticmethod
    def extract() -> type[_Innermost]:
        return _Innermost

    @staticmethod
    def summary() -> traceback.StackSummary:
        frame, found = sys._getframe(1), None
        while frame is not None:
            code = frame.f_code
            if found is None and not code.co_filename.startswith(PASSED):
                found = traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name)
            if found is not None and code.co_name == "forward":
                return traceback.StackSummary.from_list([found])
            frame = frame.f_back
        return traceback.StackSummary()


def _unfiltered(tracer: Any, summary: traceback.StackSummary) -> traceback.StackSummary:
    return summary


def recorded_places() -> contextlib.AbstractContextManager[None]:
    """Context manager in which an operator has the innermost frame outside of torch and Cleave as
    its stack, also where functions are called that are not named forward."""
    return patched((proxy, "CapturedTraceback", _Innermost),
                   (proxy.TracerBase, "_filter_traceback_frames", _unfiltered))
