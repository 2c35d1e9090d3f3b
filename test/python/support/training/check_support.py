# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The default check, as users have it."""

import pytest

import cleave
import cleave.compiler.check
import cleave.trace
from cleave.trace.registry import CONVERTERS


@pytest.fixture(autouse=True)
def as_for_users(monkeypatch):
    """Without what conftest.py sets for the other tests."""
    monkeypatch.delenv("CLEAVE_CHECK")


def broken(monkeypatch, target, convert):
    """Lets an operator be converted by `convert(c, original, *args)`."""
    original = cleave.trace.registry.converter_for(target)

    def replaced(c, *args, **kwargs):
        return convert(c, lambda: original(c, *args, **kwargs), *args)

    monkeypatch.setitem(CONVERTERS, target, replaced)


def scaled(c, x, factor):
    """x in value, with `factor` times its gradient."""
    b = c.b
    stopped = b.unary("stop_gradient", x)
    moved = b.binary("sub", x, stopped)
    return b.binary("add", stopped, b.binary("mul", moved, b.scalar(factor, x.dtype)))


def on_tanh(factor):
    return lambda c, original, x: scaled(c, original(), factor)
