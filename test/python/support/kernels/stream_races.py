# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Whether a record of what a GPU was given (lib/Runtime/CUDA/WorkRecord.h) orders all work: each
two commands that use the same bytes, one of them writing, happen one before the other, by the order
of a stream, by events, or because the host waited in between."""

import json

#: In the place of a line that is left out.
NOTHING = {"do": "nothing"}


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def overlap(one, other):
    """Whether two lists of [place, offset, bytes] share a byte."""
    return any(a[0] == b[0] and a[1] < b[1] + b[2] and b[1] < a[1] + a[2]
               for a in one for b in other)


def conflict(one, other):
    return (overlap(one["writes"], other["reads"] + other["writes"])
            or overlap(one["reads"], other["writes"]))


def uses_memory(line):
    return line["do"] in ("work", "host")


def find_conflicts(record):
    """The pairs of work that have to be ordered, as indices into the record."""
    work = [i for i, line in enumerate(record) if uses_memory(line)]
    return [(i, j) for at, j in enumerate(work) for i in work[:at]
            if conflict(record[j], record[i])]


def find_races(record, conflicts=None):
    """The pairs of work that nothing orders, as indices into the record."""
    return list(races(record, find_conflicts(record) if conflicts is None else conflicts))


def races(record, conflicts):
    """Those of the conflicts that nothing orders.

    A clock is a number for each stream: how many of its commands have surely ended."""
    #: Of each stream, how many commands there are, and what happens before the next one.
    done, before = {}, {}
    host, events = {}, {}
    #: Of each command, its stream and number there, and what happens before it.
    number, clocks = {}, {}
    for index, line in enumerate(record):
        if line["do"] == "nothing":
            continue
        if line["do"] == "host":
            number[index], clocks[index] = (None, 0), dict(host)
            continue
        if line["do"] == "reach":
            merge(host, events.get(line["event"], {}))
            continue
        stream = line["stream"]
        own = before.setdefault(stream, {})
        merge(own, host)
        if line["do"] == "work":
            clocks[index] = dict(own)
            done[stream] = own[stream] = done.get(stream, 0) + 1
            number[index] = stream, done[stream]
        elif line["do"] == "event":
            events[line["event"]] = dict(own)
        elif line["do"] == "wait":
            # An event that was never recorded waits for nothing.
            merge(own, events.get(line["event"], {}))
        else:
            merge(host, own)
    for one, other in conflicts:
        # What the host does itself is over before it goes on.
        stream, own = number[one]
        if stream is not None and clocks[other].get(stream, 0) < own:
            yield one, other


def merge(clock, other):
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)


def faults(record):
    """Records with one fault of order: (what, index, record). A wait of a stream or of the host, or
    an event that one of them waits for, is left out, or a command goes to a stream of its own."""
    last, awaited = {}, set()
    for index, line in enumerate(record):
        if line["do"] == "event":
            last[line["event"]] = index
        elif line["do"] in ("wait", "reach"):
            awaited.add(last.get(line["event"]))
    for index, line in enumerate(record):
        if line["do"] in ("wait", "reach"):
            what, by = line["do"], NOTHING
        elif line["do"] == "event" and index in awaited:
            what, by = "event", NOTHING
        elif line["do"] == "work" and not line["stream"].startswith("exchange"):
            what, by = "stream", {**line, "stream": "another"}
        else:
            continue
        yield what, index, record[:index] + [by] + record[index + 1:]
