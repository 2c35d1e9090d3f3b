# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The explanations of a step in words: of which position, and in which unit."""

import re

import pytest
import torch

import cleave
from cleave.messages import format_bytes, readable_places
from cleave.trace import trace
from cleave.compiler.entrance import grouped
from training_support import compile_case, family, net, token_loss, tokens

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
             for p, name, size, count in re.findall(POSITION, step.explain("full"))}
    sent = {(p, name): (format_bytes(own["bytes"]), own["count"])
            for name, entry in step.report()["communication"].items()
            for p, own in enumerate(entry["positions"]) if own["count"]}
    assert found == sent and {p for p, _ in found} == {0, 1}
    assert len(set(found.values())) == len(found)


def test_collectives_of_every_parameter_are_there(step):
    """At the positions that hold it, and no other, but for the loss, one number that each
    position checks."""
    tensors = step.report()["placement"]["tensors"]
    lines = step.explain("full").splitlines()
    names = [t["name"] for t in step._live.session.tensors() if t["role"] == "parameter"]
    assert len(names) > 20
    for name in names:
        at = {int(line[9]) for line in lines if re.match(r"position \d, train: (?!.*, 4 B,)", line)
              and f'because "{name}" is sharded over "dp"' in line}
        assert sorted(at) == tensors[name]["positions"], name


def test_no_figure_is_of_an_unnamed_position(step):
    text = step.explain("full")
    assert "0.0 MiB" not in text
    for line in text.splitlines():
        assert re.match(r"schedule|idle|position \d: busy|stage|parameters are|gradients are|"
                        r"(all positions|position \d), (train|evaluate|logits): |"
                        r"position \d: the arena|micro-batches: 2$", line), line


def test_memory_of_a_position(step):
    positions = step.report()["plan"]["positions"]
    arenas = [position["arena_bytes"] for position in positions]
    memory = step.memory()
    assert memory["position"] == arenas.index(max(arenas))
    assert memory == step.memory(memory["position"])
    text = step.explain("full")
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
    assert "position" not in step.memory() and "position" not in step.explain("full")
    with pytest.raises(ValueError, match="position is 1; the step has position 0 alone"):
        step.memory(1)


# Places -------------------------------------------------------------------------------


@pytest.mark.parametrize("text, expected", [
    ('loc("m.py":2:3): wrong', "m.py:2:3: wrong"),
    ('loc("-":2:3): wrong', "<traced model>:2:3: wrong"),
    ('loc("f(x) \\".py":1:2): wrong', 'f(x) \\".py:1:2: wrong'),
    ('loc("ids"): it is wrong', "'ids': it is wrong"),
    ('loc("ids"): input "ids" is wrong', 'input "ids" is wrong'),
    ("loc(unknown): wrong\n  note: loc(unknown): so", "wrong\n  note: so"),
    ('loc(fused<"since (a)">["a", "b.py":1:2]): wrong', "b.py:1:2: wrong"),
    ('loc(callsite("f"("x.py":3:4) at "y.py":5:6)): wrong\n  note: loc("z.py":1:1): so',
     "x.py:3:4: wrong\n  note: z.py:1:1: so"),
    ("alloc(3), loc(", "alloc(3), loc("),
])
def test_places_of_diagnostics(text, expected):
    assert readable_places(text) == expected


@pytest.mark.parametrize("options, message", [
    (dict(plan={"up.weight": cleave.P("tp")}, mesh={"tp": 2}),
     r"""^"up.weight" cannot be placed as 'up.weight=\[tp\]': it has 2 dimensions, not 1$"""),
    (dict(plan="megatron", mesh={"tp": 8}), '^dimension 0 of parameter "bias" has 4 heads, not divisible by'),
    (dict(plan={"none": cleave.P("tp")}, mesh={"tp": 2}), "^placement 'none=.tp.' matches no parameter"),
])
def test_errors_name_arguments(options, message):
    """In the place of a line in a text that nobody sees."""
    with pytest.raises(cleave.CompileError, match=message):
        cleave.compile(net(), tokens(), token_loss, **grouped(**options))


def test_errors_of_ops_have_the_line():
    class Double(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x).double() @ torch.ones(4, 4, dtype=torch.float64)

    inputs = torch.ones(2, 4), torch.ones(2, 4)
    with pytest.raises(cleave.CompileError, match=rf"^{__file__}:\d+:\d+: 'graph.* no native form"):
        cleave.compile(Double(), inputs, lambda y, t: ((y - t) ** 2).mean().float())


def test_lines_of_explanations_are_of_files(step):
    places = set(re.findall(r" at (\S+?)[,:;]? ", step.explain("full") + " "))
    assert any(place.startswith("modeling_llama.py:") for place in places)
    assert not [place for place in places if place.startswith("-:")]
    assert '"-:' not in str(step.report()).replace("'", '"')


def test_names_and_lines_are_one_module():
    """The text that has names in the place of lines of its own is otherwise the same."""
    traced = trace(net(), tokens(), token_loss)
    assert ' loc("ids")' in traced.named_mlir and ' loc("ids")' not in traced.mlir
    assert ' loc("qkv.weight")' in traced.named_mlir
    plain = re.sub(r' loc\((unknown|"[\w.]+")\)', "", traced.named_mlir)
    assert plain == traced.mlir


# Axes and modules ---------------------------------------------------------------------


def test_an_axis_that_splits_nothing_is_warned_of():
    """At the line that compiles, and in words."""
    text = 'axis "tp" shards nothing: its 2 positions compute the same values; add a recipe'
    with pytest.warns(UserWarning, match=text) as caught:
        step = cleave.compile(net(), tokens(), token_loss, mesh={"dp": 2, "tp": 2, "x": 1})
    assert [warning.filename for warning in caught] == [__file__]
    assert step.explain("full").count("shards nothing") == 1 and text in step.explain("full")


def test_what_the_compiler_warns_of_is_a_warning():
    text = r"gathers nothing once: .* \(--pipe-gather\)"
    with pytest.warns(UserWarning, match=text) as caught:
        step = cleave.compile(net(), tokens(), token_loss, mesh={"pp": 2},
                              pipeline=cleave.Pipeline(pipe_gather="once"))
    assert [warning.filename for warning in caught] == [__file__]
    assert len(re.findall(text, step.explain("full"))) == 1 and "loc(" not in step.explain("full")


@pytest.mark.parametrize("settings", [
    dict(mesh={"tp": 2}, plan="megatron"), dict(mesh={"pp": 2, "dp": 2}),
    dict(mesh={"pp": 2, "f": 2}, plan="zero1(f)"), dict(mesh={"dp": 1}),
    dict(mesh={"a": 2}, plan={"up.weight": cleave.P("a", None)}),
    dict(mesh={"row": 2, "col": 2}, plan="summa2d"),
])
@pytest.mark.filterwarnings("error")
def test_axes_that_split_something_are_not(settings):
    case = family("llama") if settings.get("plan") in ("megatron", "summa2d") else None
    step = (compile_case(case, cleave.SGD(lr=0.1), **settings) if case else
            cleave.compile(net(), tokens(), token_loss, optimizer=cleave.SGD(lr=0.1),
                           **grouped(**settings)))
    assert "shards nothing" not in step.explain("full")


@pytest.mark.parametrize("settings, expected", [
    (dict(grad_horizon=1, modules=["transformer.h.1."]), [
        "module 1 of 2: trained by the head after module 1",
        "module 2 of 2 from transformer.h.1.: trained by the model's head"]),
    (dict(grad_horizon=2, modules=3), [
        "module 1 of 3: trained by the head after module 2",
        "module 2 of 3: trained by the model's head",
        "module 3 of 3: trained by the model's head"]),
    (dict(grad_horizon=1, mesh={"pp": 2}), [
        "module 1 of 2: trained by the head after module 1",
        "module 2 of 2: trained by the model's head"]),
    ({}, []),
])
def test_heads_of_modules_are_explained(settings, expected):
    step = compile_case(family("gpt2", n_layer=3), cleave.SGD(lr=0.1), **settings)
    lines = step.explain("full").splitlines()
    assert [line for line in lines if line.startswith("module ")] == expected
