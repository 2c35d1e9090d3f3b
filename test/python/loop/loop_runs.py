# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The step, the data and the callbacks of tests of runs."""

import torch
import torch.nn.functional as F
from torch import nn

import cleave

BATCH, LENGTH, VOCAB = 4, 8, 96


class Small(nn.Module):
    """A causal model of one layer, with dropout, for scripts, which then load no library of models."""

    def __init__(self):
        super().__init__()
        self.embedding, self.qkv = nn.Embedding(VOCAB, 32), nn.Linear(32, 96)
        self.out, self.norm, self.after = nn.Linear(32, 32), nn.LayerNorm(32), nn.LayerNorm(32)
        self.up, self.down, self.head = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, VOCAB)
        self.drop = nn.Dropout(0.1)

    def forward(self, ids):
        x = self.embedding(ids)
        q, k, v = (p.unflatten(-1, (4, 8)).transpose(1, 2) for p in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))
        return self.head(x + self.down(F.gelu(self.up(self.after(x)))))


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def small_step(mesh, **settings):
    """A step of `Small`, the same in each process."""
    torch.manual_seed(0)
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    return make_step(mesh, model=(Small(), (ids, ids), loss_of), **settings)


def make_step(mesh=None, model=None, **settings):
    """A step of a layer of a transformer, over dp=2, tp=2 by default, with a norm of gradients."""
    if model is None:
        from training_support import net, token_loss, tokens

        model = net(), tokens(), token_loss
    mesh = {"dp": 2, "tp": 2} if mesh is None else mesh
    plan = {"plan": ["megatron", "zero1"]} if "tp" in mesh else {}
    return cleave.compile(*model, mesh=mesh,
                          optimizer=cleave.AdamW(lr=cleave.cosine(1e-2, warmup=3, steps=40), max_grad_norm=1.0),
                          **{**plan, **settings})


class Rows(torch.utils.data.Dataset):
    """Rows of tokens that have noise of each generator in them, so that a wrong state is seen."""

    def __init__(self, count=22):
        self.rows = torch.randint(3, VOCAB, (count, LENGTH), generator=torch.Generator().manual_seed(5))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        ids = self.rows[at].clone()
        ids[0] = torch.randint(3, VOCAB, ())
        return ids, ids.clone()


def loader(**settings):
    """Shuffled batches of `Rows`, five in an epoch."""
    return torch.utils.data.DataLoader(Rows(), batch_size=BATCH, shuffle=True, drop_last=True, **settings)


class Recorder(cleave.run.Callback):
    """Keeps what a run has called it with."""

    def __init__(self):
        self.events, self.losses = [], []

    def on_start(self, run):
        self.events.append("start")

    def on_step(self, run, values):
        self.events.append(f"step {run.step.step}")
        self.losses.append(values.get("loss"))

    def on_evaluate(self, run, values):
        self.events.append(f"evaluate {run.step.step}")

    def on_save(self, run, folder):
        self.events.append(f"save {run.step.step}")

    def on_end(self, run, error):
        self.events.append(f"end {type(error).__name__}" if error else "end")
