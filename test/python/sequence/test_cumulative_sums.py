# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Cumulative sums of integers along dimensions that ranks share, against numpy: in the
order of ranks, and in zig-zag order."""

import re

import numpy as np
import pytest

from cleave.testing.tools import interpret, optimize

LOCAL = ("--spmd-propagate", "--spmd-partition", "--spmd-optimize-collectives", "--spmd-verify")


def given(name, type, sharding):
    return (f'%{name}: tensor<{type}> {{graph.role = "input", graph.name = "{name}", '
            f"spmd.sharding = #spmd.sharding<@mesh, [{sharding}]>}}")


@pytest.mark.parametrize("axes", [["cp"], ["tp"], ["cp", "tp"], ["tp", "cp"]], ids="-".join)
@pytest.mark.parametrize("reverse", [False, True])
def test_sums_over_shards(axes, reverse):
    sharding = '{"dp"}, {' + ", ".join(f'"{axis}"' for axis in axes) + "}, {}"
    kind = "tensor<4x24x5xi64>"
    text = f"""
      spmd.mesh @mesh <["dp" = 2, "cp" = 2, "tp" = 3]>
      func.func @logits({given("x", "4x24x5xi64", sharding)})
          -> ({kind} {{graph.name = "y", spmd.sharding = #spmd.sharding<@mesh, [{sharding}]>}}) {{
        %s = graph.cumulative_sum %x {{dim = 1 : i64{", reverse" if reverse else ""}}} : ({kind}) -> {kind}
        %y = graph.mul %s, %x : ({kind}, {kind}) -> {kind}
        return %y : {kind}
      }}"""
    rng = np.random.default_rng(3)
    x = rng.integers(-9, 9, (4, 24, 5))
    sums = np.cumsum(x[:, ::-1], 1)[:, ::-1] if reverse else np.cumsum(x, 1)
    local = optimize(text, *LOCAL)
    ranks = {"cp": 2, "tp": 3}
    gathered = re.findall(r"spmd\.all_gather .* -> tensor<([\dx]+)xi64>", local)
    assert gathered == [f"2x{np.prod([ranks[axis] for axis in axes])}x5"]
    assert np.array_equal(interpret(local, {"x": x}, entry="logits")[0]["y"], sums * x)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("reverse", [False, True])
def test_sums_in_zig_zag_order(ranks, reverse):
    places, kind = 24, "tensor<2x24x5xi64>"
    text = f"""
      func.func @logits(%x: tensor<2x1x24x4xf64> {{graph.role = "input", graph.name = "x"}},
                        %n: {kind} {{graph.role = "input", graph.name = "n"}})
          -> (tensor<2x1x24x1xf64> {{graph.name = "y"}}, {kind} {{graph.name = "places"}}) {{
        %o, %lse = graph.attention %x, %x, %x {{scale = 1.0 : f64, causal}}
            : (tensor<2x1x24x4xf64>, tensor<2x1x24x4xf64>, tensor<2x1x24x4xf64>)
            -> (tensor<2x1x24x4xf64>, tensor<2x1x24xf64>)
        %s = graph.cumulative_sum %n {{dim = 1 : i64{", reverse" if reverse else ""}}} : ({kind}) -> {kind}
        %m = graph.mul %s, %n : ({kind}, {kind}) -> {kind}
        %c = graph.reduce sum %m {{dims = array<i64: 2>}} : ({kind}) -> tensor<2x24xi64>
        %w = graph.cast %c : (tensor<2x24xi64>) -> tensor<2x24xf64>
        %r = graph.reshape %w : (tensor<2x24xf64>) -> tensor<2x1x24xf64>
        %z = graph.mul %lse, %r : (tensor<2x1x24xf64>, tensor<2x1x24xf64>) -> tensor<2x1x24xf64>
        %y = graph.reshape %z : (tensor<2x1x24xf64>) -> tensor<2x1x24x1xf64>
        return %y, %m : tensor<2x1x24x1xf64>, {kind}
      }}"""
    ordered = optimize(text, f"--spmd-order-sequence=mesh=cp={ranks} recipes=ring")
    assert f"tensor<2x{2 * ranks}x{places // (2 * ranks)}x5xi64>" in ordered
    rng = np.random.default_rng(ranks)
    inputs = {"x": rng.normal(size=(2, 1, places, 4)), "n": rng.integers(-9, 9, (2, places, 5))}
    before, after = (interpret(program, inputs, entry="logits")[0] for program in (text, ordered))
    assert np.array_equal(before["places"], after["places"])
    assert np.allclose(before["y"], after["y"], rtol=1e-12, atol=0)
