# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Every update rule with every option that changes what an update makes of weights, drawn: masks,
weights of 8 bits, delays, compressed gradients, groups with rules of their own, types, ranks.

The judge is training in eager PyTorch, in f64: a rule of torch.optim or written from its paper,
weights rounded and masked by hand. Which weights those are is known of the model, not asked.
"""

import random
import re

import pytest
import torch

import cleave
from adamw8bit_reference import Reference, dynamic_map
from cleave.testing.tools import run_tool, tool
from cleave.compiler.entrance import grouped
from native_rules import LAMB, Lion

STEPS = 3
WIDTH = 64
#: The weights of contractions of `Net`.
WEIGHTS = ("a.weight", "b.weight")
#: Large, because a gradient that is 0 up to rounding would make a step of full size.
EPS = 1e-3


class Net(torch.nn.Module):
    """Two linear layers, a norm, and a table that is read by index."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(8, WIDTH)
        self.a = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.b = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, ids, y):
        x = self.table(ids)
        return (self.b(torch.tanh(self.norm(self.a(x)))) - y).square().sum(-1).mean()


def is_matrix(name):
    return name in WEIGHTS


def muon(lr, decay):
    rest = dict(match=lambda n, p: not is_matrix(n),
                optimizer=cleave.AdamW(lr=lr, eps=EPS, weight_decay=decay))
    return cleave.Muon(lr=lr, weight_decay=decay, param_groups=[rest])


class InBlocks:
    """AdamW with state in blocks, of one parameter."""

    def __init__(self, parameter, lr):
        self.parameter, self.rule, self.t = parameter, Reference(lr, eps=EPS), 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        p = self.parameter
        p.copy_(torch.from_numpy(self.rule.step(0, p.numpy(), p.grad.numpy(), self.t)))


#: Each rule of cleave, and the same for one parameter.
RULES = {
    "adamw": (lambda lr, d: cleave.AdamW(lr=lr, eps=EPS, weight_decay=d),
              lambda p, lr, d: torch.optim.AdamW([p], lr=lr, eps=EPS, weight_decay=d)),
    "lamb": (lambda lr, d: cleave.LAMB(lr=lr, eps=EPS, weight_decay=d),
             lambda p, lr, d: LAMB([p], lr=lr, betas=(0.9, 0.999), eps=EPS, weight_decay=d)),
    "adafactor": (lambda lr, d: cleave.Adafactor(lr=lr, eps1=1e-12, weight_decay=d),
                  lambda p, lr, d: torch.optim.Adafactor([p], lr=lr, weight_decay=d,
                                                         eps=(1e-30, 1e-3))),
    "lion": (lambda lr, d: cleave.Lion(lr=lr, weight_decay=d),
             lambda p, lr, d: Lion([p], lr=lr, betas=(0.9, 0.99), weight_decay=d)),
    "sgd": (lambda lr, d: cleave.SGD(lr=lr, momentum=0.9, weight_decay=d),
            lambda p, lr, d: torch.optim.SGD([p], lr=lr, momentum=0.9, weight_decay=d)),
    "adagrad": (lambda lr, d: cleave.Adagrad(lr=lr, eps=EPS, weight_decay=d),
                lambda p, lr, d: torch.optim.Adagrad([p], lr=lr, eps=EPS, weight_decay=d)),
    "muon": (muon, lambda p, lr, d: torch.optim.Muon([p], lr=lr, weight_decay=d)
             if p.ndim == 2 and len(p) == WIDTH
             else torch.optim.AdamW([p], lr=lr, eps=EPS, weight_decay=d)),
    "adamw8bit": (lambda lr, d: cleave.AdamW8bit(lr=lr, eps=EPS),
                  lambda p, lr, d: InBlocks(p, lr) if p.numel() >= 4096
                  else torch.optim.AdamW([p], lr=lr, eps=EPS)),
}


def prune_by_hand(prune, number, before, updated):
    """The mask of update `number`, from 1, of a weight as [outputs, inputs]."""
    pattern, *settings = prune.split(",")
    settings = dict(part.partition("=")[::2] for part in settings)
    steps = int(settings.get("steps", 1))
    if number > steps:
        return before != 0
    if pattern == "2:4":
        groups = updated.abs().reshape(-1, 4)
        kept = torch.zeros_like(groups, dtype=torch.bool)
        return kept.scatter(1, groups.argsort(dim=1, stable=True, descending=True)[:, :2],
                            True).reshape(updated.shape)
    share = float(pattern)
    if "cubic" in settings:
        share *= 1 - (1 - number / steps) ** 3
    kept = torch.ones(updated.numel(), dtype=torch.bool)
    zeros = int(share * updated.numel() + 0.5)
    kept[updated.abs().flatten().argsort(stable=True, descending=True)[len(kept) - zeros:]] = False
    return kept.reshape(updated.shape)


def rounded(weight):
    """The weight of 8 bits that a contraction reads, with the gradient of the weight."""
    scale = weight.detach().abs().amax(1, keepdim=True) / 127
    return weight + ((weight / scale).round() * scale - weight).detach()


class Draw:
    """A rule, a group with a rule of its own, and options."""

    def __init__(self, seed):
        rng = random.Random(seed)
        names = list(RULES)
        self.rule = names[seed % len(names)]
        self.lr = 0.01
        self.decay = rng.choice([0.0, 0.1])
        # A group's rule updates what it matches, a matrix among others or alone.
        self.group = rng.choice([None, None, *names])
        self.matched = "b.weight" if self.group == "muon" else rng.choice(["b.", "a.", "b.weight"])
        self.prune = rng.choice([None, "0.5", "2:4", "0.75,cubic,steps=2", "2:4,steps=2"])
        self.quantize = rng.choice([None, "int8"]) if self.prune else "int8"
        self.delay = rng.choice([0, 0, 1])
        layout = rng.choice([{}, {}, dict(micro_batches=2), dict(mesh={"dp": 2}, plan="zero1"),
                             dict(mesh={"dp": 2}, plan="zero3"),
                             dict(mesh={"dp": 2}, compress="topk,density=1,smallest=1"),
                             dict(mesh={"dp": 2}, compress="int8"),
                             dict(mesh={"tp": 2}, plan={"a.weight": cleave.P("tp", None),
                                                        "b.weight": cleave.P(None, "tp")})])
        precision = rng.choice(["f32", "f32", "bf16"])
        self.options = {**layout, "precision": precision, "prune": self.prune,
                        "quantize": self.quantize}
        if precision != "f32" and layout.get("compress") != "int8":
            self.options["gradient_dtype"] = rng.choice(["f32", precision])
        if self.delay:
            self.options["update_delay"] = self.delay
        #: Whether a step is that of f32 but for rounding.
        self.exact = precision == "f32" and layout.get("compress") != "int8"

    def __str__(self):
        group = f"{self.matched}={self.group}" if self.group else "no group"
        options = " ".join(f"{key}={value}" for key, value in self.options.items() if value)
        return f"{self.rule} decay={self.decay} {group} {options}"

    def matches(self, name):
        return self.group is not None and name.startswith(self.matched)

    def optimizer(self):
        own = RULES[self.rule][0](self.lr, self.decay)
        if self.group:
            rule = RULES[self.group][0](self.lr, self.decay)
            rule.param_groups = ()
            group = dict(match=lambda name, p: self.matches(name), optimizer=rule)
            own = type(own)(**{**vars(own), "param_groups": (group, *own.param_groups)})
        return own

    def reference(self, name, parameter):
        rule = self.group if self.matches(name) else self.rule
        return RULES[rule][1](parameter, self.lr, self.decay)

    def masked(self):
        return WEIGHTS if self.prune else ()


def kept(rule, parameter):
    """What a rule of PyTorch, or of this file, keeps of a parameter, by the names of cleave."""
    if isinstance(rule, InBlocks):
        return {f"moment{i}": torch.from_numpy(codes * scales)
                for i, (codes, scales) in enumerate(rule.rule.moments[0], 1)}
    names = {"m": "exp_avg", "v": "exp_avg_sq"}
    return {names.get(slot, slot): value for slot, value in rule.state[parameter].items()
            if slot not in ("t", "step") and value is not None}


def decoded(slots):
    """The state of one parameter, with codes of 8 bits and their scales as the numbers that they
    stand for."""
    found = dict(slots)
    for i, signed in ((1, True), (2, False)):
        if f"state{i}" in found:
            codes = found.pop(f"state{i}").numpy().reshape(-1, 256).astype(int)
            values = dynamic_map(signed)[(codes + 127 if signed else codes) % 256]
            found[f"moment{i}"] = torch.from_numpy(
                values * found.pop(f"absmax{i}").double().numpy().reshape(-1, 1))
    return found


def build():
    torch.manual_seed(0)
    return Net()


def batches():
    generator = torch.Generator().manual_seed(1)
    return [(torch.randint(0, 8, (8, 4), generator=generator),
             torch.randn(8, 4, WIDTH, generator=generator)) for _ in range(STEPS + 1)]


def eager(draw):
    """Losses of steps, and after them; the losses that weights which are not rounded have;
    parameters, and what rules keep of them, after the steps."""
    model = build().double()
    own = dict(model.named_parameters())
    rules = {name: draw.reference(name, p) for name, p in own.items()}
    pending, losses, plain = [], [], []
    for number, (ids, y) in enumerate(batches(), 1):
        read = {name: rounded(own[name]) for name in WEIGHTS} if draw.quantize else {}
        loss = torch.func.functional_call(model, read, (ids, y.double()))
        losses.append(loss.item())
        plain.append(model(ids, y.double()).item())
        if number > STEPS:
            state = {name: kept(rules[name], p) for name, p in own.items()}
            for i, gradients in enumerate(reversed(pending), 1):
                for name, value in gradients.items():
                    state[name][f"pending_{i}"] = value
            return losses, plain, own, state
        pending.append(dict(zip(own, torch.autograd.grad(loss, list(own.values())))))
        before = {name: p.detach().clone() for name, p in own.items()}
        if len(pending) > draw.delay:
            due = pending.pop(0)
            for name, p in own.items():
                p.grad = due[name]
                rules[name].step()
        with torch.no_grad():
            for name in draw.masked():
                own[name] *= prune_by_hand(draw.prune, number, before[name], own[name])


@pytest.mark.parametrize("draw", [Draw(seed) for seed in range(96)], ids=str)
def test_a_step_is_that_of_eager_training(draw, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)  # Muon's iterations
    losses, plain, expected, slots = eager(draw)
    monkeypatch.undo()
    step = cleave.compile(build(), batches()[0], optimizer=draw.optimizer(), check="off",
                          **grouped(threads=1, **draw.options))
    found = [float(step(*batch)) for batch in batches()[:STEPS]]
    found.append(float(step.evaluate(*batches()[STEPS])))
    tolerance = 2e-4 if draw.exact else 0.02
    assert found == pytest.approx(losses, rel=tolerance)
    if draw.quantize and draw.exact:
        # Closer to the loss of rounded weights than to that of others.
        assert abs(found[0] - losses[0]) < 0.05 * abs(plain[0] - losses[0])
    state, start = step.state_dict(), dict(build().named_parameters())
    for name in draw.masked():
        weight, judge = state[name] != 0, expected[name] != 0
        # An element that is kept may be moved to exactly 0 (by Lion's steps of one size).
        if "2:4" in draw.prune:
            assert (weight.reshape(-1, 4).sum(1) <= 2).all(), name
        else:
            most = weight.numel() * (1 - float(draw.prune.split(",")[0]))
            assert weight.sum() <= most, name
        assert weight.sum() >= judge.sum() - 40, name
        if draw.exact:
            assert (weight != judge).sum() <= 8, name
    for name, parameter in expected.items():
        if draw.exact:
            update = parameter.detach() - start[name].double()
            error = (state[name].double() - start[name].double() - update).norm()
            assert error <= 0.05 * update.norm() + 1e-6, name
    for name, own in step.training_state()["optimizer"].items():
        found = decoded(own)
        residuals = [found.pop(slot) for slot in list(found) if slot.endswith("residual")]
        if draw.exact:
            # All of a gradient is sent.
            assert not any(residual.any() for residual in residuals), name
        assert found.keys() == slots[name].keys(), name
        for slot, value in slots[name].items():
            error = (found[slot].double().flatten() - value.flatten()).norm()
            # Some codes of 8 bits are the next ones.
            assert error <= (5e-3 if draw.exact else 0.2) * value.norm(), (name, slot)


@pytest.mark.parametrize("rule", RULES)
def test_updates_are_computed_in_f32(rule):
    """With a weight decay that 16 bits have exactly, a step has no more ops of 16 bits than SGD's
    step without one."""
    counts = []
    for name, decay in (("sgd", 0.0), (rule, 0.5)):
        step = cleave.compile(build(), batches()[0], optimizer=RULES[name][0](0.01, decay),
                              target=cleave.Target(threads=1), check="off", precision="bf16")
        train = step.ir("step").split("func.func @train", 1)[1].split("func.func", 1)[0]
        counts.append(sum("bf16" in line for line in train.splitlines()))
    assert counts[0] == counts[1] > 4


def test_lamb_adapts_what_decays():
    """Without `always_adapt`, as timm's Lamb and apex' FusedLAMB: a parameter without weight decay
    has the step of Adam."""
    model, start = build().double(), dict(build().named_parameters())
    own = dict(model.named_parameters())
    rules = {name: LAMB([p], lr=0.01, betas=(0.9, 0.999), eps=EPS, weight_decay=0.1) if p.ndim > 1
             else torch.optim.Adam([p], lr=0.01, eps=EPS) for name, p in own.items()}
    step = cleave.compile(build(), batches()[0], target=cleave.Target(threads=1), check="off",
                          optimizer=cleave.LAMB(
        lr=0.01, eps=EPS, weight_decay=0.1, no_decay=lambda n, p: p.ndim < 2, always_adapt=False))
    for ids, y in batches()[:STEPS]:
        step(ids, y)
        model.zero_grad()
        model(ids, y.double()).backward()
        for rule in rules.values():
            rule.step()
    for name, value in step.state_dict().items():
        update = own[name].detach() - start[name].double()
        error = (value.double() - start[name].double() - update).norm()
        assert error <= 1e-3 * update.norm(), name
    with pytest.raises(ValueError, match="always_adapt is 1; it must be True or False"):
        cleave.LAMB(always_adapt=1)
    assert "lamb: steps are relative to the parameter's norm also without weight decay (true)" in (
        " ".join(run_tool([tool("cleave-compile"), "--help"]).split()))


class Table(torch.nn.Module):
    """Without a contraction."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(8, 4)

    def forward(self, ids):
        return self.table(ids).square().mean()


@pytest.mark.parametrize("options, why", [
    (dict(prune="0.5"), "can be pruned; \"table.weight\": 'graph.gather' reads it"),
    (dict(quantize="int8"), "no weight of a contraction; \"table.weight\": 'graph.gather' reads it"),
    (dict(compress="int8"), "nothing is summed over ranks without"),
    (dict(compress="topk,density=0.1", mesh={"dp": 2}), "of fewer than 256 elements: \"table"),
    (dict(compress="int8", mesh={"tp": 2}), "the mesh has no axis \"dp\""),
    (dict(update_delay={"tabel*": 1}), "'tabel*' matches no parameter that '@train' trains"),
    (dict(gradient_dtype="bf16"), "gradient_dtype bf16 needs precision bf16"),
    (dict(offload=["masters"]), "there are no masters"),
    (dict(compress_stages=0.1), "the mesh has no axis \"pp\""),
    (dict(merge_matmuls="on"), "weights in f32 are not copied"),
], ids=str)
def test_an_option_that_applies_to_nothing_is_an_error(options, why):
    with pytest.raises((cleave.CompileError, ValueError), match=re.escape(why)):
        cleave.compile(Table(), (torch.zeros(4, 3, dtype=torch.long),), check="off",
                       **grouped(threads=1, **options))


def test_a_group_without_parameters_is_named():
    groups = [dict(match=lambda n, p: "tabel" in n, lr=1.0), dict(match=lambda n, p: True, lr=0.1),
              dict(match=lambda n, p: "table" in n, lr=0.2)]
    with pytest.warns(UserWarning, match=re.escape("param_groups[0, 2] of the optimizer: no")):
        cleave.compile(Table(), (torch.zeros(4, 3, dtype=torch.long),),
                       target=cleave.Target(threads=1), check="off",
                       optimizer=cleave.SGD(lr=0.1, param_groups=groups))
