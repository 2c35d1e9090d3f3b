# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Modules that a test writes, and writes again."""

import importlib.util
import sys


def loaded(path, text, monkeypatch):
    """The module of a file with this text, under its own name."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    # A text that changes within a second, and keeps its size, is not told from its bytecode.
    with monkeypatch.context() as here:
        here.setattr(sys, "dont_write_bytecode", True)
        spec.loader.exec_module(module)
    return module
