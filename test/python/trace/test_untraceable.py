# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models that torch.export cannot follow are refused at their lines, with readable messages."""

import inspect

import pytest
import torch
import torch.nn.functional as F

import cleave.trace
from cleave.trace import TraceError, UnsupportedError, locations
from eager_support import X, Y, Two, compiled, eager, nothing_is_left, same  # noqa: F401

PLACES = torch.tensor([1])


def dynamic(m, x):
    return m.b(m.a(x)) + torch.ops.aten.nonzero_numpy(x)[0].sum()


def written_statistics(m, x):
    return m.b(F.batch_norm(m.a(x), x[0].new_zeros(4), x[0], training=True))


def written_input(m, x):
    return m.b(m.a(x.mul_(2)))


def refused_by_the_model(m, x):
    raise KeyError("no such layer")


def refused_by_an_operator(m, x):
    return m.b(m.a(x) @ torch.ones(3, 4))


CASES = {
    dynamic: "depends on the values of a tensor",
    written_statistics: r"writes to its inputs? .*x",
    written_input: r"writes to its input 'x'",
    refused_by_the_model: "KeyError: 'no such layer'",
    refused_by_an_operator: "reduction dim",
}


@pytest.mark.parametrize("forward", CASES, ids=lambda f: f.__name__)
def test_refused_at_its_line(forward):
    lines, first = inspect.getsourcelines(forward)
    with pytest.raises((TraceError, UnsupportedError), match=CASES[forward]) as caught:
        cleave.trace.trace(Two(forward), (X, Y), F.mse_loss)
    assert f"{__file__}:{first + len(lines) - 1}: " in str(caught.value)
    if forward is not refused_by_the_model:
        assert not any(word in str(caught.value) for word in ("Error:", "Exception:", "Fake"))


def number_under_no_grad(m, x):
    with torch.no_grad():
        return m.b(m.a(x)) * torch.zeros(8)[x[0].argmax().item()]


def rows_under_no_grad(m, x):
    with torch.no_grad():
        return m.b(m.a(x)) * x[x > 0].sum()


def without_conversion_under_no_grad(m, x):
    with torch.no_grad():
        return m.b(m.a(x)) * torch.digamma(m.a(x))


def condition_under_no_grad(m, x):
    with torch.no_grad():
        return m.b(x) if (m.a(x) > 0).all() else m.a(x)


def written_rows(m, x):
    y = m.b(x).clone()
    y[x[:, 0] > 0] = m.a.weight[:2]
    return y


def rows_before_a_loss(m, x):
    y, labels = m.b(m.a(x)), x.argmax(1)
    return F.cross_entropy(y[x[:, 0] > 0], labels[x[:, 0] > 0])


VALUES = "depends on the values of a tensor"
#: Where the line is, from the last one, and what is said.
MASKS = {
    number_under_no_grad: (0, VALUES), rows_under_no_grad: (0, VALUES),
    condition_under_no_grad: (0, VALUES), without_conversion_under_no_grad: (0, "no conversion"),
    written_rows: (1, "boolean mask; use torch.where"),
    rows_before_a_loss: (0, r"label -100 \(ignore_index\)"),
}


@pytest.mark.parametrize("forward", MASKS, ids=lambda f: f.__name__)
def test_values_and_masks_are_refused_at_their_line(forward):
    """Also under no_grad, whose operators are a graph of their own."""
    lines, first = inspect.getsourcelines(forward)
    above, message = MASKS[forward]
    with pytest.raises((TraceError, UnsupportedError), match=message) as caught:
        cleave.trace.trace(Two(forward), (X, Y), lambda out, y: (out - y.sum()).square().mean())
    assert f"{__file__}:{first + len(lines) - 1 - above}: " in str(caught.value)


@pytest.mark.parametrize("error, text", [
    (AssertionError("expected a functional graph"),
     "torch fails with 'expected a functional graph'"),
    (LookupError(), "torch fails with 'no message'"),
    (RuntimeError("shapes cannot be multiplied\n\nSet TORCH_LOGS"), "shapes cannot be multiplied"),
])
def test_errors_within_torch_have_a_line(error, text):
    """Of the operator that they name, where nothing of the model was running."""
    def fail():
        raise error

    code = fail.__code__.replace(co_filename=torch.__file__)
    try:
        type(fail)(code, {}, closure=fail.__closure__)()
    except Exception as caught:
        caught.__traceback__ = caught.__traceback__.tb_next
        if caught.args:
            caught.args = (f'{caught.args[0]}\n\nOriginal traceback:\n  File "model.py", line 7, in forward',)
            text = "model.py:7: " + text
        assert locations.untraceable(caught).startswith(
            f"torch.export cannot follow the model: {text}")


def covariance(m, x):
    return m.b(m.a(x)) + torch.cov(m.a(x)[:4], aweights=x[0].abs()).sum(0)


def correlation(m, x):
    return m.b(m.a(x)) + m.a.weight.corrcoef().sum(0)


def combinations(m, x):
    return m.b(m.a(x)) + torch.combinations(m.a.bias, 3, with_replacement=True).sum(0).mean()


def narrow(m, x):
    return m.b(m.a(x)) + torch.narrow(m.a.weight, 0, PLACES[0], 2).sum(0)


@pytest.mark.parametrize("forward", [covariance, correlation, combinations, narrow],
                         ids=lambda f: f.__name__)
def test_functions_that_only_check_values_are_traced(forward):
    module = Two(forward)
    same(compiled(module), eager(module))


@pytest.mark.parametrize("role", ["parameter", "buffer"])
def test_tensors_of_the_model_without_elements_are_named(role):
    module = Two(lambda m, x: torch.cat([m.empty, m.b(m.a(x))]))
    empty = torch.zeros(0, 4)
    if role == "parameter":
        module.empty = torch.nn.Parameter(empty)
    else:
        module.register_buffer("empty", empty)
    if role == "parameter":
        with pytest.raises(TraceError, match=r"parameter 'empty' of \[0, 4\] has no elements"):
            cleave.trace.trace(module, (X, Y), F.mse_loss)
    else:
        # Nothing of it is read.
        cleave.trace.trace(module, (X, Y), F.mse_loss)


class Shared(torch.nn.Module):
    """A normalisation in two places."""

    def __init__(self):
        super().__init__()
        norm = torch.nn.BatchNorm1d(4)
        self.a, self.b = (torch.nn.Sequential(torch.nn.Linear(4, 4), norm) for _ in range(2))

    def forward(self, x):
        return self.b(self.a(x))


def test_written_buffers_with_two_names_are_named():
    with pytest.raises(TraceError, match="buffers 'a.1.running_mean' and 'b.1.running_mean' are one"):
        cleave.trace.trace(Shared(), (X, Y), F.mse_loss)


def test_buffers_of_a_type_without_equivalent_are_named():
    module = Two(lambda m, x: m.b(m.a(x)) * m.scale[:4],
                 lambda m: m.register_buffer("scale", torch.ones(200, dtype=torch.uint8)))
    with pytest.raises(TraceError, match="buffer 'scale': element type torch.uint8 has no equiv"):
        cleave.trace.trace(module, (X, Y), F.mse_loss)


# Values of tensors --------------------------------------------------------------------


def masked_parameter(m, x):
    return m.b(m.a(x)) + m.a.weight[m.a.weight > 0].sum()


def masked_input(m, x):
    return m.b(m.a(x)) + x[x > 0].sum()


def nonzero(m, x):
    return m.b(m.a(x)) + m.a.bias[x[0].nonzero()].sum()


def unique(m, x):
    return m.b(m.a(x)) + torch.unique(x.long()).sum()


def item(m, x):
    return m.b(m.a(x)) * x[0, 0].item()


def to_list(m, x):
    return m.b(m.a(x)) * sum(x[0].tolist())


def to_numpy(m, x):
    return m.b(m.a(x)) * float(x.numpy().sum())


def sizes_of_parts(m, x):
    counts = (x > 0).long().sum(0).tolist()
    return m.b(m.a(x)) * sum(part.sum() for part in m.a(x).split(counts, 1))


def number_of_rows(m, x):
    return m.b(m.a(x)[:(x[:, 0] > 0).sum().item()]).sum()


def condition(m, x):
    return m.b(m.a(x)) if x.sum() > 0 else m.b(x)


def tensor_of_tensors(m, x):
    return m.b(m.a(x)) * torch.tensor([x.sum(), x.mean()]).sum()


@pytest.mark.parametrize("forward", [masked_parameter, masked_input, nonzero, unique, item,
                                     to_list, to_numpy, number_of_rows, condition,
                                     tensor_of_tensors],
                         ids=lambda f: f.__name__)
def test_what_depends_on_values_is_refused_at_its_line(forward):
    lines, first = inspect.getsourcelines(forward)
    with pytest.raises((TraceError, cleave.trace.UnsupportedError)) as caught:
        cleave.trace.trace(Two(forward), (X, Y), F.mse_loss)
    text = str(caught.value)
    assert f"{__file__}:{first + len(lines) - 1}: " in text and "depends on the values" in text
    assert "torch.where" in text and "GuardOn" not in text and "Fake" not in text


def test_sizes_read_from_values_are_refused_where_they_are_read():
    """Torch's own checks of them are not conditions of the model."""
    first = inspect.getsourcelines(sizes_of_parts)[1]
    with pytest.raises(UnsupportedError, match="depends on the values of a tensor") as caught:
        cleave.trace.trace(Two(sizes_of_parts), (X, Y), F.mse_loss)
    assert f"{__file__}:{first + 1}: " in str(caught.value)


# Questions ----------------------------------------------------------------------------


def needs_a_mask(m, x, mask=None):
    if mask is None and not torch.compiler.is_compiling():
        mask = x > 0
    return m.b(m.a(x) * mask[:, :1])


def misspelt(m, x):
    return m.b(m.a(x)).no_such_attribute if torch.compiler.is_compiling() else m.b(m.aa(x))


def test_code_for_compilers_that_fails_is_not_taken():
    asked = torch.compiler.is_compiling
    same(compiled(Two(needs_a_mask)), eager(Two(needs_a_mask)))
    assert torch.compiler.is_compiling is asked


def test_code_that_fails_in_both_ways_is_refused():
    with pytest.raises(TraceError, match="has no attribute 'aa'"):
        cleave.trace.trace(Two(misspelt), (X, Y), F.mse_loss)


def branch_that_reads_a_number(m, x):
    if (m.a(x) > 0).all():
        x = x[:int(x[0, 0])]
    return m.b(m.a(x))


@pytest.mark.parametrize("forward", [branch_that_reads_a_number, item, rows_under_no_grad],
                         ids=lambda f: f.__name__)
def test_a_refusal_prints_nothing_else(forward, capfd):
    with pytest.raises((TraceError, UnsupportedError)):
        cleave.trace.trace(Two(forward), (X, Y), F.mse_loss)
    assert capfd.readouterr() == ("", "")
