# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Entries of the cache that are cut, longer, empty, or have one bit flipped."""


def damages(whole, draw, flips):
    """Entries that are not `whole`: lengths at the fields of a header, and `flips` drawn places."""
    lengths = {0, 1, 14, 15, 40, 78, 79, 86, 87, 88, 118, 119, 120, len(whole) // 2, len(whole) - 1}
    yield from (whole[:n] for n in lengths)
    yield whole + b"\0"
    yield whole * 2
    yield bytes(len(whole))
    places = [0, 14, 15, 78, 79, 86, 87, 118, 119, 127, 128, len(whole) - 1]
    places += [draw.randrange(len(whole)) for _ in range(flips)]
    for place in places:
        yield whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1:]
