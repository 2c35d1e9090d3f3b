# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Trainings drawn by a seed, and pipelines of them whose stages begin at drawn parameters.

What a pipeline leaves behind is judged by what one position leaves: it may be as far from that as
rounding is, which is what one position's own error tells.
"""

import dataclasses
import random

import torch
import torch.nn.functional as F
from torch import nn

import cleave
from pipeline_cases import SCHEDULES
from training_support import compile_once

WIDTH, HEADS, LENGTH, VOCAB = 32, 4, 8, 64

#: Why a cut that was drawn is none.
NO_CUT = ("the previous stage would be empty", "its reader is computed with the loss")

NORMS = {"layer": lambda: nn.LayerNorm(WIDTH), "no bias": lambda: nn.LayerNorm(WIDTH, bias=False),
         "rms": lambda: nn.RMSNorm(WIDTH, eps=1e-5)}


class Block(nn.Module):
    """Attention with one projection, or three between which a stage may begin, and a
    feed-forward network, gated or not."""

    def __init__(self, draw):
        super().__init__()
        norm = NORMS[draw.choice(list(NORMS))]
        self.fused, self.gated = draw.random() < 0.5, draw.random() < 0.5
        bias = draw.random() < 0.5
        self.before = norm()
        if self.fused:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        else:
            # Keys have no bias: its gradient is nothing but rounding.
            self.query = nn.Linear(WIDTH, WIDTH, bias=bias)
            self.key = nn.Linear(WIDTH, WIDTH, bias=False)
            self.value = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.out = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.after = norm()
        if self.gated:
            self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=bias)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=bias)

    def forward(self, x):
        y = self.before(x)
        q, k, v = (self.qkv(y).chunk(3, -1) if self.fused
                   else (self.query(y), self.key(y), self.value(y)))
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.after(x)
        y = F.silu(self.gate(y)) * self.up(y) if self.gated else F.gelu(self.up(y))
        return x + self.down(y)


class Model(nn.Module):
    """Blocks between tables, which may be one."""

    def __init__(self, draw, tied):
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(draw) for _ in range(draw.choice([2, 3])))
        self.norm = NORMS[draw.choice(list(NORMS))]()
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids, labels):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def _muon(**settings):
    return cleave.Muon(lr=2e-2, **settings, param_groups=[
        dict(match=lambda n, p: p.ndim != 2, optimizer=cleave.AdamW(lr=1e-3))])


RULES = {
    "sgd": lambda **s: cleave.SGD(lr=0.1, **s),
    "momentum": lambda **s: cleave.SGD(lr=0.05, momentum=0.9, weight_decay=0.01, **s),
    "adamw": lambda **s: cleave.AdamW(lr=1e-3, eps=1e-5, **s),
    "adamw8bit": lambda **s: cleave.AdamW8bit(lr=1e-3, eps=1e-5, **s),
    "lion": lambda **s: cleave.Lion(lr=1e-3, **s),
    "adagrad": lambda **s: cleave.Adagrad(lr=1e-2, **s),
    "lamb": lambda **s: cleave.LAMB(lr=1e-2, **s),
    "adafactor": lambda **s: cleave.Adafactor(lr=1e-2, **s),
    "muon": _muon,
}
PRECISIONS = ("f32", "f32", "bf16", "fp16", "fp8")
COMPRESSORS = ("powersgd,rank=2,min_rate=1.1", "topk,density=0.05", "threshold,keep=0.05",
               "int8", "1bit")


@dataclasses.dataclass(frozen=True)
class Training:
    """Everything of a step but its pipeline."""

    seed: int
    rule: str
    clip: float | None
    precision: str
    residual: str
    compress: str | None
    delay: int
    dp: int
    micro_batches: int
    #: Whether the tables are one.
    tied: bool

    @property
    def name(self):
        """Of the case in a report."""
        facts = [self.rule, self.precision, self.clip and "clip", self.compress,
                 self.delay and f"delay {self.delay}", f"dp={self.dp}", f"m={self.micro_batches}"]
        return f"{self.seed}: " + " ".join(filter(None, facts))

    def model(self):
        torch.manual_seed(self.seed)
        return Model(random.Random(self.seed), self.tied)

    def batch(self, index):
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        size = 2 * self.micro_batches if self.dp == 2 else self.micro_batches
        ids, labels = torch.randint(VOCAB, (2, size, LENGTH), generator=generator)
        # Samples count differently in the mean.
        labels[0, LENGTH // 2:] = -100
        return ids, labels

    def compile(self, **changed):
        settings = dict(precision=self.precision, micro_batches=self.micro_batches,
                        optimizer=RULES[self.rule](max_grad_norm=self.clip),
                        update_delay=self.delay, compress=self.compress, check="off")
        settings |= changed
        if settings["precision"] != "f32":
            settings["residual"] = self.residual
        if settings["precision"] == "fp8":
            settings["fp8_history"] = 2
        return compile_once(("cuts", self.seed), self.model(), self.batch(0), **settings)

    def one(self, **changed):
        """At one position, of the same replicas."""
        return self.compile(**{"mesh": {"dp": self.dp} if self.dp > 1 else None, **changed})

    def exact(self):
        """On one rank, as compressed gradients allow, in f32. There only the order of sums can
        differ."""
        changed = ({"micro_batches": self.micro_batches // 2} if self.precision == "f32"
                   else {"precision": "f32"})
        return self.one(**changed, **({} if self.compress else {"mesh": None}))


def drawn_training(seed):
    draw = random.Random(f"training {seed}")
    precision = draw.choice(PRECISIONS)
    dp = draw.choice([1, 2])
    return Training(
        seed, draw.choice(list(RULES)), draw.choice([None, 0.5]), precision,
        draw.choice(["16bit", "f32"]),
        draw.choice(COMPRESSORS) if dp == 2 and draw.random() < 0.6 else None,
        draw.choice([0, 0, 1, 2]), dp, draw.choice([4, 6, 8]), draw.random() < 0.4)


def legal(schedule, positions, micro_batches):
    """As `pipeline_cases.legal` says."""
    if schedule == "interleaved":
        return micro_batches % positions == 0
    return schedule != "dualpipe-v" or micro_batches >= 2 * positions


def drawn_stages(training, stages, draw):
    """The parameters at which the later ones of so many stages begin."""
    names = [name for name, _ in training.model().named_parameters()][1:]
    return [names[i] for i in sorted(draw.sample(range(len(names)), stages - 1))]


def is_no_cut(error):
    """Whether the draw is not a cut."""
    return any(reason in str(error) for reason in NO_CUT)


def drawn_pipeline(training, draw):
    """Options of `cleave.compile`."""
    positions = draw.choice([2, 3, 4])
    schedule = draw.choice([name for name in SCHEDULES if name != "auto"
                            and legal(name, positions, training.micro_batches)])
    options = {"mesh": {"pp": positions}, "schedule": schedule}
    if SCHEDULES[schedule] > 1:
        options["virtual_stages"] = SCHEDULES[schedule]
    if training.dp > 1:
        options["mesh"]["dp"] = training.dp
        options["plan"] = draw.choice([None, "zero1"] if training.compress
                                      else [None, "zero1", "zero2", "zero3"])
    if draw.random() < 0.85:
        options["stages"] = drawn_stages(training, positions * SCHEDULES[schedule], draw)
    options["recompute"] = draw.choice([None, None, "full", "selective"])
    options["pipe_slices"] = draw.choice(["auto", "on", "off"])
    return {name: value for name, value in options.items() if value is not None}


def compile_drawn(training, draw):
    """A pipeline whose cuts are some, and its options."""
    while True:
        options = drawn_pipeline(training, draw)
        try:
            return training.compile(**options), options
        except cleave.CompileError as error:
            if not is_no_cut(error):
                raise


def train(training, step):
    """The state after steps: changes of parameters, all of the optimizer's state, and losses."""
    start = {name: value.clone() for name, value in step.state_dict(masters=True).items()}
    # Three updates.
    losses = [float(step(*training.batch(index))) for index in range(3 + training.delay)]
    assert step.skipped == 0
    return losses, left_by(step, start)


def left_by(step, start):
    left = {("change", name): value.double() - start[name].double()
            for name, value in step.state_dict(masters=True).items()}
    for name, slots in step.training_state()["optimizer"].items():
        # Those of no parameter have its name in their own.
        left.update({(slot.rpartition(".")[2], f"{name}.{slot}"): value.double()
                     for slot, value in slots.items()})
    return left


@dataclasses.dataclass
class Judge:
    """What one position leaves, and what an exact run does."""

    one: tuple
    exact: tuple
    #: The one position.
    step: cleave.Step

    #: What may differ beside one position's own error, as a share of a tensor, and of the largest
    #: of its kind.
    SHARE, FLOOR = 2e-4, 1e-6

    @classmethod
    def of(cls, training):
        step = training.one()
        return cls(train(training, step), train(training, training.exact()), step)

    def problems(self, found):
        """What is further from one position's than that is from an exact run: the names, and by
        how much of what is allowed."""
        losses, left = found
        ratios = {f"loss {i}": abs(loss - one) / (abs(one - exact) + 1e-5 * abs(one))
                  for i, (loss, one, exact) in enumerate(zip(losses, self.one[0], self.exact[0]))}
        if left.keys() != self.one[1].keys():
            return dict.fromkeys(left.keys() ^ self.one[1].keys(), float("inf"))
        largest = {}
        for (kind, _), value in self.one[1].items():
            largest[kind] = max(largest.get(kind, 0), float(value.norm()))
        for key, one in self.one[1].items():
            # A run in f32 has no state of what is computed in 8 bits.
            own = (one - self.exact[1].get(key, one)).norm()
            allowed = own + self.SHARE * one.norm() + self.FLOOR * largest[key[0]] + 1e-12
            ratios[key[1]] = float((left[key] - one).norm() / allowed)
        return {name: ratio for name, ratio in ratios.items() if not ratio <= 1}

    def notices(self, found, key):
        """Whether a parameter would be seen that has its initial value."""
        losses, left = found
        return bool(self.problems((losses, left | {key: torch.zeros_like(left[key])})))


def reads_back(step, other, folder):
    """What differs where `other` reads the checkpoint of a step, by name."""
    step.save(folder)
    other.load(folder)
    zero = {name: torch.zeros_like(value) for name, value in step.state_dict(masters=True).items()}
    first, second = left_by(step, zero), left_by(other, zero)
    return [name for name in first.keys() | second.keys()
            if name not in first or name not in second or not first[name].equal(second[name])]
