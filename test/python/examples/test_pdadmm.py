# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""pdADMM: its updates against autograd and brute force, its Lagrangian, and layers that do not
depend on their order or their processes."""

import itertools

import numpy as np
import pytest
import torch

import pdadmm

WIDTHS = [16, 16, 3]


def toy(seed, grid=None, rho=1.0, widths=WIDTHS, samples=60, dtype=np.float64):
    generator = np.random.default_rng(100 + seed)
    x, classes = generator.normal(size=(8, samples)).astype(dtype), generator.integers(3, size=samples)
    return pdadmm.build(x, classes, widths, rho, 0.01, seed, grid)


def lagrangian(layers, **changed):
    """All of it, by PyTorch, with tensors in the place of variables such as `p1`."""
    def of(name, i):
        return changed.get(f"{name}{i}", torch.from_numpy(getattr(layers[i], name)))

    total = 0.0
    for i, layer in enumerate(layers):
        p = of("p", i)
        total = total + layer.rho / 2 * (of("z", i) - of("W", i) @ p - of("b", i)).pow(2).sum()
        total = total + layer.mu / 2 * of("W", i).pow(2).sum()
        if i + 1 < len(layers):
            after = of("p", i + 1)
            total = total + layer.rho / 2 * (of("q", i) - of("z", i).relu()).pow(2).sum()
            total = total + (of("u", i) * (after - of("q", i))).sum()
            total = total + layer.rho / 2 * (after - of("q", i)).pow(2).sum()
        else:
            total = total + torch.nn.functional.cross_entropy(
                of("z", i).T, torch.from_numpy(layer.classes), reduction="sum")
    return total


@pytest.mark.parametrize("seed", range(10))
def test_lagrangian_never_rises(seed):
    layers, values = toy(seed), []
    for _ in range(400):
        value, apart = pdadmm.iterate(layers)
        values.append(value)
    assert all(later <= before for before, later in zip(values, values[1:]))
    assert values[0] > 50 and values[-1] < 1.5
    assert apart <= 1e-5
    assert values[-1] == pytest.approx(float(lagrangian(layers)), rel=1e-10)
    assert apart == pytest.approx(sum(((after.p - own.q) ** 2).sum() for own, after in zip(layers, layers[1:])))


def test_updates_descend():
    """p and W move along the gradient that autograd gives, b to the mean, q to the minimum."""
    layers = toy(3)
    for _ in range(5):
        pdadmm.iterate(layers)
    for name, i in (("p", 1), ("p", 2), ("W", 0), ("W", 2)):
        variable = torch.from_numpy(getattr(layers[i], name)).clone().requires_grad_()
        slope = torch.autograd.grad(lagrangian(layers, **{f"{name}{i}": variable}), variable)[0].numpy()
        old, own = getattr(layers[i], name), toy(3)
        for _ in range(5):
            pdadmm.iterate(own)
        if name == "W":
            # Its update comes after that of p, which is held here.
            own[i].update_own(None)
        else:
            own[i].update_own((layers[i - 1].q, layers[i - 1].u))
        moved = old - getattr(own[i], name)
        ratio = np.vdot(slope, slope) / np.vdot(slope, moved)
        np.testing.assert_allclose(moved * ratio, slope, rtol=1e-6, atol=1e-9 * abs(slope).max())
        assert np.log2(ratio / 20) == pytest.approx(round(np.log2(ratio / 20)), abs=1e-6)
    layers[1].update_link(layers[2].p)
    # q was updated with the old dual.
    dual = layers[1].u - layers[1].rho * (layers[2].p - layers[1].q)
    q = torch.from_numpy(layers[1].q).clone().requires_grad_()
    slope = torch.autograd.grad(lagrangian(layers, q1=q, u1=torch.from_numpy(dual)), q)[0]
    assert float(slope.abs().max()) < 1e-12


def test_last_z_is_the_minimum(monkeypatch):
    monkeypatch.setattr(pdadmm, "TOLERANCE", 1e-12)
    monkeypatch.setattr(pdadmm, "FISTA_STEPS", 400)
    layers = toy(0)
    c = np.random.default_rng(0).normal(size=layers[-1].z.shape)
    z = torch.from_numpy(layers[-1].last(c)).requires_grad_()
    loss = torch.nn.functional.cross_entropy(z.T, torch.from_numpy(layers[-1].classes), reduction="sum")
    slope = torch.autograd.grad(loss + 0.5 * (z - torch.from_numpy(c)).pow(2).sum(), z)[0]
    assert float(slope.abs().max()) < 1e-8


def test_hidden_z():
    """c = z = q = 1 gives 1; within the sign that is chosen no other z is better."""
    layer = toy(0)[0]
    one = np.ones((1, 1))
    layer.z = layer.q = one
    assert layer.hidden(one) == 1
    generator, grid = np.random.default_rng(1), np.linspace(-6, 6, 24001)
    for _ in range(50):
        c, z, q = generator.normal(size=3) * 2
        layer.z, layer.q = np.array([[z]]), np.array([[q]])
        chosen = float(layer.hidden(np.array([[c]]))[0, 0])
        value = (grid - c) ** 2 + (q - np.maximum(grid, 0)) ** 2 + (grid - z) ** 2
        for side, own in ((grid <= 0, chosen <= 0), (grid >= 0, chosen >= 0)):
            if own and chosen:
                assert chosen == pytest.approx(grid[side][value[side].argmin()], abs=6e-4)


@pytest.mark.parametrize("grid", [None, pdadmm.Grid(16), pdadmm.Grid(8)], ids=["f64", "16", "8"])
def test_order_of_layers_does_not_matter(grid):
    widths = [6, 5, 4, 3]
    first, *others = itertools.permutations(range(4))
    expected = toy(1, grid, widths=widths)
    history = [pdadmm.iterate(expected, first) for _ in range(6)]
    for order in others:
        layers = toy(1, grid, widths=widths)
        assert [pdadmm.iterate(layers, order) for _ in range(6)] == history
        for own, other in zip(layers, expected):
            assert all(np.array_equal(getattr(own, name), getattr(other, name)) for name in "pWbzqu")


@pytest.mark.parametrize("nodes, bits, sent", [("processes", 0, 12), ("threads", 16, 10), ("threads", 8, 9)])
def test_layers_apart(tmp_path, nodes, bits, sent):
    """A process for each layer gives the bits of layers in turn, and sends 12 bytes for each element
    of a boundary and iteration in f32: p down, q and u up; 10 and 9 with q in 16 and 8 bits."""
    grid, widths, iterations = pdadmm.Grid(bits) if bits else None, [6, 5, 3], 7
    layers, history, moved = pdadmm.train_apart(
        nodes, toy(2, grid, widths=widths, dtype=np.float32), iterations, tmp_path / "layers")
    own = toy(2, grid, widths=widths, dtype=np.float32)
    assert history == [list(pdadmm.iterate(own)) for _ in range(iterations)]
    for one, other in zip(layers, own):
        for name in "pWbzqu":
            assert getattr(one, name).dtype == np.float32
            assert np.array_equal(getattr(one, name), getattr(other, name))
    assert moved == sent * (6 + 5) * 60 * iterations


@pytest.mark.parametrize("bits, count", [(8, 256), (16, 1000)])
def test_quantised_values(bits, count):
    grid = pdadmm.Grid(bits)
    values = np.linspace(-1, 2, count)
    codes = grid.encode(values)
    assert np.array_equal(codes, np.arange(count)) and codes.itemsize == bits // 8
    assert np.array_equal(grid.decode(codes, np.float64), values)
    far = np.array([-9.0, -1.0, 0.3, 2.0, 7.0])
    assert grid.decode(grid.encode(far), np.float64) == pytest.approx(np.clip(far, -1, 2), abs=1.5 / (count - 1))
    layers = toy(0, grid)
    for _ in range(30):
        pdadmm.iterate(layers)
    for layer in layers[:-1]:
        assert np.isin(layer.q, values).all()
        assert len(np.unique(layer.q)) > 10


def test_graph():
    """The first block of features is the last one, averaged four times."""
    x, classes = pdadmm.graph(50, 3, 1)
    assert x.shape == (80, 50) and set(classes) == {0, 1, 2}
    apart = [np.linalg.norm(x[k * 16:(k + 1) * 16] - x[(k + 1) * 16:(k + 2) * 16]) for k in range(4)]
    assert apart == sorted(apart), "each average changes less"


def test_runs(tmp_path, capsys):
    pdadmm.main(["--smoke", "--nodes", "threads", "--work", str(tmp_path)])
    said = capsys.readouterr().out
    assert said.count("bit for bit: True") == 3
    assert "12.00 bytes" in said and "10.00 bytes" in said and "9.00 bytes" in said
    assert (tmp_path / "pdadmm.svg").exists()
