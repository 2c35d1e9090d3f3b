# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Modules by the names that they had before they were moved into rooms.

They are kept for a version: an import of one gives the module itself, and a DeprecationWarning
that names it."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings

#: The module of each former name.
MODULES = {
    "background": "compiler.background",
    "batch": "compiler.batch",
    "buckets": "compiler.padding",
    "call_inputs": "runtime.call_inputs",
    "check": "compiler.check",
    "checkpoint": "runtime.checkpoint",
    "compile": "compiler.api",
    "counted": "compiler.counted",
    "forks": "runtime.forks",
    "loss_scale": "training.loss_scale",
    "masters": "runtime.masters",
    "memory_picture": "reports.memory_picture",
    "notebook": "reports.notebook",
    "optim": "training.optim",
    "pipeline_options": "compiler.options",
    "plan": "compiler.shardings",
    "processes": "runtime.processes",
    "program": "runtime.program",
    "results": "runtime.results",
    "schedules": "training.schedules",
    "shortened": "compiler.shortened",
    "state": "runtime.state",
    "step": "runtime.step",
    "svg": "reports.svg",
    "tensor_file": "runtime.tensor_file",
    "trainable": "compiler.trainable",
    "verdicts": "compiler.verdicts",
    "visualize": "reports.visualize",
}
#: Names that stay: they are documented.
PUBLIC = ("optim",)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds them after all others have found nothing."""

    def find_spec(self, fullname, path=None, target=None):
        package, _, name = fullname.rpartition(".")
        if package != __package__ or name not in MODULES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__
        found = f"{__package__}.{MODULES[name.rpartition('.')[2]]}"
        if name.rpartition(".")[2] not in PUBLIC:
            warnings.warn(f"{name} is {found} now; the former name goes with the next version",
                          DeprecationWarning, stacklevel=2)
        # An import gives the module that is there when it has run.
        sys.modules[name] = importlib.import_module(found)


def install():
    """Once: the package may be loaded again."""
    if not any(type(finder).__qualname__ == _Finder.__qualname__ and
               type(finder).__module__ == __name__ for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
