# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The counter-based generator of Cleave's random numbers, in NumPy.

Element ``i`` (row-major, in the global tensor) of the random op ``id`` at
``step`` takes one 32-bit word of Philox4x32-10 (Salmon, Moraes, Dror, Shaw:
"Parallel random numbers: as easy as 1, 2, 3", SC 2011)::

    c       = (i // 64) * 16 + i % 16
    counter = (low 32 bits of c, high 32 bits of c, id, low 32 bits of step)
    key     = (low 32 bits of seed, high 32 bits of seed)
    draw    = word (i // 16) % 4 of philox(counter, key)

The element is kept iff ``draw >= floor(probability * 2**32)``. With these masks a
PyTorch model drops exactly the elements that Cleave drops:

>>> int(dropout_mask((4, 100), 0.25, seed=1, step=1, id=0).sum())
305
"""

import math

import numpy as np

_MASK = np.uint64(0xFFFFFFFF)


def philox4x32(counter, key):
    """Four words from a counter of four and a key of two.

    Each is an integer below 2**32 or an array of them; arrays broadcast.
    Returns four arrays of uint64 that hold 32-bit words.
    """
    c = [np.asarray(x, dtype=np.uint64) for x in counter]
    k = [np.asarray(x, dtype=np.uint64) for x in key]
    for _ in range(10):
        even = np.uint64(0xD2511F53) * c[0]
        odd = np.uint64(0xCD9E8D57) * c[2]
        c = [
            (odd >> np.uint64(32)) ^ c[1] ^ k[0],
            odd & _MASK,
            (even >> np.uint64(32)) ^ c[3] ^ k[1],
            even & _MASK,
        ]
        k = [
            (k[0] + np.uint64(0x9E3779B9)) & _MASK,
            (k[1] + np.uint64(0xBB67AE85)) & _MASK,
        ]
    return c


def _low(x):
    return np.uint64(int(x) & 0xFFFFFFFF)


def _high(x):
    return np.uint64((int(x) >> 32) & 0xFFFFFFFF)


def random_draws(indices, *, seed, step, id):
    """The 32-bit draws, as uint64, of the elements at ``indices``."""
    i = np.asarray(indices, dtype=np.uint64)
    sixteen, sixty_four = np.uint64(16), np.uint64(64)
    c = i // sixty_four * sixteen + i % sixteen
    words = philox4x32(
        (c & _MASK, c >> np.uint64(32), _low(id), _low(step)), (_low(seed), _high(seed))
    )
    return np.choose((i // sixteen % np.uint64(4)).astype(np.int64), words)


def _global_index(shape, origin, global_shape):
    """The index of each element in the global tensor of which the tensor is a slice."""
    global_shape = tuple(shape if global_shape is None else global_shape)
    origin = (0,) * len(shape) if origin is None else origin
    index = np.zeros(shape, dtype=np.uint64)
    stride = 1
    for dim in reversed(range(len(shape))):
        along = (np.arange(shape[dim]) + origin[dim]) * stride
        index += along.astype(np.uint64).reshape((-1,) + (1,) * (len(shape) - 1 - dim))
        stride *= global_shape[dim]
    return index


def dropout_mask(shape, probability, *, seed, step, id, origin=None, global_shape=None):
    """Which elements of a tensor dropout keeps, as booleans.

    ``origin`` and ``global_shape`` define the tensor as a slice of a global one.
    """
    index = _global_index(shape, origin, global_shape)
    threshold = np.uint64(math.floor(probability * 2.0**32))
    return random_draws(index, seed=seed, step=step, id=id) >= threshold


def uniform(shape, *, seed, step, id, origin=None, global_shape=None):
    """Random numbers in [0, 1), f64: the upper 24 bits of each draw.

    ``origin`` and ``global_shape`` define the tensor as a slice of a global one.
    """
    index = _global_index(shape, origin, global_shape)
    draws = random_draws(index, seed=seed, step=step, id=id)
    return (draws >> np.uint64(8)).astype(np.float64) / 2**24


def attention_dropout_mask(
    shape, probability, *, seed, step, id, origin=None, global_shape=None
):
    """The probabilities ``[batch, heads, queries, keys]`` that attention keeps, as
    booleans.

    Rows of keys are numbered as if padded to a multiple of 64. ``origin`` and
    ``global_shape`` define the probabilities as a slice of global ones.
    """
    whole = tuple(shape if global_shape is None else global_shape)
    padded = whole[:3] + (-(-whole[3] // 64) * 64,)
    return dropout_mask(
        shape, probability, seed=seed, step=step, id=id, origin=origin, global_shape=padded
    )
