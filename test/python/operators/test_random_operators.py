# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Each operator of torch that draws random numbers is compiled, and compared with eager PyTorch on
the same numbers, or refused with what to do. The operators are those of torch's own tag."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.trace import TraceError, UnsupportedError
from random_draws import Drawing, check_draws

#: Two layers with dropout between them.
GRU, LSTM, TANH, RELU = (
    kind(6, 6, 2, batch_first=True, dropout=0.4, **options).requires_grad_(False) for kind, options
    in ((nn.GRU, {}), (nn.LSTM, {}), (nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"})))

#: What is drawn, of y, which depends on parameters, and of x.
DRAWN = {
    "alpha_dropout": lambda y, x: F.alpha_dropout(y, 0.3, training=True) * x,
    "bernoulli": lambda y, x: y * torch.bernoulli(x.sigmoid()) * torch.bernoulli(x, 0.7),
    "bernoulli_": lambda y, x: y * torch.empty_like(x).bernoulli_(0.3),
    "cauchy": lambda y, x: y * torch.empty_like(y).cauchy_().tanh(),
    "dropout": lambda y, x: F.dropout(y, 0.3) * x,
    "exponential": lambda y, x: y * torch.empty_like(y).exponential_(2.0),
    "feature_alpha_dropout": lambda y, x: F.feature_alpha_dropout(
        y[:, :, None], 0.3, training=True)[..., 0],
    "feature_dropout": lambda y, x: F.dropout1d(y[:, :, None], 0.3)[..., 0],
    "geometric": lambda y, x: y * torch.empty_like(y).geometric_(0.3),
    "gru": lambda y, x: GRU(y[None])[0][0],
    "log_normal": lambda y, x: y * torch.empty_like(y).log_normal_(0.0, 0.5),
    "lstm": lambda y, x: LSTM(y[None])[0][0],
    "multinomial": lambda y, x: y.gather(1, torch.multinomial(x.sigmoid(), 3)) * x[:, :3],
    "multinomial, replaced": lambda y, x: y.gather(1, torch.multinomial(
        F.relu(x) + (x < 0.1), 4, replacement=True)) * x[:, :4],
    "multinomial, of one row": lambda y, x: y[:, torch.multinomial(x[0].exp(), 5, True)],
    "multinomial, categorical": lambda y, x: y.gather(1, torch.distributions.Categorical(
        logits=x).sample()[:, None]),
    "native_dropout": lambda y, x: torch.native_dropout(y, 0.3, True)[0] * x,
    "normal": lambda y, x: y * torch.normal(x, x.abs()) + y * torch.normal(1.0, 2.0, x.shape),
    "normal_": lambda y, x: y * torch.empty_like(y).normal_(1.0, 2.0),
    "rand": lambda y, x: y * torch.rand(y.shape),
    "rand_like": lambda y, x: y * torch.rand_like(y),
    "randint": lambda y, x: y.gather(1, torch.randint(0, 6, y.shape)) * x,
    "randint_like": lambda y, x: y * torch.randint_like(y, 2, 6),
    "randn": lambda y, x: y * torch.randn(y.shape),
    "randn_like": lambda y, x: y * torch.randn_like(y),
    "random": lambda y, x: y * torch.empty_like(y).random_(2, 6) * torch.empty_like(y).random_(5),
    "randperm": lambda y, x: y[torch.randperm(y.shape[0])] * x,
    "rnn_relu": lambda y, x: RELU(y[None])[0][0],
    "rnn_tanh": lambda y, x: TANH(y[None])[0][0],
    "rrelu": lambda y, x: F.rrelu(y, 0.1, 0.9, training=True) * x,
    "rrelu_with_noise": lambda y, x: torch.rrelu_(y * x, 0.1, 0.9, training=True),
    "scaled_dot_product_attention": lambda y, x: F.scaled_dot_product_attention(
        y[None], x[None], y[None], dropout_p=0.2)[0],
    "uniform": lambda y, x: y * torch.empty_like(y).uniform_(-1, 2),
}
WITHOUT = r"a fixed number; give them as an input, or draw them by torch\.normal"
#: Refused code, and the text.
REFUSED = {
    "_sample_dirichlet": (lambda y, x: y * torch._sample_dirichlet(x.exp()), WITHOUT),
    "_standard_gamma": (lambda y, x: y * torch._standard_gamma(y.exp()), WITHOUT),
    "binomial": (lambda y, x: y * torch.binomial(x.abs().ceil(), x.sigmoid()), WITHOUT),
    "poisson": (lambda y, x: y * torch.poisson(x.exp()), WITHOUT),
    "random, of a type": (lambda y, x: y * torch.empty_like(y).random_(), r"random_\(0, n\)"),
    "randint_like, of a tensor": (
        lambda y, x: y * torch.randint_like(y, torch.tensor(5)), r"torch\.rand_like"),
    "rand, of a generator": (
        lambda y, x: y * torch.rand(y.shape, generator=torch.Generator()), "generator of its own"),
}
#: Operators of other devices, and those that torch calls itself within others.
WITHIN = ("_cudnn", "_lstm_mps", "miopen", "_triton", "_nested", "_fused", "_fill_mem_eff",
          "_flash_attention", "_efficient_attention", "_scaled_dot_product")


def tagged():
    """The names of the operators with torch's tag."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        space, _, name = name.partition("::")
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if space == "aten" and op is not None and torch.Tag.nondeterministic_seeded in op.tags:
            found.add(packet)
    return found


def test_each_operator_of_the_tag_is_listed():
    known = {name.partition(",")[0].rstrip("_") for name in (*DRAWN, *REFUSED)}
    names = {name.rstrip("_").removesuffix("_functional") for name in tagged()}
    assert len(names) > 40 and "multinomial" in names
    assert {n for n in names - known if not n.startswith(WITHIN)} == set()


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_is_compiled(name):
    check_draws(Drawing(DRAWN[name]), torch.randn(32, 6))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_do(name):
    draw, message = REFUSED[name]
    with pytest.raises((TraceError, UnsupportedError), match=message) as caught:
        cleave.trace.trace(Drawing(draw), (torch.randn(8, 6),))
    assert f"{__file__}:{draw.__code__.co_firstlineno}" in str(caught.value)


#: Samples of the distributions of torch, of y, which depends on parameters, and of x.
D = torch.distributions
SAMPLES = {
    "Bernoulli": lambda y, x: y * D.Bernoulli(x.sigmoid()).sample(),
    "Categorical": lambda y, x: y * D.Categorical(logits=x).sample()[:, None],
    "Cauchy": lambda y, x: D.Cauchy(y, x.exp()).rsample().tanh(),
    "ContinuousBernoulli": lambda y, x: D.ContinuousBernoulli(y.sigmoid()).rsample(),
    "Exponential": lambda y, x: D.Exponential(y.exp()).rsample(),
    "Exponential, of one dimension": lambda y, x: D.Exponential(y[0].exp()).rsample(),
    "GeneralizedPareto": lambda y, x: D.GeneralizedPareto(y, x.exp(), x.sigmoid() / 4).rsample(),
    "Geometric": lambda y, x: y * D.Geometric(x.sigmoid()).sample().clamp(max=9),
    "Gumbel": lambda y, x: D.Gumbel(y, x.exp()).rsample().tanh(),
    "HalfCauchy": lambda y, x: D.HalfCauchy(y.exp()).rsample().tanh(),
    "HalfNormal": lambda y, x: D.HalfNormal(y.exp()).rsample(),
    "Independent": lambda y, x: D.Independent(D.Normal(y, x.exp()), 1).rsample(),
    "Kumaraswamy": lambda y, x: D.Kumaraswamy(y.exp(), x.exp()).rsample(),
    "Laplace": lambda y, x: D.Laplace(y, x.exp()).rsample(),
    "LogNormal": lambda y, x: D.LogNormal(y, x.sigmoid()).rsample(),
    "LogisticNormal": lambda y, x: D.LogisticNormal(y, x.exp()).rsample(),
    "LowRankMultivariateNormal": lambda y, x: D.LowRankMultivariateNormal(
        y, x[..., None], x.exp()).rsample(),
    "MixtureSameFamily": lambda y, x: y * D.MixtureSameFamily(
        D.Categorical(logits=x), D.Normal(y, x.exp())).sample()[:, None],
    "MultivariateNormal": lambda y, x: D.MultivariateNormal(y, torch.eye(6)).rsample(),
    "Normal": lambda y, x: D.Normal(y, x.exp()).rsample((2,)),
    "OneHotCategorical": lambda y, x: y * D.OneHotCategorical(logits=x).sample(),
    "OneHotCategoricalStraightThrough": lambda y, x: D.OneHotCategoricalStraightThrough(
        logits=y).rsample() * x,
    "Pareto": lambda y, x: D.Pareto(y.exp(), x.exp()).rsample().log(),
    "RelaxedBernoulli": lambda y, x: D.RelaxedBernoulli(torch.tensor(1.0), logits=y).rsample(),
    "RelaxedOneHotCategorical": lambda y, x: D.RelaxedOneHotCategorical(
        torch.tensor(1.0), logits=y).rsample(),
    "TransformedDistribution": lambda y, x: D.TransformedDistribution(
        D.Normal(y, x.exp()), D.transforms.TanhTransform()).rsample(),
    "Uniform": lambda y, x: D.Uniform(y, y + x.exp()).rsample(),
    "Weibull": lambda y, x: D.Weibull(y.exp(), x.exp()).rsample().log(),
    "new, of a size": lambda y, x: y + x.new(x.size()).fill_(2.0) + x[0].new(y[0].shape).zero_(),
}
VALUES = r"depends on the values of a tensor"
#: Those that are refused, and the text.
NOT_SAMPLED = {
    "Beta": (lambda y, x: D.Beta(y.exp(), x.exp()).rsample(), WITHOUT),
    "Binomial": (lambda y, x: y * D.Binomial(5, x.sigmoid()).sample(), WITHOUT),
    "Chi2": (lambda y, x: D.Chi2(y.exp()).rsample(), WITHOUT),
    "Dirichlet": (lambda y, x: D.Dirichlet(y.exp()).rsample(), WITHOUT),
    "FisherSnedecor": (lambda y, x: D.FisherSnedecor(y.exp(), x.exp()).rsample(), WITHOUT),
    "Gamma": (lambda y, x: D.Gamma(y.exp(), x.exp()).rsample(), WITHOUT),
    "Gamma, sampled": (lambda y, x: y * D.Gamma(x.exp(), x.exp()).sample(), WITHOUT),
    "InverseGamma": (lambda y, x: D.InverseGamma(y.exp(), x.exp()).rsample(), WITHOUT),
    "LKJCholesky": (lambda y, x: y[:6] * D.LKJCholesky(6, 1.0).sample(), WITHOUT),
    "Multinomial": (lambda y, x: y * D.Multinomial(5, logits=x).sample(), "scatter_add of integers"),
    "NegativeBinomial": (lambda y, x: y * D.NegativeBinomial(5, x.sigmoid()).sample(), WITHOUT),
    "Poisson": (lambda y, x: y * D.Poisson(x.exp()).sample(), WITHOUT),
    "StudentT": (lambda y, x: D.StudentT(y.exp()).rsample(), WITHOUT),
    "VonMises": (lambda y, x: y * D.VonMises(x, x.exp()).sample(), VALUES),
    "Wishart": (lambda y, x: y[:6] * D.Wishart(torch.tensor(7.0), torch.eye(6)).rsample(), VALUES),
}


def test_each_distribution_is_listed():
    known = {name.partition(",")[0] for name in (*SAMPLES, *NOT_SAMPLED)}
    abstract = {"Distribution", "ExponentialFamily"}
    names = {n for n in D.__all__ if isinstance(getattr(D, n), type)
             and issubclass(getattr(D, n), D.Distribution)}
    assert len(names) > 30 and names - known == abstract


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_of_distributions_are_those_of_eager_code(name):
    """On the same numbers, with the gradients that the parameters of a distribution have."""
    module, x = Drawing(SAMPLES[name]), torch.randn(8, 6)
    step = cleave.compile(module, (x,), target=cleave.Target(threads=1),
                          optimizer=cleave.SGD(lr=0.01), check="on")
    assert all(torch.isfinite(torch.tensor(float(step(x)))) for _ in range(3))


@pytest.mark.parametrize("name", NOT_SAMPLED)
def test_distributions_are_refused_at_their_line(name):
    draw, message = NOT_SAMPLED[name]
    with pytest.raises((TraceError, UnsupportedError), match=message) as caught:
        cleave.trace.trace(Drawing(draw), (torch.randn(8, 6),))
    assert f"{__file__}:{draw.__code__.co_firstlineno}" in str(caught.value)


@pytest.mark.parametrize("replacement", [False, True])
def test_multinomial_draws_by_its_weights(replacement):
    """The frequency of each class, none of a weight of 0, and none twice without replacement."""
    values = torch.tensor([0.0, 1.0, 10.0, 0.0, 100.0, 0.0])
    weights = torch.tensor([[0.0, 1.0, 2.0, 0.0, 5.0, 0.0]]).repeat(512, 1)

    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            drawn = F.one_hot(torch.multinomial(x, 2, replacement), 6)
            wrong = drawn[..., [0, 3, 5]].sum() + (0 if replacement else (drawn.sum(1) > 1).sum())
            return self.a.sum() + drawn[:, 0].float().mean(0) @ values + 1e6 * wrong

    step = cleave.compile(Counted(), (weights,), target=cleave.Target(threads=1),
                          optimizer=cleave.SGD(lr=0.0))
    found = torch.tensor([float(step(weights)) for _ in range(20)])
    right = (1 * 1 + 2 * 10 + 5 * 100) / 8
    assert abs(found.mean() - right) < 5 * found.std() / 20 ** 0.5 and found.std() > 0
    if not replacement:
        with pytest.raises(cleave.StepError, match="multinomial needs weights"):
            step(-weights)
