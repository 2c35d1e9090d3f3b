# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""`cleave.moe.grouped_linear` in eager code, beside a loop over groups and torch's grouped matmuls."""

import pytest
import torch
import torch.nn.functional as F

from cleave import grouped, moe

torch_grouped_mm = pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="torch has none")


def draw(leading, groups, dtype=torch.float64, transpose=False, chosen=None):
    torch.manual_seed(len(leading) + groups)
    rows = torch.randn(*leading, 5, dtype=dtype, requires_grad=True)
    weight = torch.randn(groups, *((6, 5) if transpose else (5, 6)), dtype=dtype, requires_grad=True)
    index = torch.randint(0, groups, leading) if chosen is None else torch.full(leading, chosen)
    return rows, weight, index


def by_loop(rows, weight, index, transpose):
    """Each row by itself."""
    flat = [x @ (weight[g].t() if transpose else weight[g])
            for x, g in zip(rows.reshape(-1, rows.shape[-1]), index.reshape(-1).tolist())]
    return torch.stack(flat).view(*index.shape, -1)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("leading, groups, chosen", [
    ((7,), 3, None), ((2, 3, 2), 4, None), ((3, 4), 1, None), ((1,), 5, 4), ((2, 5), 3, 1)],
    ids=["rows", "choices", "one-group", "one-row", "all-in-one"])
def test_values_and_gradients(leading, groups, chosen, transpose):
    rows, weight, index = draw(leading, groups, transpose=transpose, chosen=chosen)
    probe = torch.randn(*leading, 6, dtype=torch.float64)
    results = []
    for function in (moe.grouped_linear, by_loop):
        y = function(rows, weight, index, transpose)
        results.append((y, *torch.autograd.grad((y.tanh() * probe).sum(), (rows, weight))))
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_second_derivatives():
    rows, weight, index = draw((2, 3), 4)
    for transpose in (False, True):
        w = weight.detach().transpose(1, 2).contiguous().requires_grad_() if transpose else weight
        assert torch.autograd.gradgradcheck(
            lambda x, w: moe.grouped_linear(x, w, index, transpose), (rows, w))


def test_no_rows():
    y = moe.grouped_linear(torch.zeros(0, 5), torch.ones(3, 5, 6), torch.zeros(0, dtype=torch.int64))
    assert y.shape == (0, 6)


def test_types_and_devices():
    rows, weight, index = draw((8, 2), 3, torch.float32)
    exact = moe.grouped_linear(rows.double(), weight.double(), index)
    narrow = moe.grouped_linear(rows.bfloat16(), weight.bfloat16(), index)
    assert narrow.dtype == torch.bfloat16
    assert (narrow.double() - exact).norm() < 1e-2 * exact.norm()
    with torch.autocast("cpu", torch.bfloat16):
        cast = moe.grouped_linear(rows, weight, index)
    assert torch.equal(cast, narrow)
    cast.sum().backward()
    assert rows.grad.dtype == weight.grad.dtype == torch.float32
    there = moe.grouped_linear(rows.to("meta"), weight.to("meta"), index.to("meta"))
    assert there.shape == (8, 2, 6) and there.is_meta


def test_bad_arguments():
    rows, weight, index = draw((4,), 3)
    with pytest.raises(ValueError, match=r"need shapes \[..., i\], \[groups, i, o\] and \[...\]"):
        moe.grouped_linear(rows, weight.transpose(1, 2), index)
    with pytest.raises(ValueError, match="need shapes"):
        moe.grouped_linear(rows, weight, index[:3])
    with pytest.raises(IndexError, match="groups are 3 to 3; the weight has 3 of them"):
        moe.grouped_linear(rows, weight, torch.full((4,), 3))


@torch_grouped_mm
@pytest.mark.parametrize("ends", [[3, 3, 8, 12], [0, 0, 0, 12], [12, 12, 12, 12], [1, 2, 3, 12]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_mm_of_torch(ends, dtype):
    """In its three forms, of which a step has the first as `graph.grouped_linear`."""
    torch.manual_seed(sum(ends))
    offs = torch.tensor(ends, dtype=torch.int32)
    a, b, c, d = (torch.randn(*shape, dtype=dtype)
                  for shape in ((12, 16), (4, 16, 8), (12, 8), (4, 24, 16)))
    bounds = dict(rtol=2e-2, atol=1e-2) if dtype is torch.bfloat16 else dict(rtol=1e-5, atol=1e-5)
    for operands in ((a, b), (a.t(), c), (d, a.t())):
        torch.testing.assert_close(grouped.grouped_mm(*operands, offs=offs),
                                   F.grouped_mm(*operands, offs=offs), **bounds)


def test_a_mixture_computes_the_rows_that_tokens_choose():
    """A mixture without a capacity is that of a capacity which all tokens fit in."""
    torch.manual_seed(0)
    for gated in (False, True):
        module = moe.Experts(8, 12, 4, choices=2, capacity=None, gated=gated).double()
        x = torch.randn(3, 6, 8, dtype=torch.float64)
        found, balance = module(x)
        module.capacity = 100.0
        expected, other = module(x)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert balance == other
