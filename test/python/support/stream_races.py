# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Whether a record of what a GPU was given (lib/Runtime/CUDA/WorkRecord.h) orders all work: each
two commands that use the same bytes, one of them writing, happen one before the other, by the order
of a stream, by events, or because the host waited in between."""

import json


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def overlap(one, other):
    """Whether two lists of [place, offset, bytes] share a byte."""
    return any(a[0] == b[0] and a[1] < b[1] + b[2] and b[1] < a[1] + a[2]
               for a in one for b in other)


def find_races(record):
    """The pairs of work that nothing orders, as indices into the record.

    A clock is a number for each stream: how many of its commands have surely ended."""
    done, host, events, work = {}, {}, {}, []
    #: What happens before the next command of each stream.
    before = {}
    races = []
    for index, line in enumerate(record):
        stream = line["stream"]
        own = before.setdefault(stream, {})
        merge(own, host)
        if line["do"] == "work":
            for other, theirs, number, place in work:
                if theirs == stream or own.get(theirs, 0) >= number:
                    continue
                if (overlap(line["writes"], other["reads"] + other["writes"])
                        or overlap(line["reads"], other["writes"])):
                    races.append((place, index))
            done[stream] = done.get(stream, 0) + 1
            own[stream] = done[stream]
            work.append((line, stream, done[stream], index))
        elif line["do"] == "event":
            events[line["event"]] = dict(own)
        elif line["do"] == "wait":
            # An event that was never recorded waits for nothing.
            merge(own, events.get(line["event"], {}))
        else:
            merge(host, own)
    return races


def merge(clock, other):
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)
