"""``torch.distributions`` with parameters on maca, against the same on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from running import close
from torch import distributions as D

pytestmark = pytest.mark.supports("torch.distributions")

POSITIVE = torch.tensor([0.7, 1.5, 3.0])
REAL = torch.tensor([-1.0, 0.25, 2.0])
PROBABILITY = torch.tensor([0.2, 0.5, 0.9])
MATRIX = torch.tensor([[2.0, 0.5, 0.1], [0.5, 1.5, 0.2], [0.1, 0.2, 1.0]])

# name -> parameters -> distribution
FAMILIES: dict[str, tuple[list[torch.Tensor], Any]] = {
    "Bernoulli": ([PROBABILITY], D.Bernoulli),
    "Beta": ([POSITIVE, POSITIVE.flip(0)], D.Beta),
    "Binomial": ([PROBABILITY], lambda p: D.Binomial(10, p)),
    "Categorical": ([PROBABILITY], D.Categorical),
    "Cauchy": ([REAL, POSITIVE], D.Cauchy),
    "Chi2": ([POSITIVE], D.Chi2),
    "ContinuousBernoulli": ([PROBABILITY - 0.05], D.ContinuousBernoulli),
    "Dirichlet": ([POSITIVE], D.Dirichlet),
    "Exponential": ([POSITIVE], D.Exponential),
    "FisherSnedecor": ([POSITIVE + 5, POSITIVE + 5], D.FisherSnedecor),
    "Gamma": ([POSITIVE, POSITIVE.flip(0)], D.Gamma),
    "Geometric": ([PROBABILITY], D.Geometric),
    "Gumbel": ([REAL, POSITIVE], D.Gumbel),
    "HalfCauchy": ([POSITIVE], D.HalfCauchy),
    "HalfNormal": ([POSITIVE], D.HalfNormal),
    "Independent": ([REAL, POSITIVE], lambda m, s: D.Independent(D.Normal(m, s), 1)),
    "InverseGamma": ([POSITIVE + 3, POSITIVE], D.InverseGamma),
    "Kumaraswamy": ([POSITIVE, POSITIVE.flip(0)], D.Kumaraswamy),
    "LKJCholesky": ([POSITIVE[:1]], lambda c: D.LKJCholesky(3, c)),
    "Laplace": ([REAL, POSITIVE], D.Laplace),
    "LogNormal": ([REAL / 4, POSITIVE / 4], D.LogNormal),
    "LogisticNormal": ([REAL, POSITIVE], D.LogisticNormal),
    "LowRankMultivariateNormal": ([REAL, MATRIX[:, :2], POSITIVE], D.LowRankMultivariateNormal),
    "MixtureSameFamily": (
        [PROBABILITY, REAL, POSITIVE],
        lambda p, m, s: D.MixtureSameFamily(D.Categorical(p), D.Normal(m, s)),
    ),
    "Multinomial": ([PROBABILITY], lambda p: D.Multinomial(10, p)),
    "MultivariateNormal": ([REAL, MATRIX], D.MultivariateNormal),
    "NegativeBinomial": ([POSITIVE * 4, PROBABILITY / 2], D.NegativeBinomial),
    "Normal": ([REAL, POSITIVE], D.Normal),
    "OneHotCategorical": ([PROBABILITY], D.OneHotCategorical),
    "OneHotCategoricalStraightThrough": ([PROBABILITY], D.OneHotCategoricalStraightThrough),
    "Pareto": ([POSITIVE, POSITIVE + 4], D.Pareto),
    "Poisson": ([POSITIVE], D.Poisson),
    "RelaxedBernoulli": ([POSITIVE[:1], PROBABILITY], D.RelaxedBernoulli),
    "RelaxedOneHotCategorical": ([POSITIVE[:1], PROBABILITY], D.RelaxedOneHotCategorical),
    "StudentT": ([POSITIVE + 4], D.StudentT),
    "TransformedDistribution": (
        [REAL, POSITIVE],
        lambda m, s: D.TransformedDistribution(
            D.Uniform(torch.zeros_like(m), 1), [D.SigmoidTransform().inv, D.AffineTransform(m, s)]
        ),
    ),
    "Uniform": ([REAL, POSITIVE + 3], D.Uniform),
    "VonMises": ([REAL, POSITIVE], D.VonMises),
    "Weibull": ([POSITIVE, POSITIVE.flip(0)], D.Weibull),
    "Wishart": ([POSITIVE[2:] + 60, MATRIX], D.Wishart),
}
# without moments, or where PyTorch gives none that samples could be compared with
NO_MOMENTS = {"Cauchy", "HalfCauchy", "Categorical", "LogisticNormal", "RelaxedBernoulli",
              "RelaxedOneHotCategorical", "LKJCholesky", "StudentT", "TransformedDistribution", "VonMises"}  # fmt: skip


def test_every_family_is_here() -> None:
    named = {
        n for n in D.__all__ if isinstance(getattr(D, n), type) and issubclass(getattr(D, n), D.Distribution)
    }
    rest = named - set(FAMILIES) - {"Distribution", "ExponentialFamily", "GeneralizedPareto"}
    assert not rest, rest


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name: str) -> None:
    """Samples lie in the support and have the host's moments; log_prob, entropy and their gradients are the host's."""
    parameters, make = FAMILIES[name]
    ours = [p.maca().requires_grad_() for p in parameters]
    host = [p.clone().requires_grad_() for p in parameters]
    mine, theirs = make(*ours), make(*host)
    assert mine.batch_shape == theirs.batch_shape and mine.event_shape == theirs.event_shape
    samples = mine.sample((4000,))
    assert samples.device.type == "maca" and samples.shape == theirs.sample((4000,)).shape
    assert not samples.requires_grad and mine.support.check(samples).all()
    if name not in NO_MOMENTS:
        deviation = theirs.variance.detach().sqrt()
        error = (samples.cpu().mean(0) - theirs.mean.detach()).abs() / (deviation + 1e-3)
        assert error.max() < 6 / 4000**0.5 * 1.5, error
    few = samples[:20]
    log_prob, expected = mine.log_prob(few), theirs.log_prob(few.cpu())
    close(log_prob, expected, rtol=2e-4, atol=2e-4)
    log_prob.sum().backward()
    expected.sum().backward()
    for a, b in zip(ours, host):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            close(a.grad, b.grad, rtol=1e-3, atol=1e-3)
    try:
        entropy = theirs.entropy()
    except NotImplementedError:
        with pytest.raises(NotImplementedError):
            mine.entropy()
    else:
        close(mine.entropy(), entropy, rtol=2e-4, atol=2e-4)


# Wishart's rsample writes to what its own derivative needs once a sample is singular, on the host too
@pytest.mark.parametrize(
    "name", [n for n, (p, make) in FAMILIES.items() if make(*p).has_rsample and n != "Wishart"]
)
def test_rsample_carries_the_gradient_of_the_mean(name: str) -> None:
    """d/dp E[x], estimated from samples, is that of the host's formula."""
    parameters, make = FAMILIES[name]
    ours = [p.double().maca().requires_grad_() for p in parameters]
    samples = make(*ours).rsample((6000,))
    assert samples.requires_grad and samples.device.type == "maca"
    if name in NO_MOMENTS:
        samples.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in ours)
        return
    weights = torch.arange(1.0, samples[0].numel() + 1).reshape(samples.shape[1:]).double()
    (samples.mean(0) * weights.maca()).sum().backward()
    host = [p.double().requires_grad_() for p in parameters]
    (make(*host).mean * weights).sum().backward()
    for a, b in zip(ours, host):
        expected = torch.zeros_like(a.cpu()) if b.grad is None else b.grad
        got = torch.zeros_like(expected) if a.grad is None else a.grad.cpu()
        torch.testing.assert_close(got, expected, rtol=0.15, atol=0.3)


@pytest.mark.parametrize("name", ["Normal", "Gamma", "Beta", "Dirichlet", "Categorical", "MultivariateNormal",
                                  "Bernoulli", "Poisson", "Laplace", "Exponential", "Independent"])  # fmt: skip
def test_kl_divergence(name: str) -> None:
    parameters, make = FAMILIES[name]
    others = [p * 0.9 + 0.05 if p.dim() == 1 else p for p in parameters]
    ours = D.kl_divergence(make(*[p.maca() for p in parameters]), make(*[p.maca() for p in others]))
    close(ours, D.kl_divergence(make(*parameters), make(*others)), rtol=1e-4, atol=1e-5)


def test_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bijections onto constrained spaces and back, and arguments outside of them refused by name."""
    monkeypatch.setattr(D.Distribution, "_validate_args", True)  # torch.compile turns it off for the process
    unconstrained = torch.tensor([[0.3, -1.0, 2.0], [0.1, 0.2, 0.5], [1.0, -0.3, 0.7]])
    for constraint in (D.constraints.positive, D.constraints.unit_interval, D.constraints.simplex,
                       D.constraints.lower_cholesky, D.constraints.greater_than(2.0)):  # fmt: skip
        transform = D.transform_to(constraint)
        ours = transform(unconstrained.maca())
        close(ours, transform(unconstrained), rtol=1e-5, atol=1e-6)
        assert constraint.check(ours).all()
        close(transform.inv(ours), transform.inv(transform(unconstrained)), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="scale .* to satisfy the constraint GreaterThan"):
        D.Normal(torch.zeros(1, device="maca"), torch.tensor([-1.0], device="maca"))
    with pytest.raises(ValueError, match="value argument"):
        D.Gamma(*[torch.ones(1, device="maca")] * 2).log_prob(torch.tensor([-1.0], device="maca"))
    with pytest.raises(ValueError, match="probs"):
        D.Bernoulli(torch.tensor([float("nan")], device="maca"))


def test_a_policy_gradient_step() -> None:
    """REINFORCE, as the documentation of the module has it."""
    logits = torch.zeros(3, device="maca", requires_grad=True)
    reward = torch.tensor([0.0, 1.0, 0.0], device="maca")
    optimizer = torch.optim.Adam([logits], lr=0.2)
    for _ in range(60):
        policy = D.Categorical(logits=logits)
        action = policy.sample((32,))
        loss = -(policy.log_prob(action) * (reward[action] - 1 / 3)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert D.Categorical(logits=logits).probs[1].item() > 0.8
