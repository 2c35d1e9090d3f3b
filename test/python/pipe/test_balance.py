# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The loss that balances experts follows its routing groups.

What should come out is computed from the definition, group by group: f is the part of
a group's tokens that an expert is the choice of, before any is dropped, and is not
differentiated; p its mean probability. Models of this package have a group for each
sequence, and take the mean over groups, whatever micro-batch or device each is in;
Mixtral has one group of all tokens of the batch, and needs them at once.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cleave
from cleave.testing.tools import interpret
from expert_models import Own
from expert_recipes import MAKERS
from native_pairs import agree as agree_natively
from recipe_runs import BATCH, LENGTH, agree, emit, family, random_inputs
from training_support import Case, cleave_run, double_precision, token_batches

BALANCE = 0.5


class Weighted(Own):
    """What finds its expert full is dropped, and the balance counts as much as the
    rest."""

    def __init__(self):
        super().__init__(capacity=0.75)
        self.model.balance = BALANCE


MAKERS["weighted"] = Weighted
MAKERS["mixtral-weighted"] = family("mixtral", output_router_logits=True,
                                    router_aux_loss_coef=BALANCE)


def balance_of(chosen, probabilities):
    """`e * sum(f * p)` of one group. `chosen` [n]: the experts that its tokens choose,
    in any order; `probabilities` [t, e]."""
    tokens, experts = probabilities.shape
    total = 0
    for expert in range(experts):
        f = sum(int(c) == expert for c in chosen) / tokens
        total = total + f * probabilities[:, expert].sum() / tokens
    return experts * total


def sequences(layers, choices):
    """The mean over sequences, summed over layers; the first choice counts."""
    total = 0
    for logits in layers:
        probabilities = logits.view(BATCH, LENGTH, -1).softmax(-1)
        groups = [balance_of(p.argmax(-1), p) for p in probabilities]
        total = total + sum(groups) / len(groups)
    return total


def whole_batch(layers, choices):
    """One group of the tokens of all layers, in which all choices count."""
    probabilities = torch.cat([logits.flatten(0, -2) for logits in layers]).softmax(-1)
    return balance_of(probabilities.topk(choices).indices.flatten(), probabilities)


RULES = {"weighted": (sequences, 1), "mixtral-weighted": (whole_batch, 2)}


def routers(module):
    """By name, modules that are given what routers read, and their weights."""
    named = dict(module.named_modules())
    return {key: (named[key.rpartition(".")[0] if key.endswith(".router") else key], m.weight)
            for key, m in named.items() if key.endswith((".router", "mlp.gate"))}


def by_hand(name, module, ids, labels, rule=None, weight=BALANCE):
    """The loss, and its gradients by parameter."""
    rule, choices = rule or RULES[name][0], RULES[name][1]
    read = {}
    hooks = [reader.register_forward_pre_hook(
        lambda _, given, key=key, own=own: read.update({key: F.linear(given[0], own)}))
        for key, (reader, own) in routers(module).items()]
    module.zero_grad()
    with double_precision():
        settings = {"use_cache": False} if name.startswith("mixtral") else {}
        logits = module(input_ids=ids, labels=labels, **settings).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        assert len(read) == 2
        loss = loss + weight * rule(list(read.values()), choices)
        loss.backward()
    for hook in hooks:
        hook.remove()
    return float(loss.detach()), {key: p.grad.clone() for key, p in module.named_parameters()}


def routers_of(gradients):
    found = {key: value for key, value in gradients.items()
             if key.endswith(("router.weight", "gate.weight"))}
    assert len(found) == 2
    return found


def far(first, second):
    """How far gradients are apart, of the largest."""
    largest = max(float(value.abs().max()) for value in first.values())
    return max(float((first[key] - second[key]).abs().max()) for key in first) / largest


@pytest.mark.parametrize("name", RULES)
def test_groups_matter(name):
    """The tests below can fail: without the balance, and with other groups, gradients
    of routers are others."""
    module = MAKERS[name]().train().double()
    ids = torch.randint(3, 96, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    _, own = by_hand(name, module, ids, ids)
    _, without = by_hand(name, module, ids, ids, weight=0)
    other = {sequences: whole_batch, whole_batch: sequences}[RULES[name][0]]
    _, others = by_hand(name, module, ids, ids, rule=other)
    assert far(routers_of(own), routers_of(without)) > 0.1
    assert far(routers_of(own), routers_of(others)) > 1e-3


#: Meshes, recipes and micro-batches.
GROUPED = [("", "", 1), ("", "", 2), ("", "", 4), ("pp=2", "", 1), ("pp=2", "", 2),
           ("pp=2", "", 4), ("pp=2,dp=2", "", 1), ("pp=2,dp=2", "zero1", 2),
           ("pp=2,dp=2", "", 4), ("dp=2,ep=2", "expert", 2), ("pp=2,ep=2", "expert", 4),
           ("pp=2,cp=2", "context", 2)]
WHOLE = [("", "", 1), ("pp=2", "", 1), ("pp=2,dp=2", "", 1), ("pp=2,ep=2", "expert", 1)]
CASES = [("weighted", *case) for case in GROUPED] + [("mixtral-weighted", *c) for c in WHOLE]


@pytest.mark.parametrize("name, mesh, recipe, micro_batches", CASES)
def test_gradients_are_those_of_the_definition(tmp_path, name, mesh, recipe, micro_batches):
    """In f64. Micro-batches have different numbers of labels that count."""
    program = emit(tmp_path, name, "scheduled", "--optimizer=sgd", f"--mesh={mesh}",
                   f"--plan={recipe}", f"--micro-batches={micro_batches}")
    inputs = random_inputs(emit(tmp_path, name, "step", "--optimizer=sgd"))
    inputs["labels"][:BATCH // 4, 2:] = -100
    module = MAKERS[name]().train().double()
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            parameter.copy_(torch.tensor(inputs[key]).reshape(parameter.shape))
    inputs |= {key: value.numpy() for key, value in module.named_buffers() if key in inputs}
    ids, labels = (torch.tensor(inputs[key]) for key in ("input_ids", "labels"))
    loss, expected = by_hand(name, module, ids, labels)
    results, gradients = interpret(program, inputs, entry="train")
    assert abs(float(results["loss"]) - loss) <= 1e-10 * abs(loss)
    expected = {key: value.numpy() for key, value in expected.items()}
    agree(gradients, expected)
    agree({key: gradients[key] for key in routers_of(expected)}, routers_of(expected))


NATIVE = [case for case in CASES if case[1:] in (
    ("", "", 4), ("pp=2", "", 1), ("pp=2", "", 4), ("pp=2,dp=2", "zero1", 2))]


@pytest.mark.parametrize("name, mesh, plan, micro_batches", NATIVE)
def test_gradients_are_those_of_the_definition_natively(name, mesh, plan, micro_batches):
    case = Case(lambda: MAKERS[name]().train(), token_batches(batch=BATCH, ignored=3))
    run = cleave_run(case, 1, cleave.SGD(lr=0.05, momentum=0.9), micro_batches=micro_batches,
                     mesh={axis: int(size) for axis, size in
                           (part.split("=") for part in mesh.split(",") if part)} or None,
                     plan=plan or None)
    loss, expected = by_hand(name, case.build().double(), *case.batches[0])
    np.testing.assert_allclose(run.losses, [loss], rtol=1e-4)
    agree_natively(routers_of(run.gradients), routers_of(expected), "gradient")
