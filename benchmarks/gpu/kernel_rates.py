# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Joins the times of commands in a trace of cleave-run with what the compiler counts for them."""

import collections
import json
import re

#: Classes of time of a trace whose commands run on the device, and what the table calls them.
CLASSES = {"contraction": "products", "attention": "attention", "row-wise": "kernels",
           "optimizer": "kernels"}


def class_of(kind):
    """That of a kind of commands of the prediction."""
    return next((name for name in ("products", "attention") if kind.startswith(name)), "kernels")


def short(label):
    """The label without the line of a parameter in the module: the updates of all layers are one
    row of a table."""
    return re.sub(r" \S+\.mlir:\d+", "", label)


def last_step(path):
    """Count and microseconds of the last traced step's commands, by label and class."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    began = max((event["ts"] for event in events if event.get("cat") == "step"), default=0)
    found = collections.defaultdict(lambda: [0, 0.0])
    for event in events:
        if event.get("cat") in CLASSES and event["ts"] >= began:
            entry = found[event["name"], CLASSES[event["cat"]]]
            entry[0] += 1
            entry[1] += event["dur"]
    return found


def collectives(path):
    """Count and microseconds of each collective of the last traced step, the longest first."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    began = max((event["ts"] for event in events if event.get("cat") == "step"), default=0)
    found = collections.defaultdict(lambda: [0, 0.0])
    for event in events:
        if event.get("cat") == "communication" and event["ts"] >= began:
            found[short(event["name"])][0] += 1
            found[short(event["name"])][1] += event["dur"]
    return [{"label": label, "class": "collectives", "count": count, "us_each": us / count}
            for label, (count, us) in sorted(found.items(), key=lambda item: -item[1][1])]


def join(measured, commands):
    """The rows of `commands` (label, kind, count, bytes, operations, seconds: sums over a step)
    with the measured `us` of each, and what does not match: microseconds of labels that have no
    row, and predicted seconds of rows that were not seen. Rows of one label and class share what
    was measured as their predicted times are."""
    rows = collections.defaultdict(list)
    for command in commands:
        rows[command["label"], class_of(command["kind"])].append(command)
    joined, rest, seen = [], 0.0, set()
    for key, (_, us) in measured.items():
        # A label whose rows are all of another class.
        others = [other for other in rows if other[0] == key[0]]
        if key not in rows and len(others) == 1 and others[0] not in measured:
            key = others[0]
        if key not in rows:
            rest += us
            continue
        seen.add(key)
        whole = sum(row["seconds"] for row in rows[key])
        for row in rows[key]:
            share = row["seconds"] / whole if whole else 1 / len(rows[key])
            joined.append({**row, "us": us * share})
    unseen = sum(row["seconds"] for key, own in rows.items() if key not in seen for row in own)
    return joined, {"unlisted_us": rest, "unseen_s": unseen}


def by_label(joined, copy_rate, least=64e6):
    """Rates of labels whose commands move more than `least` bytes each, the longest first.
    `copy_rate` is in bytes per second, or None."""
    sums = collections.defaultdict(lambda: [0, 0.0, 0.0])
    for row in joined:
        entry = sums[short(row["label"]), row["kind"]]
        for i, value in enumerate((row["count"], row["us"], row["bytes"])):
            entry[i] += value
    rows = []
    for (label, kind), (count, us, size) in sorted(sums.items(), key=lambda item: -item[1][1]):
        if not count or not us or size / count <= least:
            continue
        rate = size / us * 1e6
        rows.append({"label": label, "kind": kind, "count": count, "us_each": us / count,
                     "mb_each": size / count / 1e6, "gb_per_s": rate / 1e9,
                     "share_of_copy": rate / copy_rate if copy_rate else None})
    return rows


def by_command(joined, name):
    """Of each label of a class (products, attention, kernels): how often it runs in a step, its
    time, and its rates; the longest first."""
    sums = collections.defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    for row in joined:
        if class_of(row["kind"]) == name:
            entry = sums[short(row["label"])]
            for i, value in enumerate((row["count"], row["us"], row["bytes"], row["operations"])):
                entry[i] += value
    return [{"label": label, "class": name, "count": count, "us_each": us / count, "ms": us / 1e3,
             "tflops": operations / us / 1e6 if operations else None,
             "gb_per_s": size / us / 1e3}
            for label, (count, us, size, operations)
            in sorted(sums.items(), key=lambda item: -item[1][1]) if count and us]


def by_kind(joined):
    """Milliseconds measured and predicted of each kind, the longest first."""
    sums = collections.defaultdict(lambda: [0, 0.0, 0.0, 0.0, 0.0])
    for row in joined:
        entry = sums[row["kind"]]
        for i, value in enumerate((row["count"], row["us"], row["seconds"], row["bytes"],
                                   row["operations"])):
            entry[i] += value
    return [{"kind": kind, "commands": count, "ms": us / 1e3, "predicted_ms": 1e3 * seconds,
             "ratio": us / 1e6 / seconds if seconds else None,
             "gb_per_s": size / us / 1e3 if us else None,
             "tflops": operations / us / 1e6 if us else None}
            for kind, (count, us, seconds, size, operations)
            in sorted(sums.items(), key=lambda item: -item[1][1])]


def by_class(measured, kinds):
    """The same for classes, where the prediction has no list of commands but sums of kinds."""
    sums = collections.defaultdict(lambda: [0, 0.0, 0.0])
    for (_, name), (count, us) in measured.items():
        sums[name][0] += count
        sums[name][1] += us
    for kind in kinds:
        sums[class_of(kind["kind"])][2] += kind["seconds"]
    return [{"kind": name, "commands": count, "ms": us / 1e3, "predicted_ms": 1e3 * seconds,
             "ratio": us / 1e6 / seconds if seconds else None}
            for name, (count, us, seconds) in sorted(sums.items(), key=lambda item: -item[1][1])]
