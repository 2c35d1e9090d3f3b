# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A forward that sets or reads the state of random numbers is refused at its line, and what a
forward leaves in the process is taken back."""

import inspect
import warnings

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import cleave.trace
from cleave.trace import TraceError, UnsupportedError
from eager_support import X, Y, Two, compiled, nothing_is_left  # noqa: F401

seed_bound_before = torch.manual_seed


def noisy(m, x):
    return m.b(m.a(x) * torch.rand(4))


def seed(m, x):
    torch.manual_seed(5)
    return noisy(m, x)


def seed_bound(m, x):
    seed_bound_before(5)
    return noisy(m, x)


def seed_of_torch_random(m, x):
    torch.random.manual_seed(5)
    return noisy(m, x)


def seed_of_gpus(m, x):
    torch.cuda.manual_seed_all(5)
    return noisy(m, x)


def new_seed(m, x):
    torch.seed()
    return noisy(m, x)


def first_seed(m, x):
    return noisy(m, x) * (torch.initial_seed() % 7)


def fork(m, x):
    with torch.random.fork_rng(devices=[]):
        return noisy(m, x)


def read_state(m, x):
    state = torch.get_rng_state()
    y = noisy(m, x)
    torch.set_rng_state(state)
    return y


def set_state(m, x):
    torch.set_rng_state(m.state)
    return noisy(m, x)


def generator(m, x):
    return m.b(m.a(x) * torch.rand(4, generator=torch.Generator().manual_seed(1)))


def generator_in_place(m, x):
    return m.b(m.a(x) * torch.empty(4).normal_(generator=m.generator))


def generator_of_dropout(m, x):
    return m.b(m.a(x) * torch.bernoulli(torch.full((4,), 0.5), generator=m.generator))


def generator_in_vmap(m, x):
    return m.b(m.a(torch.vmap(lambda r: r + torch.rand(4, generator=m.generator),
                              randomness="same")(x)))


def numpy_generator(m, x):
    return m.b(m.a(x) * torch.from_numpy(np.random.default_rng().normal(size=4)).float())


REFUSED = (seed, seed_bound, seed_of_torch_random, seed_of_gpus, new_seed, first_seed, fork,
           read_state, set_state, generator, generator_in_place, generator_of_dropout,
           generator_in_vmap, numpy_generator)


def prepare(m):
    m.state = torch.get_rng_state()
    m.generator = torch.Generator().manual_seed(1)


@pytest.mark.parametrize("forward", REFUSED, ids=lambda f: f.__name__)
def test_the_state_of_random_numbers_is_refused(forward):
    lines, first = inspect.getsourcelines(forward)
    module, before = Two(forward, prepare), torch.get_rng_state()
    with pytest.raises(TraceError, match="random numbers.* compiled step") as caught:
        cleave.trace.trace(module, (X, Y), F.mse_loss)
    assert torch.equal(torch.get_rng_state(), before)
    assert any(f"{__file__}:{first + i}: " in str(caught.value) for i in range(1, len(lines)))


def test_the_default_generator_itself_is_refused():
    def forward(m, x):
        torch.default_generator.manual_seed(3)
        return noisy(m, x)

    with pytest.raises(TraceError, match=r"torch.default_generator"):
        cleave.trace.trace(Two(forward), (X, Y), F.mse_loss)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_may_keep_the_state(reentrant):
    def forward(m, x):
        return checkpoint(lambda v: m.b(v * torch.rand(4)), m.a(x), use_reentrant=reentrant)

    assert compiled(Two(forward))[0] != compiled(Two(forward), seed=1)[0]


# What is left -------------------------------------------------------------------------


def forward_mode(m, x):
    return torch.func.jvp(m.b, (m.a(x),), (x,))[1]


def jacobian(m, x):
    return torch.func.jacfwd(m.b)(m.a(x))[0]


def nested(m, x):
    return torch.vmap(lambda v: torch.func.jvp(m.b, (v,), (v,))[1])(m.a(x))


def linearized(m, x):
    return torch.func.linearize(m.b, m.a(x))[0]


def open_dual_level(m, x):
    forward_ad.enter_dual_level()
    return m.b(m.a(x)).sum().item()


def failing_in_vmap(m, x):
    return torch.vmap(lambda v: v * float(v.sum()))(m.a(x))


def open_autocast(m, x):
    torch.autocast("cpu").__enter__()
    raise KeyError("no such layer")


def default_type(m, x):
    torch.set_default_dtype(torch.float64)
    raise KeyError("no such layer")


def default_device(m, x):
    torch.set_default_device("cpu")
    raise KeyError("no such layer")


def no_gradients(m, x):
    torch.set_grad_enabled(False)
    raise KeyError("no such layer")


def hooks_of_all(m, x):
    nn.modules.module.register_module_forward_hook(lambda *_: None)
    raise KeyError("no such layer")


def anomalies(m, x):
    torch.autograd.set_detect_anomaly(True)
    raise KeyError("no such layer")


def deterministic(m, x):
    torch.use_deterministic_algorithms(True)
    raise KeyError("no such layer")


def warnings_are_errors(m, x):
    warnings.simplefilter("error")
    raise KeyError("no such layer")


LEAVING = (forward_mode, jacobian, nested, linearized, open_dual_level, failing_in_vmap,
           open_autocast, default_type, default_device, no_gradients, hooks_of_all, anomalies,
           deterministic, warnings_are_errors)


@pytest.mark.parametrize("forward", LEAVING, ids=lambda f: f.__name__)
def test_a_refused_model_leaves_nothing(forward):
    """`nothing_is_left` compares the state of the process."""
    filters = list(warnings.filters)
    with pytest.raises((TraceError, UnsupportedError)):
        cleave.trace.trace(Two(forward), (X, Y), F.mse_loss)
    assert warnings.filters == filters
    compiled(Two())
