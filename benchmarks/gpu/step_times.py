# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Times training of GPT-2 by Cleave and by PyTorch, compares memory, and shows the rates of kernels."""

import json
import math
import statistics

import device_watch
import kernel_rates
from session import ratio, spread_tokens

#: Dense 16-bit FLOP/s of H100 and H200, by which utilisation is given.
PEAK = 989e12
GIB = 2**30


def utilisation(case, seconds):
    """Of the peak, by 6 N + 12 L d T operations for a token."""
    weights = 12 * case["layers"] * case["hidden"] ** 2 + case["vocab"] * case["hidden"]
    each = 6 * weights + 12 * case["layers"] * case["hidden"] * case["seq"]
    return each * case["batch"] * case["seq"] / seconds / PEAK


def speed(case, ms):
    return dict(ms=ms, mfu=utilisation(case, ms / 1e3),
                tokens_per_s=case["batch"] * case["seq"] / ms * 1e3)


def bench_cleave(run, case, rates):
    """Times Cleave, says what was found, and returns it; None if it failed."""
    name, traced = case["name"], run.options.trace_steps
    trace = run.folder / f"{name}.trace.json"
    # The first traced steps, and the two that record graphs.
    skipped = max(traced, 2) + 2
    with device_watch.MemoryWatch(run.used) as watch:
        lines, why = run.train(
            f"{name}-cleave", case["artifact"],
            run.options.steps + skipped, "--random-init", "--data", spread_tokens(run, case),
            "--lr=3e-4", *(["--trace", trace, f"--trace-steps={traced}"] if traced else []))
    if lines is None:
        run.fail(model=name, by="cleave", failed=why)
        return None
    # Every 50th step is measured command by command, as the first ones are.
    timed = [line["ms"] for line in lines if line["step"] > skipped and line["step"] % 50 != 1] \
        or [lines[-1]["ms"]]
    planned = case["arena"] + sum(case["outside"].values())
    facts = dict(**speed(case, statistics.median(timed)), steps=len(timed),
                 measured_ms=lines[max(traced, 2) - 1]["ms"],
                 breakdown=lines[max(traced, 2) - 1]["breakdown"], loss=lines[-1]["loss"],
                 arena=case["arena"], outside=case["outside"], planned=planned, used=watch.peak,
                 used_by_planned=ratio(watch.peak, planned),
                 unexplained=None if watch.peak is None else watch.peak - planned,
                 clocks=run.last_clocks())
    prediction = case.get("prediction") or {}
    if prediction.get("seconds"):
        facts["predicted_ms"] = {prediction["device"]: 1e3 * prediction["seconds"]}
    run.say(model=name, by="cleave", residual=case["residual"], **facts)
    if traced:
        facts |= kernels(run, case, trace, rates)
    return facts


def kernels(run, case, trace, rates):
    """Says the rates of the kernels of a trace."""
    copy = rates.get("copy_gb_per_s")
    prediction = case.get("prediction") or {}
    measured = kernel_rates.last_step(trace)
    commands = prediction.get("commands")
    if not commands:
        kinds = kernel_rates.by_class(measured, prediction.get("kinds", []))
        labels = []
    else:
        joined, rest = kernel_rates.join(measured, commands)
        kinds = kernel_rates.by_kind(joined)
        labels = kernel_rates.by_label(joined, copy and copy * 1e9, run.options.least_mb * 1e6)
        run.say(model=case["name"], **rest)
        commands_of(run, case, joined, trace)
    for row in kinds:
        run.say(model=case["name"], **row)
    for row in labels:
        run.say(model=case["name"], **row)
    return dict(kinds=kinds, labels=labels)


def commands_of(run, case, joined, trace):
    """Tables of each product, attention, kernel and collective."""
    for name in ("products", "attention", "kernels"):
        rows = kernel_rates.by_command(joined, name)
        for row in rows:
            run.say(model=case["name"], **row)
        run.table(f"{case['name']}: {name}", ["label", "count", "us", "ms", "TFLOP/s", "GB/s"],
                  [[row["label"], row["count"], row["us_each"], row["ms"], row["tflops"],
                    row["gb_per_s"]] for row in rows[:40]])
    for row in kernel_rates.collectives(trace):
        run.say(model=case["name"], **row)


def bench_torch(run, case, mode):
    parts = run.options.torch_parts or case["parts"]
    name = f"{case['name']}-{mode}"
    sizes = {key: case[key] for key in ("hidden", "layers", "heads", "seq", "vocab", "batch")}
    with device_watch.MemoryWatch(run.used) as watch:
        facts, why = run.torch(name, "bench", json.dumps({**sizes, "parts": parts}),
                               f"--mode={mode}", f"--steps={run.options.steps}",
                               f"--residual={case['residual']}", "--tokens",
                               spread_tokens(run, case))
    by = dict(model=case["name"], by=f"torch {mode}", residual=case["residual"], parts=parts)
    if facts is None:
        run.fail(**by, failed=why)
        return None
    facts = {**facts, **speed(case, facts["ms"]), "used": watch.peak,
             "clocks": run.last_clocks()}
    run.say(**by, **facts)
    return facts


def bench(run, cases, stages=None):
    """With `stages`, Cleave's models come first, and each has its time."""
    rates = {}
    if not cases:
        return
    if run.enough("rates of this machine"):
        found, why = run.torch("rates", "rates", seconds=120)
        rates = found or {}
        run.say(rates=found) if found else run.fail(rates=None, failed=why)
    modes = [mode for mode in run.options.modes.split(",") if mode]
    ours, theirs = {}, {case["beside"]: {} for case in cases}
    # The most important comes first, should time run out: Cleave and the first mode of all models.
    work = []
    for index, mode in enumerate([None, *modes] if not modes else modes):
        for case in cases:
            work += [(None, case)] if index == 0 else []
            work += [(mode, case)] if mode and case["beside"] == case["name"] else []
    if stages:
        work.sort(key=lambda one: one[0] is not None)
    began = None
    for mode, case in work:
        name = case["name"]
        if stages and mode and not began:
            began = stages.begin("torch") or True
        if mode is None and run.enough(f"{name}: cleave"):
            ours[name] = bench_cleave(run, case, rates)
        if mode and run.enough(f"{name}: torch {mode}"):
            theirs[name][mode] = bench_torch(run, case, mode)
    for case in cases:
        compare(run, case["name"], ours.get(case["name"]), theirs[case["beside"]])
    tables(run, cases, rates, ours, theirs)


def compare(run, name, own, others):
    """Says the ratios to each mode that ran, and to the fastest."""
    others = {mode: facts for mode, facts in others.items() if facts}
    if not own or not others:
        return
    best = min(others, key=lambda mode: others[mode]["ms"])
    least = min(others, key=lambda mode: others[mode]["allocated"] or math.inf)
    run.say(model=name, time_ratios={mode: own["ms"] / facts["ms"]
                                     for mode, facts in others.items()},
            best=f"torch {best}", time_ratio=own["ms"] / others[best]["ms"],
            memory_ratios={mode: memory_ratios(own, facts) for mode, facts in others.items()},
            smallest=f"torch {least}",
            memory_ratio=ratio(own["planned"], others[least]["allocated"]))


def memory_ratios(own, facts):
    return {"planned_by_allocated": ratio(own["planned"], facts["allocated"]),
            "planned_by_reserved": ratio(own["planned"], facts["reserved"]),
            "used_by_used": ratio(own["used"], facts["used"])}


def tables(run, cases, rates, ours, theirs):
    def gib(value):
        return None if value is None else value / GIB

    if rates:
        run.table("this machine", ["", "reached"],
                  [["copies, GB/s", rates["copy_gb_per_s"]],
                   ["bf16 product, TFLOP/s", rates["product_tflops"]]])
    times, memory = [], []
    for case in cases:
        own = ours.get(case["name"])
        found = [("cleave", own)] + [(f"torch {mode}", facts)
                                     for mode, facts in theirs[case["beside"]].items()]
        for by, facts in found:
            label = f"{case['name']} {by}"
            if not facts:
                times.append([label, *[None] * 4])
                continue
            times.append([label, facts["ms"], 100 * facts["mfu"], facts["tokens_per_s"],
                          ratio(own["ms"], facts["ms"]) if own else None])
            if by == "cleave":
                memory.append([label, gib(facts["planned"]), None, gib(facts["used"]),
                               gib(facts["unexplained"]), None, None])
                continue
            both = memory_ratios(own, facts) if own else {}
            memory.append([label, gib(facts["allocated"]), gib(facts["reserved"]),
                           gib(facts["used"]), None, both.get("planned_by_allocated"),
                           both.get("used_by_used")])
    run.table("steps; x: Cleave's ms by its ms", ["model", "ms", "MFU %", "tokens/s", "x"], times)
    run.table("memory in GiB; x: Cleave's by PyTorch's, planned by allocated and used by used",
              ["model", "planned/allocated", "reserved", "used", "unexplained", "x", "x used"],
              memory)
    for case in cases:
        own = ours.get(case["name"]) or {}
        if own.get("kinds"):
            run.table(f"{case['name']}: ms of commands, measured one by one, and predicted",
                      ["kind", "commands", "ms", "predicted", "ratio", "GB/s", "TFLOP/s"],
                      [[row["kind"], row["commands"], row["ms"], row["predicted_ms"],
                        row["ratio"], row.get("gb_per_s"), row.get("tflops") or None]
                       for row in own["kinds"]])
        if own.get("labels"):
            least = run.options.least_mb
            run.table(f"{case['name']}: commands that move more than {least:g} MB each",
                      ["label", "count", "us", "MB", "GB/s", "of copies"],
                      [[row["label"], row["count"], row["us_each"], row["mb_each"],
                        row["gb_per_s"], row["share_of_copy"]] for row in own["labels"]])
