# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Whether a compiled model is compared with eager PyTorch, and what is said of the result."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Callable, Mapping

import torch

from .. import _cleave
from ..runtime.step import log
from . import verdicts
from .check import Skipped, compare

if TYPE_CHECKING:
    from ..trace import TracedModel
    from .batch import Arrange, Tensors


class _Remarks(logging.Handler):
    """Counts what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def compare_with_eager(model: torch.nn.Module, arrange: Arrange, inputs: Tensors,
                       loss_fn: Callable[..., Any] | None, traced: TracedModel,
                       options: Mapping[str, Any], forced: bool,
                       lender: _cleave.Compiled | None = None) -> None:
    """Raises CompileError if the program differs from eager PyTorch. `options` are those that
    apply to one device. Kernels that `lender` has too are not compiled again."""
    shapes = [(tuple(t.shape), t.dtype) for t in inputs]
    known = None if forced else verdicts.key(model, loss_fn, traced, options, shapes)
    if verdicts.found(known):
        return
    remarks = _Remarks()
    log.addHandler(remarks)
    try:
        difference = compare(model, arrange, inputs, loss_fn, traced, options, forced, lender)
    except Skipped as reason:
        if forced:
            raise _cleave.CompileError(f"the model cannot be compared with eager PyTorch: {reason}; "
                                       'compile it with check="off"') from None
        log.warning("remark: the model was not compared with eager PyTorch: %s; "
                    'check="on" compares it in any case, check="off" omits this remark', reason)
        return
    finally:
        log.removeHandler(remarks)
    # What is said is said in each run.
    if not difference and not remarks.count:
        verdicts.keep(known)
    if difference:
        ties = ("Where elements that the model orders (topk, sort) are equal, PyTorch may choose "
                "others than a step, which takes the first: begin with other values then. Else "
                if "graph.top_k" in traced.named_mlir else "Either ")
        raise _cleave.CompileError(
            f"the compiled model differs from eager PyTorch: {difference}. {ties}its code does "
            "something that tracing does not see, or this is a defect of Cleave: compile parts of "
            'the model to find which; check="off" compiles it as it is')
