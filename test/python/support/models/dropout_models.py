# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models with dropout."""

from training_support import Case, gpt2, token_batches

RATE = 0.1


def dropping(**changes):
    rates = dict(resid_pdrop=RATE, embd_pdrop=RATE, attn_pdrop=RATE)
    return Case(lambda: gpt2(**{**rates, **changes}), token_batches(ignored=3),
                key=("dropping", repr(changes)))
