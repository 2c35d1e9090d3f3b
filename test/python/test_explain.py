# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What a step says of itself in words: of which position, and in which unit."""

import re

import pytest

import cleave
from cleave import visualize
from cleave.messages import format_bytes
from training_support import compile_case, family

POSITION = r"position (\d), (\w+): each device sends (.+) in (\d+) collectives"


@pytest.fixture(scope="module")
def step():
    """A pipeline of two positions, whose parameters lie in parts."""
    return compile_case(family("llama", batch=8), cleave.AdamW(lr=1e-3, max_grad_norm=1.0),
                        mesh={"pp": 2, "dp": 2}, plan="zero3", micro_batches=2,
                        schedule="zb-h1")


@pytest.mark.parametrize("count, text", [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (41344, "40.4 KiB"),
    (1 << 20, "1.0 MiB"), (3.25 * (1 << 30), "3.2 GiB"), (1 << 42, "4096.0 GiB"),
])
def test_bytes(count, text):
    assert format_bytes(count) == text


def test_positions_say_what_they_send(step):
    """The figures of each position, as the report has them."""
    found = {(int(p), name): (size, int(count))
             for p, name, size, count in re.findall(POSITION, step.explain())}
    sent = {(p, name): (format_bytes(own["bytes"]), own["count"])
            for name, entry in step.report()["communication"].items()
            for p, own in enumerate(entry["positions"]) if own["count"]}
    assert found == sent and {p for p, _ in found} == {0, 1}
    assert len(set(found.values())) == len(found)


def test_collectives_of_every_parameter_are_there(step):
    """At the positions that hold it, and no other."""
    held = visualize.holders(step.ir("executable"))
    lines = step.explain().splitlines()
    names = [t["name"] for t in step._live.session.tensors() if t["role"] == "parameter"]
    assert len(names) > 20
    for name in names:
        at = {int(line[9]) for line in lines if re.match(r"position \d, train: ", line)
              and f'since "{name}" lies in parts over "dp"' in line}
        assert at == held[name], name


def test_no_figure_is_of_an_unnamed_position(step):
    text = step.explain()
    assert "0.0 MiB" not in text
    for line in text.splitlines():
        assert re.match(r"schedule|idle|device|stage|parameters are|gradients are|"
                        r"(all positions|position \d), (train|evaluate|logits): |"
                        r"position \d: the arena|micro-batches: 2$", line), line


def test_memory_of_a_position(step):
    positions = step.report()["plan"]["positions"]
    arenas = [position["arena_bytes"] for position in positions]
    memory = step.memory()
    assert memory["position"] == arenas.index(max(arenas))
    assert memory == step.memory(memory["position"])
    text = step.explain()
    for i, facts in enumerate(positions):
        own = step.memory(i)
        assert own["position"] == i and own["arena"] == facts["arena_bytes"]
        assert own["train peak"] == facts["entries"]["train"]["peak_bytes"]
        assert own["parameter"] == facts["bytes"]["parameter"]
        largest = ", the largest" if i == memory["position"] else ""
        assert f"position {i}: the arena of a device has {format_bytes(own['arena'])}{largest}\n" \
            in text
    assert step.memory(0)["parameter"] != step.memory(1)["parameter"]
    # As the compiler says it of the largest.
    assert {k: v for k, v in memory.items() if k != "position"} == step.report()["memory"]
    with pytest.raises(ValueError, match="position is 2; the step has positions 0 to 1"):
        step.memory(2)
    with pytest.raises(ValueError, match="position is -1"):
        step.memory(-1)
    with pytest.raises(TypeError, match="whole number"):
        step.memory("first")


def test_one_device_is_one_position():
    step = compile_case(family("gpt2"), cleave.AdamW(lr=1e-3))
    assert step.memory(0) == step.memory() == step.report()["memory"]
    assert "position" not in step.memory() and "position" not in step.explain()
    with pytest.raises(ValueError, match="position is 1; the step has position 0 alone"):
        step.memory(1)
