# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Ten lines first, layers folded, all of it on request."""

import json
import re

import pytest

import cleave
from cleave.messages import format_bytes
from cleave.models.__main__ import main as write_model
from cleave.reports.notebook import fold_layers
from cleave.testing.tools import run_tool, tool
from cleave.trace import trace
from cleave.trace.weights import save_module
from training_support import compile_case, family, net, token_loss, tokens

CASES = {
    "one": {},
    "tensors": dict(mesh={"dp": 2, "tp": 2}, plan=["megatron-sp", "zero1"]),
    "stages": dict(mesh={"pp": 2, "dp": 2}, plan="zero3", micro_batches=2, schedule="zb-h1"),
}


@pytest.fixture(scope="module", params=CASES)
def step(request):
    return compile_case(family("gpt2", batch=8, n_layer=3), cleave.AdamW(lr=1e-3),
                        **CASES[request.param])


def line(text, beginning):
    (found,) = [one for one in text.splitlines() if one.startswith(beginning)]
    return found


def test_ten_lines(step):
    """Its memory, its collectives and the bound of its time, with the figures of the report."""
    text, report = step.explain(), step.report()
    assert 5 <= len(text.splitlines()) <= 10
    devices = 4 if "mesh" in text or "(" in line(text, "step: ") else 1
    assert line(text, "step: ").startswith(f"step: {devices} device")
    memory = line(text, "memory: ")
    assert memory.startswith(f"memory: {format_bytes(report['plan']['arena_bytes'])}")
    assert re.search(r"; fits in the [\d.]+ GiB of this machine$", memory)
    assert f"optimizer state {format_bytes(report['plan']['bytes']['state'])}" in memory
    saved = sum(s["saved_bytes_per_micro_batch"] for s in report["schedule"]["stages"])
    assert line(text, "saved for backward: ").startswith(
        f"saved for backward: {format_bytes(saved)} for each micro-batch")
    if devices > 1:
        sent = report["communication"]["train"]
        assert line(text, "sent: ").startswith(f"sent: {format_bytes(sent['bytes'])} by a device")
        assert line(text, "most of it: ")
    else:
        assert "sent: " not in text
    time = line(text, "time: ")
    shares = [float(share) for share in re.findall(r" ([\d.]+) %", time)]
    assert abs(sum(shares) - 100) < 0.5 and shares == sorted(shares, reverse=True)
    assert ("pipeline zb-h1: 2 stages on 2 positions, from transformer.h." in text) == (
        report["schedule"]["name"] == "zb-h1")


def test_layers_are_folded(step):
    """Into lines whose counts and bytes are those of all of them."""
    full, layers = step.explain("full").splitlines(), step.explain("layers").splitlines()
    assert full[:] == [*step._live.remarks, *step.report()["decisions"]]
    assert len(layers) <= len(full) and len(layers) <= 60
    form = re.compile(r"(.*)\b(\w+): (\d+) (\w+) over (.*?), ")
    sums = []
    for lines in (full, layers):
        sums.append({})
        for found in filter(None, map(form.match, lines)):
            key = found[2], found[4], found[5]
            positions = 2 if found[1].startswith("all positions") else 1
            sums[-1][key] = sums[-1].get(key, 0) + positions * int(found[3])
    assert sums[0] == sums[1]
    if len(step.report()["placement"]["mesh"]) > 1:
        assert any('3 x "transformer.h.*.' in one for one in layers) or any(
            '2 x "transformer.h.*.' in one for one in layers)
        assert len(layers) < 0.4 * len(full)


@pytest.mark.parametrize("name, folded", [
    ("h.3.mlp.w", "h.*.mlp.w"), ("a.py:3", "a.py:3"), ("1.5", "1.5"), ("w.0", "w.0"),
    ("layers.10.experts.2.w", "layers.*.experts.*.w"), ("tensor<4x8xf32>", "tensor<4x8xf32>"),
])
def test_names_are_folded(name, folded):
    assert fold_layers(name) == folded


def test_unknown_detail(step):
    with pytest.raises(ValueError, match="unknown detail 'more'; use 'summary', 'layers', 'full', "
                                         "'memory' or 'cost'"):
        step.explain("more")


def test_remarks_are_part_of_the_ten_lines():
    with pytest.warns(UserWarning):
        step = cleave.compile(net(), tokens(), token_loss, mesh={"dp": 2, "tp": 2})
    text = step.explain()
    assert len(text.splitlines()) <= 10
    assert line(text, "remark: ").count('axis "tp" shards nothing') == 1


def test_the_tool_says_the_same(tmp_path):
    path = tmp_path / "net.mlir"
    save_module(trace(net(), tokens(), token_loss), str(path))
    compile = [tool("cleave-compile"), str(path), "--mesh=dp=2"]
    summary = run_tool([*compile, "--explain=summary"])
    assert len(summary.splitlines()) <= 10 and line(summary, "memory: ")
    assert line(summary, "step: ").startswith("step: 2 devices (dp=2)")
    assert "micro-batches: 1" in run_tool([*compile, "--explain=full"]).splitlines()


@pytest.mark.parametrize("flags", [
    [], ["--micro-batches=4"], ["--mesh=dp=2", "--plan=zero2", "--micro-batches=2"],
    ["--mesh=dp=4", "--plan=zero3", "--precision=bf16"], ["--max-grad-norm=1", "--optimizer=adafactor"],
    ["--mesh=pp=2", "--micro-batches=4", "--schedule=1f1b"]], ids=" ".join)
def test_gradients_have_one_figure(tmp_path, flags):
    """What gradients take at most is never less than what they take at the peak of the step."""
    assert write_model(["gpt", *"--layers 2 --hidden 32 --heads 4 --seq 16 --vocab 64 "
                        "--batch 8".split(), "-o", str(tmp_path / "m.mlir")]) == 0
    report = json.loads(run_tool([tool("cleave-compile"), str(tmp_path / "m.mlir"), "--plan-only",
                                  *flags, "--report", "-"]))
    for plan in report["plan"].get("positions", [report["plan"]]):
        entry = plan["entries"]["train"]
        at_peak = entry["kinds_at_peak"].get("gradients", 0)
        assert at_peak <= entry["gradient_peak_bytes"]
