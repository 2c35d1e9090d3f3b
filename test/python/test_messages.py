# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Messages call inputs, parameters, state and results by their names, not by their numbers: the
text of the C++ code is searched for numbers, and messages that users reach are compared."""

import pathlib
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.testing.tools import ToolError, run_tool, tool
from cleave.compiler.entrance import grouped

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: The end of a literal, and what is written after it.
NUMBERED = re.compile(
    r'"(?:[^"\\\n]|\\.)*\b(?P<what>argument|operand|result)s? "(?:[),]|\s)*(?:<<|\+)\s*(?P<value>[^";]*)')
#: Ops that have a function's arguments and results.
FUNCTIONS = "function", "program", "part", "entry", "terminator", "returnOp", "step", "source"
#: Where there is no name to give.
WITHOUT_NAMES = {
    "lib/Dialect/Graph/Transforms/Differentiate.cpp": "a parameter without a name",
    "lib/Dialect/Graph/Transforms/VerifyModel.cpp": "an argument without a name",
    "lib/Dialect/Exec/Transforms/Memory/PartMemory.cpp": "an argument that does not exist",
    "lib/Dialect/Pipe/IR/PipeOps.cpp": "an operand and an argument that do not exist",
    "lib/Dialect/Spmd/IR/MergeFactors.cpp": "knows the rule of an op, and not the op",
    "lib/Dialect/Spmd/Transforms/Partition/Partition.cpp": "the cause of a collective, in a remark at its op",
}


def numbered(text):
    """(line, words) of each number of an argument, an operand or a function's result."""
    for found in NUMBERED.finditer(text):
        statement = text[max(text.rfind(c, 0, found.start()) for c in ";{}") + 1:found.end()]
        # An op's own results have numbers, and the message names the op.
        owner = re.search(r"(\w*)(?:->|\.)?\bemit(?:Op)?Error\(", statement)
        if found["what"] == "result" and owner and owner[1] not in FUNCTIONS:
            continue
        if re.match(r"\S*[tT]ype\b|\S*getType\(\)", found["value"]):
            continue
        yield text.count("\n", 0, found.start()) + 1, " ".join(found[0].split())


def test_no_message_numbers_what_has_a_name():
    found = {}
    for path in sorted((ROOT / base for base in ("lib", "include", "tools")), key=str):
        for file in sorted(path.rglob("*")):
            name = file.relative_to(ROOT).as_posix()
            if file.suffix in (".h", ".cpp") and not name.startswith("lib/Testing/"):
                for line, words in numbered(file.read_text()):
                    found.setdefault(name, []).append(f"{name}:{line}: {words}")
    wrong = [text for name, texts in found.items() if name not in WITHOUT_NAMES for text in texts]
    assert not wrong, "\n".join(wrong)
    assert set(WITHOUT_NAMES) <= set(found), "an exception is not needed any more"


@pytest.mark.parametrize("text", [
    'return function.emitOpError("argument ") << i << " is not a tensor";',
    'return function.emitOpError("argument ")\n       << argument.getArgNumber() << " is";',
    'return op->emitOpError("operand ") << i << " is partial";',
    'emitError(loc) << "but argument " << i << " of";',
    'return program.emitOpError("result ") << i << " has no graph.name";',
    'auto sharding = entrySharding(attributes, "result " + Twine(i));',
    'os << "argument " << cast<BlockArgument>(value).getArgNumber();',
])
def test_a_number_is_found(text):
    assert len(list(numbered(text))) == 1


@pytest.mark.parametrize("text", [
    'return op->emitOpError("result ") << i << " is marked";',
    'return emitOpError("results needs one kind for each of the ") << n;',
    'return graph::emitArgumentError(function, i) << " is not a tensor";',
    'error << "is not a box of the result " << getType();',
    'return emitOpError("operand \\"") << name << "\\"";',
])
def test_a_name_is_not(text):
    assert not list(numbered(text))


# Messages that users reach --------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, tokens):
        x = (tokens * self.weight).transpose(1, 2)
        return F.scaled_dot_product_attention(x, x, x, is_causal=True).square().mean()


class Returns(nn.Module):
    def __init__(self, more):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.more = more

    def forward(self, x):
        return ((x * self.scale).mean(), self.scale) if self.more else self.scale


X = torch.ones(4, 4)


@pytest.mark.parametrize("model, arguments, options, message", [
    (Attention(), [torch.ones(4, 8, 2, 4)], dict(mesh={"cp": 9}, plan="context"),
     'dimension 1 of input "tokens" has size 8, less than the 9 positions of axis "cp": use at most 8'),
    (nn.Linear(4, 4), [X, X, F.mse_loss], dict(mesh={"dp": 5}),
     'input "input" has 4 samples, fewer than the 5 positions of axis "dp": use at most 4'),
    (nn.Linear(4, 4), [X, X, F.mse_loss], dict(deterministic=8),
     'input "input" has 4 samples, not divisible by 8 grains: use 1, 2 or 4'),
    (Returns(False), [X], {}, """the loss of '@loss' is its parameter "scale" itself"""),
], ids=["sequence", "samples", "grains", "loss"])
def test_compiling_names_inputs(model, arguments, options, message):
    *examples, loss = arguments if callable(arguments[-1]) else [*arguments, None]
    with pytest.raises(cleave.CompileError, match=re.escape(message)) as caught:
        cleave.compile(model, tuple(examples), *([loss] if loss else []), **grouped(**options))
    assert not re.search(r"func\.func|(argument|operand|result) \d", str(caught.value))


MODEL = """func.func @loss(
    %w: tensor<4x4xf32> {graph.name = "w", graph.role = "parameter"},
    %x: tensor<6x4xf32> {graph.batch_dim = 0 : i64, graph.name = "x", graph.role = "input"},
    %b: tensor<4xf32> {graph.name = "b", graph.role = "buffer"})
    -> (tensor<f32> {graph.name = "loss"}{MORE}) {
  %y = graph.linear %x, %w bias %b : (tensor<6x4xf32>, tensor<4x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  %l = graph.reduce sum %y {dims = array<i64: 0, 1>} : (tensor<6x4xf32>) -> tensor<f32>
  %n = graph.neg %b : (tensor<4xf32>) -> tensor<4xf32>
  return %l{VALUE} : tensor<f32>{TYPE}
}
"""


def model_text(more="", value="", kind=""):
    return MODEL.replace("{MORE}", more).replace("{VALUE}", value).replace("{TYPE}", kind)


@pytest.mark.parametrize("text, options, message", [
    (model_text().replace('graph.name = "w", ', ""), [],
     "a parameter, argument 0 of '@loss', has no 'graph.name'"),
    (model_text(', tensor<4xf32> {graph.updates = "x"}', ", %n", ", tensor<4xf32>"), [],
     """a result of '@train' updates "x", which is no buffer of its type"""),
    (model_text(', tensor<4x4xf32> {graph.name = "again"}', ", %w", ", tensor<4x4xf32>"), [],
     """'@loss' returns parameter "w" itself, which the training step overwrites"""),
    (model_text().replace('tensor<f32> {graph.name = "loss"}', 'tensor<6x4xf32> {graph.name = "y"}')
     .replace("return %l : tensor<f32>", "return %y : tensor<6x4xf32>"), [],
     """result "y" of '@loss' has type 'tensor<6x4xf32>'; the loss must be a float tensor of rank 0"""),
    (model_text(), ["--mesh=dp=4", "--micro-batches=4"],
     'input "x" has 2 samples on each device, fewer than the 4 micro-batches'),
], ids=["name", "updates", "returns", "loss", "samples"])
def test_the_compiler_names_arguments_and_results(tmp_path, text, options, message):
    (tmp_path / "m.mlir").write_text(text)
    with pytest.raises(ToolError) as caught:
        run_tool([tool("cleave-compile"), str(tmp_path / "m.mlir"), *options, "-o",
                  str(tmp_path / "m.so")])
    assert message in str(caught.value)


@pytest.mark.parametrize("inputs, message", [
    ({"w": torch.ones(4, 4), "b": torch.ones(4)},
     """no input is named 'x': input "x" of 'loss' needs it ('tensor<6x4xf32>')"""),
    ({"w": torch.ones(4, 4), "b": torch.ones(3), "x": torch.ones(6, 4)},
     """input 'b' has type 'tensor<3xf32>', but buffer "b" of 'loss' is 'tensor<4xf32>'"""),
    ({"w": torch.ones(4, 4), "b": torch.ones(4), "x": torch.ones(6, 4, dtype=torch.int64)},
     """input 'x' has elements of type 'i64', but input "x" of 'loss' is 'tensor<6x4xf32>'"""),
], ids=["missing", "shape", "type"])
def test_the_reference_names_inputs(tmp_path, inputs, message):
    from safetensors.torch import save_file
    (tmp_path / "m.mlir").write_text(model_text())
    save_file(inputs, tmp_path / "inputs")
    with pytest.raises(ToolError) as caught:
        run_tool([tool("cleave-reference"), str(tmp_path / "m.mlir"),
                  f"--inputs={tmp_path / 'inputs'}", f"--output={tmp_path / 'out'}"])
    assert message in str(caught.value)
