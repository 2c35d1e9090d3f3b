# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""`--explain=layers` is a page, however many layers there are, and has the sums of the
report."""

import json
import random
import re
from collections import Counter

import pytest

from cleave.messages import format_bytes
from cleave.models.__main__ import main as write_model
from cleave.reports.notebook import fold_layers
from cleave.testing.tools import run_tool, tool
from proofs import ALL

RECIPES = {
    "one": [],
    "zero1": ["--mesh=dp=4", "--plan=zero1"],
    "zero3": ["--mesh=dp=4", "--plan=zero3"],
    "tensors": ["--mesh=dp=2,tp=2", "--plan=megatron-sp,zero1", "--precision=bf16"],
    "stages": ["--mesh=pp=2,dp=2", "--plan=zero1", "--micro-batches=4"],
    "all": ["--mesh=pp=2,dp=2,tp=2", "--plan=megatron-sp,zero1", "--precision=bf16",
            "--micro-batches=4"],
}
LAYERS = 8, 16, 32
MOST = 60

SENT = re.compile(r"(.*), (\w+): (\d+) (\w+) over (.*?), ([\d.]+ [KMG]?i?B)(.*)")
ITEM = re.compile(r"(?:(\d+) x )?(.*?)(?: at .*)? \((\d+), ([\d.]+ [KMG]?i?B)\)")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Files of one model with so many layers; those of `plain` have no source lines."""
    folder, paths = tmp_path_factory.mktemp("models"), {}
    for layers in LAYERS:
        path = folder / f"m{layers}.mlir"
        assert write_model(["llama", *f"--hidden 64 --heads 4 --layers {layers} --seq 32 --vocab "
                            "128 --batch 8 --no-logits".split(), "-o", str(path)]) == 0
        paths[layers] = path
        plain = folder / f"p{layers}.mlir"
        plain.write_text(re.sub(r"(?m)^#loc.*\n| loc\([^)]*\)", "", path.read_text()))
        paths["plain", layers] = plain
    return paths


def number_of(size):
    """The bytes of `1.5 KiB`, to the digits that it has."""
    value, unit = size.split(" ")
    return float(value) * 1024 ** ("B", "KiB", "MiB", "GiB").index(unit)


def plan(path, options, folder):
    """The lines, and the report that they are of."""
    text = run_tool([tool("cleave-compile"), str(path), *options, "--plan-only",
                     "--explain=layers", "--report", str(folder / "report.json")])
    return text.splitlines(), json.loads((folder / "report.json").read_text())


def form(cause):
    """A cause as it is said of several things."""
    cause = re.sub(r"^position \d+ reads it$", "these read it", cause)
    cause = re.sub(r"^a value of \S+ is ", "values of these are ", cause)
    return re.sub(r'^"[^"]*" is ', "these are ", cause)


def subject(cause):
    found = re.match(r'("[^"]*") is |a value of (\S+) is |(position \d+) reads it', cause)
    return found and (found[1] or found[2] or found[3])


def entries(report):
    """(position, entry) -> what a device of it sends."""
    for name, entry in report["communication"].items():
        for position, own in enumerate(entry.get("positions", [entry])):
            yield position, name, own


def positions_of(prefix, count):
    """Of `all positions` or `positions 0-2, 5`."""
    if prefix.startswith("all") or not prefix.startswith("position"):
        return range(count)
    found = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", prefix):
        found += range(int(first), int(last or first) + 1)
    return found


def collectives(lines, report):
    """(position, entry) -> [(count, kind, axes, bytes, rest of the line)] of a text."""
    found = {}
    positions = len(report["plan"].get("positions", [None]))
    for line in lines:
        match = SENT.match(line if line.startswith(("position", "all positions"))
                           else "all, " + line)
        if match:
            for position in positions_of(match[1], positions):
                found.setdefault((position, match[2]), []).append(
                    (int(match[3]), match[4], match[5], match[6], match[7]))
    return found


@pytest.mark.parametrize("options", RECIPES.values(), ids=RECIPES)
def test_it_is_a_page(options, models, tmp_path):
    """Of as many lines for any number of layers; with lines of the model or without."""
    for kind in ([], ["plain"]):
        counts = [len(plan(models[(*kind, n) if kind else n], options, tmp_path)[0])
                  for n in LAYERS]
        assert max(counts) <= MOST
        assert counts[1] == counts[2] and abs(counts[0] - counts[1]) <= 3


@pytest.mark.parametrize("options", RECIPES.values(), ids=RECIPES)
def test_sums_are_those_of_the_report(options, models, tmp_path):
    """A line has the collectives of a kind, axes and form of cause: all of them, once. The
    counts of its items are what it has."""
    layers = LAYERS[1]
    lines, report = plan(models[layers], options, tmp_path)
    found, several = collectives(lines, report), "positions" in report["plan"]
    for position, name, own in entries(report):
        counts, sizes, subjects = Counter(), Counter(), {}
        for entry in own["collectives"]:
            key = entry["kind"], entry["axes"], form(entry["cause"])
            counts[key] += entry["count"]
            sizes[key] += entry["bytes"]
            about = subjects.setdefault(key, Counter())
            about[fold_layers(subject(entry["cause"]) or "")] += entry["count"]
        texts = found.pop((position, name), [])
        assert Counter((kind, axes, count, size) for count, kind, axes, size, _ in texts) == (
            Counter((*key[:2], counts[key], format_bytes(sizes[key])) for key in counts))
        assert sum(count for count, *_ in texts) == own["count"]
        if own["count"]:
            (line,) = [one for one in lines if re.match(
                (f"(all positions|position {position}), " if several else "") +
                f"{name}: each device sends", one)]
            assert line.endswith(f"each device sends {format_bytes(own['bytes'])} in "
                                 f"{own['count']} collectives")
        for count, kind, axes, _, rest in texts:
            listed = re.search(r", because ([^:]*\bthese (?:are|read) [^:]*): (.*)$", rest)
            if not listed:
                continue
            items = [ITEM.fullmatch(item) for item in listed[2].split("; ")]
            assert sum(int(item[3]) for item in items) == count
            (about,) = [own for key, own in subjects.items() if key == (kind, axes, listed[1])
                        and sum(own.values()) == count]
            seen = Counter()
            for item in items:
                seen[fold_layers(item[2])] += int(item[3])
            assert seen == about
    assert not found


@pytest.mark.parametrize("options", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("kind", ["lines", "plain"])
def test_recomputed_ops_are_those_of_the_report(kind, options, models, tmp_path):
    layers = LAYERS[1]
    lines, report = plan(models[layers if kind == "lines" else (kind, layers)], options, tmp_path)
    positions = report["plan"].get("positions", [report["plan"]])
    recomputed = next(position["entries"]["train"]["recomputed"] for position in positions
                      if "train" in position["entries"])
    expected = Counter()
    for group in recomputed:
        expected[group["op"]] += group["ops"]
    found, found_bytes, most = Counter(), [], 0
    for line in lines:
        if ": recomputes in backward" not in line:
            continue
        most += 1
        for count, op in re.findall(r"(\d+) (\w+\.\w+)", line.split("recomputes in backward")[1]):
            found[op] += int(count)
        found_bytes.append(re.search(r"; (.*) not saved$", line)[1])
        at = re.search(r" in backward(?: at ([^ ,]+(?:, [^ ,]+)*))?: ", line)
        if at:
            names = (at[1] or "").split(", ")
            assert found_bytes[-1] == format_bytes(sum(
                group["bytes"] for group in recomputed if fold_layers(group["name"]) in names))
    total = sum(group["bytes"] for group in recomputed)
    assert sum(map(number_of, found_bytes)) == pytest.approx(total, abs=0.05 * 1024**2 * most)
    assert found == expected and expected and most <= 13


def test_what_differs_between_layers_is_told_apart(models, tmp_path):
    """By size: the parameters of the first layer, which is twice as wide as the others."""
    lines, inside = [], False
    for line in models[LAYERS[0]].read_text().splitlines():
        inside |= "= graph.linear" in line and "%blocks.0.feed_forward.gate.weight" in line
        if inside or line.lstrip().startswith("%blocks.0.feed_forward"):
            line = re.sub(r"(?<=[<x])256(?=x)", "512", line)
        inside &= "%blocks.0.feed_forward.down.weight" not in line
        lines.append(line)
    path = tmp_path / "wide.mlir"
    path.write_text("\n".join(lines))
    found, report = plan(path, RECIPES["zero3"], tmp_path)
    (line,) = [one for one in found if re.match(r"train: \d+ all_gather .*these are", one)]
    items = {(match[1], match[2]): (int(match[3]), match[4])
             for match in map(ITEM.fullmatch, line.split("dp\": ", 1)[1].split("; "))}
    for name in ("gate", "up", "down"):
        sizes = {}
        for entry in report["communication"]["train"]["collectives"]:
            own = re.search(rf'"blocks\.(\d+)\.feed_forward\.{name}\.weight"', entry["cause"])
            if own and entry["kind"] == "all_gather":
                sizes[own[1] == "0"] = sizes.get(own[1] == "0", 0) + entry["bytes"]
        assert items[None, f'"blocks.0.feed_forward.{name}.weight"'] == (
            2, format_bytes(sizes[True]))
        assert items[str(LAYERS[0] - 1), f'"blocks.*.feed_forward.{name}.weight"'] == (
            2 * (LAYERS[0] - 1), format_bytes(sizes[False]))


def test_values_of_parameters_are_named_by_them(models, tmp_path):
    """Not by the lines of a file in which they are arguments, each of which is another one."""
    for name in (LAYERS[0], ("plain", LAYERS[0])):
        lines, report = plan(models[name], RECIPES["tensors"], tmp_path)
        assert any(f"{LAYERS[0]} x blocks.*.attention.query.weight" in line for line in lines)
        assert any(entry["cause"].startswith("a value of blocks.7.attention.query.weight is ")
                   for entry in report["communication"]["train"]["collectives"])


def test_positions_with_one_text_are_one_line(models, tmp_path):
    """Those in the middle of a pipeline of equal stages, and what they send to others."""
    lines, _ = plan(models[LAYERS[0]], ["--mesh=pp=4,dp=2", "--plan=zero3",
                                        "--micro-batches=4"], tmp_path)
    (line,) = [line for line in lines if line.startswith("positions 1-2, train: each device")]
    own = lines[lines.index(line):]
    assert any(re.match(r"positions 1-2, train: \d+ all_gather over", line) for line in own)
    assert any(re.match(r"positions 1-2, train: \d+ send over", line) for line in own)
    (sent,) = [line for line in lines if re.match(r"positions 0, 3, train: .* send ", line)]
    assert re.search(r", because these read it: positions 1-2 .*; positions 0, 2 ", sent)


LLAMA = {"zero2": "--mesh=dp=4 --plan=zero2", "tensors": "--mesh=dp=4,tp=2 --plan=megatron-sp,zero1",
         "parameters": "--mesh=dp=4,tp=2 --plan=megatron,zero3", "context": "--mesh=dp=2,cp=2 --plan=context,zero1",
         "ring": "--mesh=dp=2,cp=4 --plan=ring", "two-ring": "--mesh=cp=4 --plan=two-ring",
         "ulysses": "--mesh=cp=4,tp=2 --plan=ulysses", "summa": "--mesh=row=2,col=2 --plan=summa2d",
         "stages": "--mesh=pp=4,dp=2,tp=2 --plan=megatron-sp,zero3 --micro-batches=4",
         "many stages": "--mesh=pp=8,dp=2,tp=2 --plan=megatron-sp,zero1 --micro-batches=4"}
MATRIX = [(recipe, precision) for recipe in LLAMA for precision in ("f32", "bf16", "fp16", "fp8")]


@pytest.mark.parametrize("recipe,precision", MATRIX if ALL else random.Random(39).sample(MATRIX, 2) + [("many stages", "fp8")])
def test_recipes_and_precisions_are_pages(recipe, precision, models, tmp_path):
    """Of 32 layers, and of as many lines as those of 8; a few causes may be told apart by the first and last layers."""
    counts = [len(plan(models[layers], [*LLAMA[recipe].split(), f"--precision={precision}"], tmp_path)[0])
              for layers in (8, 32)]
    assert max(counts) <= MOST
    assert abs(counts[0] - counts[1]) <= 4


def test_many_positions_are_a_page(models, tmp_path):
    """What differs in numbers alone is one line, with their ranges; each of them is in the lines of all positions."""
    options = ["--mesh=pp=32", "--micro-batches=8"]
    lines, report = plan(models[32], options, tmp_path)
    assert len(lines) <= MOST
    (idle,) = [line for line in lines if line.startswith("idle, predicted: ")]
    shares = [100 * share for share in report["schedule"]["predicted"]["idle"]]
    assert idle == f"idle, predicted: {min(shares):.1f} to {max(shares):.1f} % at 32 positions"
    saved = {}
    for line in lines:
        found = re.match(r"positions? ([\d, -]+): busy .* at most (\d+)(?: to (\d+))? micro-batch(?:es)?, "
                         r"([\d.]+ \w+)(?: to ([\d.]+ \w+))?$", line)
        if found:
            for position in positions_of("position " + found[1], 32):
                saved[position] = [found[2], found[3] or found[2], found[4], found[5] or found[4]]
    assert sorted(saved) == list(range(32))
    for device in report["schedule"]["devices"]:
        least, most, fewest, largest = saved[device["device"]]
        assert int(least) <= device["peak_in_flight"] <= int(most)
        assert number_of(fewest) * 0.999 - 52 <= device["peak_saved_bytes"] <= number_of(largest) * 1.001 + 52
