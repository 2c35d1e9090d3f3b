# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The reference interpreter: its two modes, and what it says of bad input."""

import pathlib

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

from cleave.philox import philox4x32
from cleave.testing.tools import ToolError, interpret, run_tool, tool

IDENTITY = """func.func @loss(%x: tensor<4x{T}> {graph.name = "x", graph.role = "input"})
    -> (tensor<4x{T}> {graph.name = "y"}) {
  %c = graph.constant dense<1.0> : tensor<{T}>
  %y = graph.mul %x, %c : (tensor<4x{T}>, tensor<{T}>) -> tensor<4x{T}>
  return %y : tensor<4x{T}>
}
"""


def run(tmp_path, module, inputs, *options, mode="exact"):
    """Runs on PyTorch tensors, of any float type, and returns such."""
    (tmp_path / "m.mlir").write_text(module)
    save_torch(inputs, tmp_path / "in")
    arguments = [f"--inputs={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", f"--mode={mode}"]
    run_tool([tool("cleave-reference"), str(tmp_path / "m.mlir"), *arguments, *options])
    return load_torch(tmp_path / "out")


def fails(module, inputs, message, **options):
    with pytest.raises(ToolError, match=message) as caught:
        interpret(module, inputs, **options)
    assert caught.value.status == 1
    return caught.value.stderr


# ---------------------------------------------------------------------------
# Modes
# ---------------------------------------------------------------------------

FLOATS = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
          "f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2}


@pytest.mark.parametrize("name", FLOATS)
def test_typed_mode_rounds_like_pytorch(tmp_path, name):
    rng = np.random.default_rng(0)
    # All magnitudes, among them subnormal numbers and what overflows; ties too.
    values = rng.standard_normal(4000) * 2.0 ** rng.integers(-160, 140, 4000)
    values[:500] = np.round(rng.standard_normal(500) * 2**11) / 2**11 * (1 + 2.0**-9)
    x = torch.tensor(values)
    module = IDENTITY.replace("{T}", name).replace("4x", "4000x")
    got = run(tmp_path, module, {"x": x}, mode="typed")["y"]
    assert got.dtype == FLOATS[name]
    assert torch.equal(got.double(), x.to(FLOATS[name]).double())


@pytest.mark.parametrize("name", FLOATS)
def test_exact_mode_takes_any_float_and_rounds_nothing(tmp_path, name):
    x = torch.tensor([0.1, -3.0, 1e-30, 7.0], dtype=FLOATS[name])
    for declared in FLOATS:
        got = run(tmp_path, IDENTITY.replace("{T}", declared), {"x": x})["y"]
        assert got.dtype == torch.float64
        assert torch.equal(got, x.double())


def test_narrow_sums_accumulate_in_f32(tmp_path):
    """Neither in bf16, where the sum would stop at 256, nor in f64."""
    module = """func.func @loss(%x: tensor<1000xbf16> {graph.name = "x"}, %w: tensor<1000xbf16> {graph.name = "w"})
        -> (tensor<bf16> {graph.name = "sum"}, tensor<bf16> {graph.name = "dot"}) {
      %s = graph.reduce sum %x {dims = array<i64: 0>} : (tensor<1000xbf16>) -> tensor<bf16>
      %d = graph.contract "a,a->" %x, %w : (tensor<1000xbf16>, tensor<1000xbf16>) -> tensor<bf16>
      return %s, %d : tensor<bf16>, tensor<bf16>
    }"""
    ones = torch.ones(1000, dtype=torch.bfloat16)
    got = run(tmp_path, module, {"x": ones, "w": ones.clone()}, mode="typed")
    assert got["sum"].item() == got["dot"].item() == 1000.0
    big = ones.clone()
    big[0] = 2.0**26
    # Above 2^24 an f32 does not see a 1 that is added to it.
    got = run(tmp_path, module, {"x": big, "w": ones}, mode="typed")
    assert got["sum"].item() == got["dot"].item() == 2.0**26
    exact = run(tmp_path, module, {"x": big, "w": ones})
    assert exact["sum"].item() == exact["dot"].item() == 2.0**26 + 999


def test_integers_wrap_and_casts_truncate(tmp_path):
    module = """func.func @loss(%x: tensor<5xf32> {graph.name = "x"}) -> (tensor<5xi8> {graph.name = "i8"},
        tensor<5xi8> {graph.name = "double"}, tensor<5xi1> {graph.name = "i1"}) {
      %a = graph.cast %x : (tensor<5xf32>) -> tensor<5xi8>
      %b = graph.add %a, %a : (tensor<5xi8>, tensor<5xi8>) -> tensor<5xi8>
      %c = graph.cast %x : (tensor<5xf32>) -> tensor<5xi1>
      return %a, %b, %c : tensor<5xi8>, tensor<5xi8>, tensor<5xi1>
    }"""
    got = run(tmp_path, module, {"x": torch.tensor([-1.9, 1.9, 100.0, 1000.0, 0.5])})
    assert got["i8"].tolist() == [-1, 1, 100, 127, 0]
    assert got["double"].tolist() == [-2, 2, -56, -2, 0]
    assert got["i1"].tolist() == [True, True, True, True, True]


def test_contraction_of_many_rows_is_that_of_numpy():
    """Blocks of rows and columns, and what is left over of them."""
    rng = np.random.default_rng(0)
    for b, m, n, k in [(3, 5, 7, 9), (1, 4, 256, 3), (2, 1, 513, 17), (1, 67, 300, 1)]:
        x, y = rng.standard_normal((b, m, k)), rng.standard_normal((n, b, k))
        module = f"""func.func @loss(%x: tensor<{b}x{m}x{k}xf64> {{graph.name = "x"}},
            %y: tensor<{n}x{b}x{k}xf64> {{graph.name = "y"}}) -> tensor<{b}x{n}x{m}xf64> {{
          %0 = graph.contract "bmk,nbk->bnm" %x, %y
              : (tensor<{b}x{m}x{k}xf64>, tensor<{n}x{b}x{k}xf64>) -> tensor<{b}x{n}x{m}xf64>
          return %0 : tensor<{b}x{n}x{m}xf64>
        }}"""
        got = interpret(module, {"x": x, "y": y})[0]["result0"]
        np.testing.assert_allclose(got, np.einsum("bmk,nbk->bnm", x, y), rtol=1e-13, atol=1e-13)


# ---------------------------------------------------------------------------
# Random numbers
# ---------------------------------------------------------------------------


def test_philox_gives_the_published_numbers():
    """The known answers that come with Random123."""
    ones = 0xFFFFFFFF
    known = {
        (0, 0, 0, 0, 0, 0): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        (ones,) * 6: (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0): (
            0xD16CFE09,
            0x94FDCCEB,
            0x5001E420,
            0x24126EA1,
        ),
    }
    for words, answer in known.items():
        assert tuple(int(x) for x in philox4x32(words[:4], words[4:])) == answer


# ---------------------------------------------------------------------------
# Bad input: one located message, and status 1
# ---------------------------------------------------------------------------

GATHER = """func.func @loss(%w: tensor<4x2xf32> {graph.name = "w"}, %i: tensor<3xi64> {graph.name = "i"})
    -> tensor<3x2xf32> {
  %0 = graph.gather %w, %i {dim = 0 : i64} : (tensor<4x2xf32>, tensor<3xi64>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}
"""


@pytest.mark.parametrize("bad", [4, -1, 2**40])
def test_index_out_of_range(bad):
    inputs = {"w": np.zeros((4, 2)), "i": np.array([0, bad, 1])}
    text = fails(GATHER, inputs, rf"index {bad} \(element 1 of the indices\) is outside \[0, 4\)")
    assert "module:3:8: error" in text


def test_scatter_index_out_of_range():
    module = """func.func @loss(%w: tensor<3xf32> {graph.name = "w"}, %i: tensor<3xi64> {graph.name = "i"}) -> tensor<4xf32> {
      %0 = graph.scatter_add %w, %i {dim = 0 : i64, size = 4 : i64} : (tensor<3xf32>, tensor<3xi64>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    fails(module, {"w": np.zeros(3), "i": np.array([0, 1, 4])}, "index 4 .* is outside")


def test_target_out_of_range():
    module = """func.func @loss(%x: tensor<2x3xf32> {graph.name = "x"}, %t: tensor<2xi64> {graph.name = "t"}) -> tensor<2xf32> {
      %0, %1 = graph.cross_entropy %x, %t : (tensor<2x3xf32>, tensor<2xi64>) -> (tensor<2xf32>, tensor<2xf32>)
      return %0 : tensor<2xf32>
    }"""
    fails(
        module,
        {"x": np.zeros((2, 3)), "t": np.array([-100, 3])},
        r"target 3 \(row 1\) is neither in \[0, 3\) nor the ignored index -100",
    )


def test_check_that_fails():
    module = """func.func @loss(%flag: tensor<i1> {graph.name = "flag"}) -> tensor<i1> {
      graph.check %flag, "every label of the batch is ignored" : tensor<i1>
      return %flag : tensor<i1>
    }"""
    interpret(module, {"flag": np.array(True)})
    fails(module, {"flag": np.array(False)}, "module:2:.*error: check failed: every label of the batch is ignored")


def test_integer_division_by_zero():
    module = """func.func @loss(%a: tensor<2xi64> {graph.name = "a"}) -> tensor<2xi64> {
      %0 = graph.div %a, %a : (tensor<2xi64>, tensor<2xi64>) -> tensor<2xi64>
      return %0 : tensor<2xi64>
    }"""
    fails(module, {"a": np.array([1, 0])}, "divides an integer by zero")
    least = -(2**63)
    module = module.replace("%a, %a", "%a, %m").replace("  %0", "  %m = graph.constant dense<-1> : tensor<2xi64>\n %0")
    assert interpret(module, {"a": np.array([least, 5])})[0]["result0"].tolist() == [least, -5]


def test_inputs_that_do_not_fit():
    module = IDENTITY.replace("{T}", "f32")
    fails(module, {}, "no input is named 'x': input \"x\" of 'loss' needs it")
    fails(module, {"x": np.zeros(5)}, "input 'x' has type 'tensor<5xf64>', but input \"x\" of 'loss'")
    fails(module, {"x": np.zeros(4, np.int64)}, "input 'x' has elements of type 'i64'")
    fails(module, {"x": np.zeros(4)}, "has no entry 'nothing'", entry="nothing")
    narrow = GATHER.replace("3xi64", "3xi8")
    fails(narrow, {"w": np.zeros((4, 2)), "i": np.array([0, 1, 300])}, "holds 300, which 'i8' cannot")


def test_op_without_semantics():
    module = """func.func @loss(%x: tensor<4xf32> {graph.name = "x"}) -> tensor<4xf32> {
      %0 = func.call @loss(%x) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    fails(module, {"x": np.zeros(4)}, "has no reference semantics")


def status(*arguments):
    with pytest.raises(ToolError) as caught:
        run_tool([tool("cleave-reference"), *map(str, arguments)])
    return caught.value.status, caught.value.stderr


def test_mistakes_in_the_arguments(tmp_path):
    assert "--mode exact|typed" in run_tool([tool("cleave-reference"), "--help"])
    for arguments, message in [
        ([], "no module is given"),
        (["a.mlir", "b.mlir"], "more than one module"),
        (["a.mlir", "--mood=exact"], "unknown option '--mood'"),
        (["a.mlir", "--mode=fast"], "neither exact nor typed"),
        (["a.mlir", "--entry"], "needs a value"),
    ]:
        code, text = status(*arguments)
        assert code == 2 and message in text, text
    code, text = status(tmp_path / "absent.mlir")
    assert code == 1 and "absent.mlir" in text


def test_damaged_files(tmp_path):
    module = tmp_path / "m.mlir"
    module.write_text(IDENTITY.replace("{T}", "f32"))
    good = tmp_path / "good"
    save_file({"x": np.arange(4, dtype=np.float32)}, good)
    whole = pathlib.Path(good).read_bytes()
    out = tmp_path / "out"
    for bad in [
        b"",
        b"1234567",
        (2**63).to_bytes(8, "little") + b"{}",
        whole[:-1],
        whole[:20],
        whole.replace(b"F32", b"F99"),
        whole.replace(b"[4]", b"[9]"),
        whole.replace(b'"shape"', b'"shame"'),
    ]:
        path = tmp_path / "bad"
        path.write_bytes(bad)
        code, text = status(module, f"--inputs={path}", f"--output={out}")
        assert code == 1 and "bad" in text, text
        assert not out.exists()
    module.write_text("func.func @loss(")
    code, text = status(module)
    assert code == 1 and "m.mlir:1" in text
    module.write_text(IDENTITY.replace("{T}", "f32"))
    code, text = status(module, f"--inputs={good}", f"--output={tmp_path / 'no' / 'out'}")
    assert code == 1 and "cannot" in text and "out" in text


# ---------------------------------------------------------------------------
# Files of inputs
# ---------------------------------------------------------------------------

BUFFER = """func.func @loss(%x: tensor<4xi64> {graph.name = "x", graph.role = "input"},
    %b: tensor<4xi64> {graph.name = "b", graph.role = "buffer", graph.transient,
                       graph.value = dense<[1, -2, 3, 4]> : tensor<4xi64>}) -> tensor<4xi64> {
  %y = graph.add %x, %b : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi64>
  return %y : tensor<4xi64>
}
"""


def test_a_buffer_without_input_has_the_value_of_the_module(tmp_path):
    x = {"x": torch.tensor([200, 0, 1, 2], dtype=torch.uint8)}
    assert run(tmp_path, BUFFER, x)["result0"].tolist() == [201, -2, 4, 6]
    assert run(tmp_path, BUFFER, {**x, "b": torch.ones(4, dtype=torch.int64)})[
        "result0"].tolist() == [201, 1, 2, 3]


def test_inputs_of_several_files(tmp_path):
    for name, value in (("x", [1, 2, 3, 4]), ("b", [10, 20, 30, 40])):
        save_torch({name: torch.tensor(value)}, tmp_path / f"{name}.safetensors")
    index = tmp_path / "all.json"
    index.write_text('{"weight_map": {"x": "x.safetensors", "b": "b.safetensors"}}')
    (tmp_path / "m.mlir").write_text(BUFFER)
    run_tool([tool("cleave-reference"), str(tmp_path / "m.mlir"), f"--inputs={index}",
              f"--output={tmp_path / 'out'}"])
    assert load_torch(tmp_path / "out")["result0"].tolist() == [11, 22, 33, 44]
