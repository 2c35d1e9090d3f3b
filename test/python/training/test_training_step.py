# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The interface of a compiled step beside training."""

import copy
import logging
import pickle
import re

import numpy as np
import pytest
import torch
from torch import nn

import cleave
from cleave.runtime.results import Evaluation, Loss
from cleave.compiler.entrance import grouped
from training_support import (Case, compile_case, family, gpt2, net, same_bits, snapshot,
                              token_batches, token_loss, tokens, torch_run)

#: Two models that a module's tests share; each test leaves them usable.
FAMILY = family("gpt2")
HAND = Case(net, token_batches(), token_loss)


@pytest.fixture(scope="module")
def gpt2_step():
    return compile_case(FAMILY, cleave.AdamW(lr=1e-2, max_grad_norm=1.0), micro_batches=2)


@pytest.fixture(scope="module")
def net_step():
    return compile_case(HAND, cleave.AdamW(lr=1e-2))


def restored(step, module):
    step.load_state_dict(module.state_dict())
    return module.eval()


# ------------------------------------------------------------ evaluation, logits


@pytest.mark.parametrize("mesh, plan, parts", [
    ({"row": 2, "col": 2}, "summa2d", 4), ({"depth": 2, "row": 2, "col": 2}, "summa25d", 2),
    ({"ep": 4}, "expert", 2), ({"fsdp": 2, "dp": 2}, ["dp(fsdp)", "zero1"], 2),
    ({"tp": 2}, "megatron", 8),
])
def test_micro_batches_of_whatever_splits_samples(mesh, plan, parts, caplog):
    """A batch of 8 in 8 micro-batches, or as many as devices leave samples for."""
    name = "mixtral" if plan == "expert" else "llama"
    step = compile_case(family(name, batch=8), cleave.SGD(lr=0.1), mesh=mesh, plan=plan,
                        micro_batches=8)
    assert step.report()["micro_batches"] == parts
    said = f"a batch of 8 has too few samples for 8 micro-batches; computed in {parts}"
    assert (said in caplog.text) == (parts != 8)


def test_loss_says_more(gpt2_step):
    loss = gpt2_step(*FAMILY.batches[0])
    assert isinstance(loss, float) and loss.lr == 1e-2 and loss.grad_norm > 0
    assert loss.tokens_per_s > 0 and loss.step == gpt2_step.training_state()["step"]


def test_evaluation_changes_nothing(gpt2_step):
    module = restored(gpt2_step, gpt2())
    before = snapshot(gpt2_step)
    for batch in FAMILY.batches:
        with torch.no_grad():
            expected = float(FAMILY.loss(module, batch))
        assert gpt2_step.evaluate(*batch) == pytest.approx(expected, rel=1e-5)
    gpt2_step.logits(FAMILY.batches[0][0])
    assert same_bits(snapshot(gpt2_step), before)


@pytest.mark.parametrize("which", ["gpt2", "net"])
def test_logits(which, gpt2_step, net_step):
    step = gpt2_step if which == "gpt2" else net_step
    module = restored(step, gpt2() if which == "gpt2" else net())
    ids, labels = FAMILY.batches[1]
    with torch.no_grad():
        expected = module(ids)
        expected = expected.logits if which == "gpt2" else expected
    for got in (step.logits(ids), step.logits(ids, labels)):
        assert got.shape == expected.shape and got.dtype == torch.float32
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    # What is returned is a copy.
    first = step.logits(ids)
    kept = first.clone()
    step.logits(FAMILY.batches[2][0])
    assert first.equal(kept)


def test_model_without_logits():
    class Only(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (self.weight * x).sum()

    step = cleave.compile(Only(), torch.randn(2, 4), optimizer=cleave.SGD(lr=0.1))
    assert float(step(torch.ones(2, 4))) == 8.0
    with pytest.raises(cleave.StepError, match="no logits"):
        step.logits(torch.ones(2, 4))


# --------------------------------------------------------------------- weights


def test_state_dict_is_the_modules(gpt2_step, net_step):
    for step, module in ((gpt2_step, gpt2()), (net_step, net())):
        step(*FAMILY.batches[0])
        ours, theirs = step.state_dict(), module.state_dict()
        assert list(ours) == list(theirs)
        for name in theirs:
            assert ours[name].shape == theirs[name].shape
            assert ours[name].dtype == theirs[name].dtype
        module.load_state_dict(ours)
        for name, value in module.state_dict().items():
            assert value.equal(ours[name])


def test_state_dict_is_a_copy(net_step):
    state = net_step.state_dict()
    kept = {n: t.clone() for n, t in state.items()}
    net_step(*HAND.batches[0])
    assert all(state[n].equal(kept[n]) for n in kept)
    assert not net_step.state_dict()["down.weight"].equal(kept["down.weight"])


def test_compiling_leaves_the_module_alone():
    module = net()
    kept = {n: t.clone() for n, t in module.state_dict().items()}
    mode = module.training
    step = compile_case(HAND, cleave.AdamW(lr=1e-2), module=module)
    assert all(t.equal(step.state_dict()[n]) for n, t in kept.items())
    step(*HAND.batches[0])
    assert all(t.equal(kept[n]) for n, t in module.state_dict().items())
    assert module.training == mode and all(p.grad is None for p in module.parameters())


def test_state_dict_round_trip(gpt2_step):
    gpt2_step(*FAMILY.batches[0])
    state = gpt2_step.state_dict()
    gpt2_step(*FAMILY.batches[1])
    gpt2_step.load_state_dict(state)
    assert all(t.equal(state[n]) for n, t in gpt2_step.state_dict().items())
    # One name of a tied tensor is enough, either of the two.
    for name in ("lm_head.weight", "transformer.wte.weight"):
        gpt2_step.load_state_dict({n: t for n, t in state.items() if n != name})
        assert all(t.equal(state[n]) for n, t in gpt2_step.state_dict().items())


@pytest.mark.parametrize("change, error, words", [
    (lambda s: s.pop("down.weight"), KeyError, ["missing", "down.weight"]),
    (lambda s: s.update(other=torch.ones(1)), KeyError, ["unknown", "other"]),
    (lambda s: s.update({"down.weight": torch.ones(2, 2)}), ValueError,
     ["down.weight", "[2, 2]", "[32, 64]"]),
    (lambda s: (s.pop("up.bias"), s.pop("out.weight")), KeyError, ["up.bias", "out.weight"]),
], ids=["missing", "unknown", "shape", "several"])
def test_wrong_state_dict(net_step, change, error, words):
    state = net_step.state_dict()
    change(state)
    before = snapshot(net_step)
    with pytest.raises(error) as raised:
        net_step.load_state_dict({n: t * 2 for n, t in state.items()})
    for word in words:
        assert word in str(raised.value)
    assert same_bits(snapshot(net_step), before)


# -------------------------------------------------------------- training state


@pytest.mark.parametrize("optimizer", [
    lambda: cleave.AdamW(lr=cleave.cosine(1e-2, warmup=3, steps=20), max_grad_norm=1.0),
    lambda: cleave.SGD(lr=0.1, momentum=0.9),
], ids=["adamw", "sgd"])
def test_ten_and_ten_are_twenty(optimizer):
    """Also with dropout, whose masks follow from seed and step."""
    case = Case(lambda: gpt2(resid_pdrop=0.1, attn_pdrop=0.1), token_batches(7))
    whole = compile_case(case, optimizer(), seed=3)
    losses = [whole(*case.batches[i % 7]) for i in range(20)]
    first = compile_case(case, optimizer(), seed=3)
    ours = [first(*case.batches[i % 7]) for i in range(10)]
    first.data_position = 10
    state, training = first.state_dict(), first.training_state()
    del first
    second = compile_case(case, optimizer(), seed=99)
    second.load_state_dict(state)
    second.load_training_state(training)
    assert second.data_position == 10
    ours += [second(*case.batches[i % 7]) for i in range(10, 20)]
    assert ours == losses
    assert [loss.lr for loss in ours] == [loss.lr for loss in losses]
    assert same_bits(snapshot(second), snapshot(whole))


def test_training_state_is_checked(net_step):
    state = net_step.training_state()
    assert state["optimizer"]["down.weight"].keys() == {"exp_avg", "exp_avg_sq"}
    del state["optimizer"]["down.weight"]
    before = snapshot(net_step)
    with pytest.raises(KeyError, match="down.weight"):
        net_step.load_training_state(state)
    assert same_bits(snapshot(net_step), before)


# ---------------------------------------------------------------- other shapes


def test_other_shapes_compile_once(caplog):
    case = family("gpt2")
    step = compile_case(case, cleave.AdamW(lr=1e-3), micro_batches=2)
    short = tokens(batch=3, length=8, seed=9)
    longer = tokens(batch=4, length=11, seed=10)
    mixed = [*case.batches[:2], short, longer, case.batches[2], short]
    ours, remarks = [], []
    with caplog.at_level(logging.WARNING, logger="cleave"):
        for batch in mixed:
            caplog.clear()
            ours.append(float(step(*batch)))
            remarks.append([r.message for r in caplog.records if r.name == "cleave"])
    # A batch of 3 is computed in 2 micro-batches, of 2 samples and of 1.
    assert [len(r) for r in remarks] == [0, 0, 1, 1, 0, 0]
    assert "remark" in remarks[2][0] and "[3, 8]" in remarks[2][0]
    assert "remark" in remarks[3][0] and "[4, 11]" in remarks[3][0]
    case.batches = mixed
    single = torch_run(case, 6, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3))
    np.testing.assert_allclose(ours, single.losses, rtol=1e-4)
    assert step.training_state()["step"] == 6
    # Evaluation and logits of another shape too, without labels.
    module = gpt2()
    module.load_state_dict(step.state_dict())
    module.eval()
    with torch.no_grad():
        expected = module(short[0]).logits
        loss = float(case.loss(module, short))
    torch.testing.assert_close(step.logits(short[0]), expected, rtol=1e-4, atol=1e-5)
    assert step.evaluate(*short) == pytest.approx(loss, rel=1e-5)


# ------------------------------------------------------------------- bad inputs


@pytest.mark.parametrize("value", [96, -1, 2 ** 40])
@pytest.mark.parametrize("position", [0, 1])
def test_token_out_of_range(gpt2_step, position, value):
    batch = [t.clone() for t in FAMILY.batches[0]]
    batch[position][2, 3] = value
    before = snapshot(gpt2_step)
    for call in (gpt2_step, gpt2_step.evaluate):
        with pytest.raises(cleave.StepError) as raised:
            call(*batch)
        name = ("input_ids", "labels")[position]
        for word in (name, str(value), "[2, 3]", "from 0 to 95"):
            assert word in str(raised.value)
    assert same_bits(snapshot(gpt2_step), before)
    gpt2_step(*FAMILY.batches[0])


def test_ignored_label_is_no_id(gpt2_step):
    ids, labels = FAMILY.batches[0]
    ids = ids.clone()
    ids[1, 1] = -100
    with pytest.raises(cleave.StepError, match="-100"):
        gpt2_step(ids, labels)


def test_wrong_inputs(gpt2_step):
    ids, labels = FAMILY.batches[0]
    before = snapshot(gpt2_step)
    for call in (lambda: gpt2_step(ids), lambda: gpt2_step(ids, labels, labels),
                 lambda: gpt2_step.evaluate(ids), lambda: gpt2_step(),
                 lambda: gpt2_step.logits(), lambda: gpt2_step(ids, other=labels),
                 lambda: gpt2_step(ids, labels, labels=labels)):
        with pytest.raises(TypeError, match="input_ids, labels"):
            call()
    assert same_bits(snapshot(gpt2_step), before)


def test_wrong_types(gpt2_step):
    """Numbers that are no indices are refused, not rounded."""
    ids, labels = FAMILY.batches[0]
    with pytest.raises(TypeError, match="input_ids.*float32.*int64"):
        gpt2_step(ids.float() + 0.5, labels)
    # Narrower integers hold the same ids.
    assert gpt2_step.evaluate(ids.int(), labels) == gpt2_step.evaluate(ids, labels)


def test_inputs_by_name(gpt2_step):
    ids, labels = FAMILY.batches[0]
    expected = gpt2_step.evaluate(ids, labels)
    assert gpt2_step.evaluate(ids, labels=labels) == expected
    assert gpt2_step.evaluate(labels=labels, input_ids=ids) == expected
    assert gpt2_step.evaluate(ids.numpy(), labels.tolist()) == expected


def test_mask_as_an_input():
    ids, labels = tokens()
    mask = torch.ones_like(ids)
    mask[0, 5:] = mask[2, 3:] = 0
    labels = labels.masked_fill(mask == 0, -100)
    batch = dict(input_ids=ids, attention_mask=mask, labels=labels)
    module = gpt2()
    step = cleave.compile(module, batch, optimizer=cleave.SGD(lr=0.1), micro_batches=2)
    expected = float(module(**batch, use_cache=False).loss)
    assert step.evaluate(**batch) == pytest.approx(expected, rel=1e-5)
    assert float(step(**batch)) == pytest.approx(expected, rel=1e-5)
    assert float(step(*batch.values())) < expected


@pytest.mark.parametrize("settings, words", [
    (dict(target="tpu"), "cpu"), (dict(micro_batches=0), "micro_batches"),
])
def test_wrong_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        compile_case(HAND, cleave.AdamW(), **settings)


class Bare(nn.Module):
    """A parameter around which a test writes its loss."""

    def __init__(self, compute, frozen=False, bare=False):
        super().__init__()
        self.weight = torch.ones(()) if bare else nn.Parameter(
            torch.tensor(2.0), requires_grad=not frozen)
        self.compute = compute

    def forward(self, x):
        return self.compute(self.weight, x)


NO_GRADIENT = (r"the loss has no gradient for any of its parameters \(weight\): it does not read "
               "them, or detaches")


@pytest.mark.parametrize("compute, settings, words", [
    (lambda weight, x: weight, {}, "the loss of '@loss' is its parameter \"weight\" itself"),
    (lambda weight, x: x.mean(), {}, NO_GRADIENT),
    (lambda weight, x: (weight.detach() * x).mean(), {}, NO_GRADIENT),
    (lambda weight, x: (weight * x).mean(), dict(frozen=True),
     r"every parameter is frozen \(requires_grad=False\)"),
    (lambda weight, x: (weight * x).mean(), dict(bare=True), "it has no parameters"),
], ids=["itself", "not read", "detached", "frozen", "no parameters"])
def test_losses_that_train_nothing(compute, settings, words):
    with pytest.raises(cleave.CompileError, match=words) as caught:
        cleave.compile(Bare(compute, **settings), (torch.randn(4),))
    assert ("frozen" in str(caught.value)) == bool(settings.get("frozen"))


# --------------------------------------------------------------------- reports


def test_ir_of_every_phase(gpt2_step):
    words = dict(model="func.func @loss", step="func.func @train", placed="spmd.mesh",
                 local="@train", scheduled="pipe.program", executable="exec.program",
                 llvm="define ", cuda="__global__")
    texts = {phase: gpt2_step.ir(phase) for phase in words}
    for phase, word in words.items():
        assert word in texts[phase], phase
    assert len(set(texts.values())) == len(words)
    assert "graph.gradient" in texts["step"] and "graph.gradient" not in texts["model"]
    # The plain loss is in the model; nothing runs it.
    assert "@loss" not in texts["step"]
    assert set(gpt2_step._live.session.entries()) == {"train", "evaluate", "logits"}
    with pytest.raises(ValueError, match="model, step, placed"):
        gpt2_step.ir("no such phase")


def test_memory(gpt2_step):
    memory = gpt2_step.memory()
    count = sum(p.numel() for p in gpt2().parameters())
    running = gpt2_step._live.session.memory()
    assert memory["arena"] == running["arena"]
    # Fixed places: parameters, and two numbers of AdamW for each.
    assert memory["parameter"] >= 4 * count and memory["state"] >= 8 * count
    assert memory["parameter"] < 4 * count * 1.1 + 64 * 64
    parts = sum(memory[kind] for kind in ("parameter", "state", "input", "scalar"))
    assert parts + memory["train peak"] <= memory["arena"]
    assert all(isinstance(v, int) and v >= 0 for v in memory.values())


def test_report_and_explanations(gpt2_step):
    report = gpt2_step.report()
    assert report["memory"] == gpt2_step.memory()
    assert set(report["plan"]["entries"]) >= {"train", "evaluate", "logits"}
    text = gpt2_step.explain("full")
    assert "micro-batches: 2" in text
    saved = report["schedule"]["stages"][0]["saved_bytes_per_micro_batch"]
    assert f"train: saves {saved / 1024:.1f} KiB for backward of each micro-batch" in text


def test_what_is_recomputed_is_said(gpt2_step):
    """By kind of op and line of the model, in the report and in words."""
    train = gpt2_step.report()["plan"]["entries"]["train"]
    groups = {(g["op"], g["name"]): g for g in train["recomputed"]}
    (gelu,) = (g for (op, _), g in groups.items() if op == "graph.gelu")
    # Two layers; two samples of eight tokens in each micro-batch.
    assert gelu["ops"] == 2 and gelu["bytes"] == 2 * (2 * 8 * 4 * 32) * 4
    assert re.fullmatch(r"\w+\.py:\d+", gelu["name"])
    dropped = sum(g["bytes"] for g in groups.values())
    assert 0 < train["unsaved_bytes"] <= dropped
    assert not gpt2_step.report()["plan"]["entries"]["evaluate"]["recomputed"]
    lines = gpt2_step.explain("full").splitlines()
    again = [line for line in lines if line.startswith("train: recomputes in backward: ")]
    assert len(again) == len(groups)
    assert any(f"2 graph.gelu at {gelu['name']}" in line for line in again)
    assert any("train: recomputation saves " in line for line in lines)


def test_timings(gpt2_step):
    gpt2_step(*FAMILY.batches[0])
    timings = gpt2_step.timings()
    assert timings["total"] > 0 and timings["contraction"] > 0 and timings["attention"] > 0
    parts = sum(v for k, v in timings.items() if k != "total")
    assert parts <= timings["total"] * 1.1


def test_losses_can_be_copied_and_sent():
    """To other processes, for example, with what they carry."""
    loss = Loss(1.5, grad_norm=2.0, auxiliary=[0.5], lr=0.1, tokens_per_s=3.0, step=4)
    for other in (copy.deepcopy(loss), copy.copy(loss), pickle.loads(pickle.dumps(loss))):
        assert other == 1.5 and type(other) is type(loss) and vars(other) == vars(loss)
    found = pickle.loads(pickle.dumps(Evaluation(0.5, weight=2.0)))
    assert found == 0.5 and found.weight == 2.0


class LastToken(nn.Module):
    """Classifies by the last token of each sample that is no padding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(11, 8), nn.Linear(8, 3)

    def forward(self, ids, labels):
        logits = self.head(self.table(ids))
        chosen = logits[torch.arange(len(ids)), (ids != 0).sum(1) - 1]
        return nn.functional.cross_entropy(chosen, labels)


@pytest.mark.parametrize("settings", [{}, dict(micro_batches=3), dict(mesh={"dp": 2}, micro_batches=3)],
                         ids=str)
def test_the_last_token_of_each_sample(settings):
    torch.manual_seed(1)
    ids, labels = torch.randint(1, 11, (6, 5)), torch.randint(3, (6,))
    ids[0, 3:] = ids[4, 1:] = 0
    module = LastToken()
    step = cleave.compile(copy.deepcopy(module), (ids, labels), optimizer=cleave.SGD(lr=1.0),
                          check="off", **grouped(**settings))
    expected = module(ids, labels)
    expected.backward()
    assert float(step(ids, labels)) == pytest.approx(float(expected), rel=1e-6)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(step.state_dict()[name], (parameter - parameter.grad).detach(),
                                   rtol=1e-5, atol=1e-6)
