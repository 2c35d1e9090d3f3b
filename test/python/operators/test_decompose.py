# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Programs that are made functional: the graph is the one that torch makes when it runs all operators
again, twice."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cleave.trace import aliases, decompose, settled


class Model(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.a, self.compute = nn.Linear(4, 4), compute
        self.register_buffer("count", torch.zeros(4))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        return self.compute(self, torch.sin(self.a(x)) + self.scale)


def rows(m, x):
    y = x.clone()
    for i in range(1, 3):
        y[i] = y[i] * 2 + y[i - 1].cos()
    return torch.exp(y.sum(0)) * x.sum(0)


def views(m, x):
    """A view that was made before a write is read after it, beside one of what is not written."""
    y, z = torch.zeros(4, 4), (x * 2).view(2, 8)
    before = y[1:].t()
    y[2, :] = x[0]
    y.mul_(2).add_(before.sum())
    return before.exp() + z[0, 0], z.reshape(4, 4) + y.reshape(-1)[3]


def view_of_scale(m, x):
    y = torch.empty_like(x)
    y.copy_(m.scale.view(1, 4).expand(4, 4))
    return (y + x).sum(), m.scale.view(2, 2).t() * 2


def under_no_grad(m, x):
    with torch.no_grad():
        table = torch.arange(4).float().unsqueeze(0) / 4
        table[0, 1] = 3
    return (x * table).softmax(-1), table.cos()


def several_results(m, x):
    values, order = x.topk(2)
    low, high = x.split(2, -1)
    y = torch.zeros(4, 2)
    y[:] = values
    return y + low * high, order


def writes_a_buffer(m, x):
    m.count.add_(x.sum(0).detach())
    return (x * m.count).sum()


def writes_statistics(m, x):
    return F.batch_norm(x, m.mean, m.scale, training=True).sum()


def writes_statistics_of_samples(m, x):
    x = F.instance_norm(x[None], m.mean, m.scale, use_input_stats=True, momentum=0.5)
    return x.cumsum(-1).square().sum()


def returns_views(m, x):
    y = x * 2
    y[0] = 1
    return y, y[1], x.t()


def returns_inputs(m, x):
    y = torch.zeros(4)
    y[1:] = x[0, 1:]
    return y.sum(), m.scale, m.a.weight.view(-1)


def returns_numbers(m, x):
    y = x.clone()
    y[0] = 1
    return y.sum(), 3


def writes_by_out(m, x):
    y = torch.empty(4, 4)
    torch.sin(x.detach(), out=y)
    return y.sum() + y[0].prod()


def decomposes(m, x):
    y = x.clone()
    y[1] = 0
    return (y @ torch.eye(4)).sum() + F.gelu(x, approximate="tanh").sum() + torch.addr(x[0], x[1], x[2])


def indexes(m, x):
    y = torch.zeros(5, 4).scatter_(0, torch.tensor([[0, 1, 2, 3]]), x)
    y[[1, 3]] += x[:2]
    y.index_add_(0, torch.tensor([1, 1]), x[:2])
    return y.sum(0) + torch.where(x > 0, x, x * 2).amax(0), x.argmax(-1)


def stored_tables(m, x):
    table = torch.tensor([1.0, 2.0, 3.0, 4.0])
    y = x * table
    y[:, 0] = table[1]
    return y.to(torch.float64).to(torch.float32) + x.to(torch.float32).contiguous().detach()


def composite(m, x):
    """Operators that torch composes of others, and casts, beside a write."""
    y = torch.zeros(4, 4)
    y[0] = x[1]
    z = F.softmax(m.a(x.float()) @ x.to(torch.float32), -1, dtype=torch.float32)
    values, order = torch.max(z.square(), dim=1)
    return F.dropout(z, 0.5).repeat_interleave(2, 0) + y.repeat(2, 1), values, order.to(torch.int64)


APART = [composite, rows, views, view_of_scale, under_no_grad, several_results, writes_by_out, decomposes,
         indexes, stored_tables]
NOT_APART = [writes_a_buffer, writes_statistics, writes_statistics_of_samples, returns_views,
             returns_inputs, returns_numbers]


def exported(compute):
    torch.manual_seed(0)
    return torch.export.export(Model(compute), (torch.randn(4, 4),), strict=False)


def described(program):
    """All of a program that the trace reads."""
    values = [[(tuple(x.shape), x.dtype) for x in torch.utils._pytree.tree_leaves(n.meta.get("val"))
               if isinstance(x, torch.Tensor)] for n in program.graph.nodes]
    places = [n.meta.get("stack_trace") for n in program.graph.nodes]
    return program.graph_module.code, str(program.graph_signature), values, places


@pytest.mark.parametrize("compute", APART + NOT_APART, ids=lambda f: f.__name__)
def test_the_graph_is_that_of_torch(monkeypatch, compute):
    program = exported(compute)
    found = aliases.aliases_of(program)
    assert found is None or found.are_apart() == (compute in APART)
    ours = decompose.decomposed(program)
    monkeypatch.setattr(decompose, "aliases_of", lambda program: None)
    theirs = decompose.decomposed(exported(compute))
    assert described(ours) == described(theirs)


@pytest.mark.parametrize("compute", [rows, views, under_no_grad], ids=lambda f: f.__name__)
def test_operators_are_run_once(monkeypatch, compute):
    """Those that are not written to are not run by torch, and no operator is run twice."""
    ran = []
    run = settled._run_node
    monkeypatch.setattr(settled, "_run_node", lambda i, n: [ran.append(n.name), run(i, n)][1])
    program = exported(compute)
    known = {n.name for n in program.graph.nodes if n.op == "call_function"}
    decompose.decomposed(program)
    assert len(ran) == len(set(ran)) and known - set(ran) >= {"sin", "add"}


def test_composites_and_casts_are_copied(monkeypatch):
    ran, results = set(), []
    run, functional = settled._run_node, settled._Copied.functional
    monkeypatch.setattr(settled, "_run_node", lambda i, n: [ran.add(str(n.target)), run(i, n)][1])
    monkeypatch.setattr(settled._Copied, "functional",
                        lambda c, t: [results.append(c.node.name), functional(c, t)][1])
    program = exported(composite)
    copied = {"aten.linear.default", "aten.softmax.int", "aten.matmul.default", "aten.to.dtype",
              "aten.square.default", "aten._assert_tensor_metadata.default"}
    assert {str(n.target) for n in program.graph.nodes} >= copied
    decompose.decomposed(program)
    assert not ran & copied
    # Only what other operators read has a tensor: what is written, and what is returned.
    assert "linear" not in results and "sin" not in results


def test_what_a_program_writes_to():
    found = aliases.aliases_of(exported(writes_a_buffer))
    assert len(found.written & set(found.inputs)) == 1
    found = aliases.aliases_of(exported(rows))
    assert len(found.written) == 1 and found.written.isdisjoint(found.inputs)
    assert all(isinstance(decompose.known_metadata(aliases.aliases_of(exported(c))),
                          contextlib.nullcontext) for c in NOT_APART[:-1])
