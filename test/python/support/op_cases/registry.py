# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The cases by name, and models of their draws."""

from cleave.testing.dual import Draw, Model

#: For each case, what draws a model, and the ops that it tests.
CASES = {}


def case(*ops):
    """Registers a function that draws a model; ``ops`` are those it tests."""

    def register(function):
        assert function.__name__ not in CASES
        CASES[function.__name__] = (function, ops)
        return function

    return register


def draw_model(name, draws, first_seed=0, shards=True):
    """The draws of a case in one model; with `shards`, ops may be on a shard already."""
    function, _ = CASES[name]
    number = sorted(CASES).index(name)
    drawn = []
    for i in range(draws):
        d = Draw([number, first_seed + i], prefix=f"d{i}_")
        d.shards = shards
        function(d)
        drawn.append(d)
    return Model(drawn)
