# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Cleave: a compiler for training transformers.

`cleave.compile` turns a PyTorch model into a training step. Submodules are imported on
first use, so that `import cleave` is quick. The files:

    compiler/                     `cleave.compile`: options, checks, programs for a few lengths
    trace/                        from PyTorch to the graph dialect
    runtime/                      a compiled step, its programs, state, checkpoints, processes
    training/                     optimizers, learning rates, the scale of the loss in fp16
    reports/                      reports as text and as pictures
    exporting/, export            weights in 8 bits, sparse, or in 16 bits, for PyTorch; its command
    models/, testing/             models; helpers of tests
    run/                          `cleave.Run`, the loop around a step; callbacks and loggers
    feed/                         data from a database, and models into one
    packing                       documents packed in rows
    messages, version, moved      wording of messages; the version; modules by their former names
    demo, selftest, tools         a demonstration; checks of an installation; the commands
    moe, grouped, philox          experts in plain PyTorch, and their matmuls; random numbers of the
                                  compiler
    recurrence                    linear recurrences, and state-space layers made of them

The native modules, compiler and runtime (`_cleave`) and the runtime alone (`_runtime`), are built
from python/native.
"""

import importlib
import os
import sys
import types
from typing import TYPE_CHECKING

from . import moved
from .version import __version__ as __version__

if TYPE_CHECKING:
    # The public names below, for what checks types.
    from . import _cleave
    from . import feed as feed
    from . import models as models
    from . import run as run
    from . import trace as trace
    from .compiler.api import compile as compile
    from .compiler.groups import Communication as Communication
    from .compiler.groups import Interlock as Interlock
    from .compiler.groups import Launch as Launch
    from .compiler.groups import Lossy as Lossy
    from .compiler.groups import Memory as Memory
    from .compiler.groups import Numerics as Numerics
    from .compiler.groups import Pipeline as Pipeline
    from .compiler.groups import Precision as Precision
    from .compiler.groups import Shapes as Shapes
    from .compiler.groups import Target as Target
    from .compiler.options import OptionError as OptionError
    from .compiler.shardings import P as P
    from .exporting import ExportReport as ExportReport
    from .exporting import export as export
    from .exporting import read_export as read_export
    from .packing import Packs as Packs
    from .packing import pack as pack
    from .run import Run as Run
    from .runtime.checkpoint import load as load
    from .runtime.results import Evaluation as Evaluation
    from .runtime.results import Loss as Loss
    from .runtime.results import StepError as StepError
    from .runtime.step import Step as Step
    from .training import optim as optim
    from .training.loss_scale import LossScale as LossScale
    from .training.optim import LAMB as LAMB
    from .training.optim import SGD as SGD
    from .training.optim import Adafactor as Adafactor
    from .training.optim import Adagrad as Adagrad
    from .training.optim import AdamW as AdamW
    from .training.optim import AdamW8bit as AdamW8bit
    from .training.optim import Lion as Lion
    from .training.optim import Muon as Muon
    from .training.optim import Schedule as Schedule
    from .training.optim import constant as constant
    from .training.optim import cosine as cosine
    from .training.optim import linear as linear

    CompileError = _cleave.CompileError
    ProcessError = _cleave.ProcessError

#: The submodule of each public name.
_LAZY = {
    "compile": "compiler.api",
    "CompileError": "_cleave",
    "OptionError": "compiler.options",
    "ProcessError": "_cleave",
    "load": "runtime.checkpoint",
    "export": "exporting",
    "read_export": "exporting",
    "ExportReport": "exporting",
    "pack": "packing",
    "Packs": "packing",
    "Run": "run",
    "Step": "runtime.step",
    "StepError": "runtime.results",
    "Evaluation": "runtime.results",
    "Loss": "runtime.results",
    "LossScale": "training.loss_scale",
    "P": "compiler.shardings",
    "Communication": "compiler.groups",
    "Interlock": "compiler.groups",
    "Launch": "compiler.groups",
    "Lossy": "compiler.groups",
    "Memory": "compiler.groups",
    "Numerics": "compiler.groups",
    "Pipeline": "compiler.groups",
    "Precision": "compiler.groups",
    "Shapes": "compiler.groups",
    "Target": "compiler.groups",
    "AdamW": "training.optim",
    "AdamW8bit": "training.optim",
    "SGD": "training.optim",
    "Lion": "training.optim",
    "Adagrad": "training.optim",
    "LAMB": "training.optim",
    "Adafactor": "training.optim",
    "Muon": "training.optim",
    "Schedule": "training.optim",
    "constant": "training.optim",
    "cosine": "training.optim",
    "linear": "training.optim",
}
#: The modules that are built: compiler and runtime, the runtime alone.
_NATIVE = ("_cleave", "_runtime")
#: Modules that are public names, and where they are.
_MODULES = {"feed": "feed", "models": "models", "optim": "training.optim", "run": "run",
            "trace": "trace"}

__all__ = sorted([*_LAZY, *_MODULES, "__version__"])


def _native(name):
    """A native module. Raises ImportError, which says how it is built, if it is not there."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        folder = os.path.dirname(os.path.abspath(__file__))
        raise ImportError(
            f"Cleave is not built for Python {sys.version_info[0]}.{sys.version_info[1]}: "
            f"{folder} has no module {name}. `make` in the repository builds it, with "
            "the Python of its .venv; `pip install .` installs it", name=error.name) from None


def __getattr__(name):
    if name in _NATIVE:
        return _native(name)
    if name in _LAZY:
        if _LAZY[name] in _NATIVE:
            return getattr(_native(_LAZY[name]), name)
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name in moved.MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'cleave' has no attribute '{name}'")


def __dir__():
    return sorted({*globals(), *__all__})


class _Package(types.ModuleType):
    """The functions `cleave.compile` and `cleave.export` have the former names of modules, and
    importing a module sets the attribute to the module; the function must be restored."""

    @property
    def compile(self):
        return __getattr__("compile")

    @compile.setter
    def compile(self, module):
        pass

    @property
    def export(self):
        return __getattr__("export")

    @export.setter
    def export(self, module):
        pass


sys.modules[__name__].__class__ = _Package
moved.install()
