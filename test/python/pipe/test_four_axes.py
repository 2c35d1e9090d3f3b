# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A pipeline, data, tensor and context parallelism at once, on sixteen ranks, in f64 by the
interpreter.

Loss, every gradient, every updated weight and all optimizer state agree to 1e-10 with those
of one device, dropout on; without dropout losses, gradients and weights agree with
PyTorch's. By default each schedule meets each plan, on an order of the axes, a model and an
optimizer that are drawn; with ``CLEAVE_TEST_ALL=1`` on every order and model.
"""

import re

import numpy as np
import pytest
import torch

import expert_recipes  # noqa: F401 (its models)
from cleave.testing.tools import ToolError, interpret, run_tool, tool
from fault_draws import NUMBERS, draw
from four_axes import MICRO_BATCHES, MODELS, ORDERS, PLANS, drawn, every_case
from pipeline_cases import SCHEDULES
from pipeline_runs import check_scheduled
from recipe_runs import BATCH, LENGTH, MAKERS, OPTIMIZERS, agree, emit, family, random_inputs
from training_support import ALL, Run, assert_close, torch_run
from training_support import family as family_case

MESH = "pp=2,dp=2,cp=2,tp=2"
DRAWN = drawn(seed=4)

#: Without dropout, which PyTorch draws otherwise.
STILL = ("gpt2", "llama", "bert")
MAKERS.update({f"{name}-still": family(name) for name in STILL})


def test_schedules_are_all_that_are_synchronous():
    rows = run_tool([tool("cleave-compile"), "--schedule=help"]).splitlines()[1:]
    names = {row.split()[0] for row in rows if re.match(r"\S+ +(\d|--virtual-stages)", row)}
    assert names == {*SCHEDULES, "pipedream"}


def test_the_draw_has_all_of_each():
    assert {(case.schedule, case.plan) for case in DRAWN} == {
        (schedule, plan) for schedule in SCHEDULES for plan in PLANS}
    assert {case.order for case in DRAWN} == set(ORDERS)
    assert {case.model for case in DRAWN} == set(MODELS)
    assert {case.optimizer for case in DRAWN} == set(OPTIMIZERS)


def axes_of(program):
    """The axes over which ranks exchange values: each by itself or with others."""
    exchanges = re.findall(r"spmd\.(?:all_reduce|all_gather|reduce_scatter|all_to_all|permute) "
                           r".*?(?:\{([^}]*)\}|<@mesh, \[([^\]]*)\]>)", program)
    return {axis for found in exchanges for axis in re.findall(r'"(\w+)"', "".join(found))}


@pytest.mark.parametrize("case", every_case() if ALL else DRAWN, ids=str)
def test_sixteen_ranks_equal_one_device(tmp_path_factory, case):
    program = check_scheduled(
        tmp_path_factory, case.model, case.mesh, case.recipe, case.optimizer,
        case.micro_batches, flags=[f"--schedule={case.schedule}", f"--virtual-stages={case.chunks}"])
    assert f"pipe.stages = {2 * case.chunks}" in program
    assert axes_of(program) >= {"dp", "cp", "tp"}


LR = 0.125
EAGER = {
    "sgd": lambda module: torch.optim.SGD(module.parameters(), lr=LR, momentum=0.9),
    "adamw": lambda module: torch.optim.AdamW(module.parameters(), lr=LR, eps=1e-3,
                                              weight_decay=0.1),
}


def own_run(step, program, case, steps):
    """`steps` steps of `program` by the interpreter, from the weights of a case and without
    optimizer state; `step` is the text of the phase `step`."""
    module = case.build().double()
    weights = {name: tensor.detach().numpy() for name, tensor in module.named_parameters()}
    values = {name: np.zeros_like(value) for name, value in random_inputs(step).items()}
    values.update({name: tensor.numpy() for name, tensor in module.named_buffers()
                   if name in values}, lr=np.array(LR, np.float32), **weights)
    run = Run([], {}, {}, [])
    for number in range(steps):
        ids, labels = case.batches[number]
        values.update(input_ids=ids.numpy(), labels=labels.numpy())
        if "step" in values:
            values["step"] = np.array(number + 1)
        results, gradients = interpret(program, values, entry="train")
        run.losses.append(float(results["loss"]))
        run.norms += [float(results["grad_norm"])] if "grad_norm" in results else []
        run.gradients = run.gradients or gradients
        values.update({name: value for name, value in results.items() if name in values})
    run.updates = {name: values[name].reshape(old.shape) - old for name, old in weights.items()}
    return run


@pytest.mark.parametrize("name", STILL if ALL else STILL[:2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("plan", PLANS)
def test_sixteen_ranks_equal_pytorch(tmp_path, plan, optimizer, name):
    """Over two steps, of which the second reads what the first one left."""
    flags = OPTIMIZERS[optimizer]
    schedule = ["zb-v", "1f1b", "interleaved"][STILL.index(name)]
    program = emit(tmp_path, f"{name}-still", "scheduled", *flags, f"--mesh={MESH}",
                   f"--plan={PLANS[plan]}", f"--micro-batches={MICRO_BATCHES}",
                   f"--schedule={schedule}")
    case = family_case(name, batch=BATCH, length=LENGTH)
    own = own_run(emit(tmp_path, f"{name}-still", "step", *flags), program, case, steps=2)
    eager = torch_run(case, 2, EAGER[optimizer], double=True,
                      clip=0.5 if optimizer == "sgd" else None)
    assert_close(own.losses, eager.losses, rtol=1e-10)
    assert_close(own.norms, eager.norms, rtol=1e-10)
    for found, expected in ((own.gradients, eager.gradients), (own.updates, eager.updates)):
        agree(found, {name: tensor.numpy() for name, tensor in expected.items()})


@pytest.mark.parametrize("plan", PLANS)
def test_faults_on_sixteen_ranks_are_found(tmp_path, plan):
    """The verifier rejects a collective that is wrong, or the results are."""
    found = draw(tmp_path, "gpt2", MESH, PLANS[plan], 60 if ALL else 10, seed=5)
    assert found["movements"] > 50
    for fault, tally in found["classes"].items():
        wrong = tally["drawn"] - tally["equivalent"]
        assert fault in NUMBERS or tally["rejected"] >= 0.95 * wrong, (fault, tally)


@pytest.mark.parametrize("plan, message", [
    ("megatron,ring,ulysses", '"cp": name one of them'),
    ("megatron,ring(tp),zero1", "split features and the sequence over axis \"tp\""),
    ("megatron,ulysses,dp(tp)", "split features and samples over axis \"tp\""),
    ("megatron,ring,zero1(pp)", '"pp", whose positions are stages of a pipeline'),
])
def test_an_axis_does_one_thing(tmp_path, plan, message):
    with pytest.raises(ToolError, match=message):
        emit(tmp_path, "gpt2", "scheduled", f"--mesh={MESH}", f"--plan={plan}",
             "--micro-batches=2")
