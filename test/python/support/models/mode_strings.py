# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Code that reads the mode of a module by the name of the attribute as a string: a model whose file
has such code, or imports it, is exported in both modes."""

import mode_helpers


def asks_by_name(m, x):
    return x * 2 if getattr(m, "training") else x  # noqa: B009


def looks_it_up(m, x):
    return x * 2 if m.__dict__["training"] else x


def asks_an_import(m, x):
    return mode_helpers.scale(m) * x
