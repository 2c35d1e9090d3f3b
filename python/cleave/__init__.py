# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Cleave: a compiler for training transformers.

`cleave.compile` turns a PyTorch model into a training step. Submodules are imported on
first use, so that `import cleave` is quick. The files:

    compile, trainable, check, verdicts, counted, shortened
                                  `cleave.compile`; what can be trained; comparison with eager
                                  PyTorch, and what it found before; on the same random numbers,
                                  of a large model on a copy with few layers
    step, program, results, batch, call_inputs
                                  a compiled step, its program for one shape, what it returns,
                                  the tensors that it takes, and those of a call
    buckets, background           programs for a few lengths, compiled in another thread
    state, masters, checkpoint, tensor_file
                                  tensors and states that are loaded; those of 16-bit modules;
                                  folders that are saved; files of tensors
    optim, schedules, loss_scale  optimizers, learning rates, the scale of the loss in fp16
    plan, pipeline_options        shardings that a person asks for; options of a pipeline
    processes, forks              ranks that are processes; threads, locks and forked processes
    reports, memory_picture, visualize, notebook, svg
                                  reports as text and as pictures
    messages, version             wording of messages; the version
    moe, philox                   experts in plain PyTorch; random numbers of the compiler
    export/                       weights in 8 bits, sparse, or in 16 bits, for PyTorch
    trace/, models/, testing/     from PyTorch to the graph dialect; models; helpers of tests
    feed/                         data from a database, and models into one
    Extension, RuntimeExtension, Bindings, PySession, PyProcesses
                                  the native modules: compiler and runtime, the runtime alone
"""

import importlib
import os
import sys
import types

from .version import __version__

#: The submodule of each public name.
_LAZY = {
    "compile": "compile",
    "CompileError": "_cleave",
    "ProcessError": "_cleave",
    "load": "checkpoint",
    "export": "export",
    "read_export": "export",
    "ExportReport": "export",
    "Step": "step",
    "StepError": "results",
    "Evaluation": "results",
    "Loss": "results",
    "LossScale": "loss_scale",
    "P": "plan",
    "AdamW": "optim",
    "AdamW8bit": "optim",
    "SGD": "optim",
    "Lion": "optim",
    "Adagrad": "optim",
    "LAMB": "optim",
    "Adafactor": "optim",
    "Muon": "optim",
    "Schedule": "optim",
    "constant": "optim",
    "cosine": "optim",
    "linear": "optim",
}
#: The modules that are built: compiler and runtime, the runtime alone.
_NATIVE = ("_cleave", "_runtime")
_MODULES = ("feed", "models", "optim", "trace")

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
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'cleave' has no attribute '{name}'")


def __dir__():
    return sorted({*globals(), *__all__})


class _Package(types.ModuleType):
    """The functions `cleave.compile` and `cleave.export` have the names of their modules, and
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
