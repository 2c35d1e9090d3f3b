# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A loop around a compiled step: evaluation, checkpoints, resumption, progress and logs.

    Run                 the loop: `cleave.Run(step, data).fit(steps=10_000)`
    Callback            what a run calls as it goes; loggers are callbacks
    JSONL, TensorBoard, WandB, MLflow, Aim
                        loggers, which import their package when they are made

README.md says what each file holds.
"""

from .callbacks import Callback
from .loggers import JSONL, Aim, Logger, MLflow, TensorBoard, WandB
from .loop import Run

__all__ = ["Aim", "Callback", "JSONL", "Logger", "MLflow", "Run", "TensorBoard", "WandB"]
