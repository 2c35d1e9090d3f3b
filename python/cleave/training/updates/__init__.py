# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Optimizers of a person's own as updates that are compiled.

    recording     the operators of an update, recorded while its Python code runs on tensors
                  that have shapes and no values; its numbers, of each step
    replay        a recorded update as a function of the module
    own_updates   the parts of `cleave.optim.of_torch` that join them: `OwnUpdates`
"""

from .own_updates import OwnUpdates, own_updates

__all__ = ["OwnUpdates", "own_updates"]
