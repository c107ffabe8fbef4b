"""Fitting one factor to many series: penalised maximum likelihood with Laplace intervals, NUTS, and SVI.

All three look at one density: the evidence of the readings (hidden states summed out by the filter) times the prior, on
the real line of `Prior.constrain`. Its mode is sought there, so that it never sits on a bound: with the default priors a
probability seen k times out of n has its mode at (k + 1) / (n + 2).
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jaxtyping import Array, Float
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoMultivariateNormal
from numpyro.infer.util import potential_energy
from scipy.special import expit, logit
from scipy.stats import norm

from stocktake_jax.errors import InputError
from stocktake_jax.inference.evidence import SeriesEvidence, TabulatedEvidence
from stocktake_jax.inference.hmm import FINE, chain, forward
from stocktake_jax.inference.priors import Learn, Prior, entries, ladders, roles, select, value_of
from stocktake_jax.models import Factor, Initial, Likelihood

Method = Literal["map", "nuts", "svi", "em"]
"""How to fit; `em` is the baseline of `inference.em`."""

_TRACING = threading.RLock()

LEVEL = 0.90
"""Of the intervals."""


PER_NUMBER = ("r_hat", "ess", "prior_sd")
"""The diagnostics that are lists with an entry for each learned number."""


Evidence = SeriesEvidence | TabulatedEvidence
"""The readings of many series, as a function of a factor."""


class Problem:
    """One factor, the readings of many series, and what is to be learned from them.

    Attributes:
        factor: the base: start of the search, anchor of the labels, and value of everything that is not learned.
        evidence: of the readings.
        data: the same as evaluations need it: with the emissions' part worked out, if no emission is learned.
        prior: of the learned numbers.
        fixed: the numbers that are not learned -> why.
    """

    def __init__(
        self,
        factor: Factor,
        readings: Mapping[str, Float[Array, "series week"]],
        *,
        learn: Learn | Sequence[str] = "all",
        likelihood: Likelihood = "exact",
        initial: Initial = "baseline",
        priors: Mapping[str, Any] | None = None,
        distinct: bool = True,
    ) -> None:
        """Set up a fit.

        Args:
            factor: see above.
            readings: channel -> (series, week) values, nan where there is none.
            learn: `transitions`, `emissions`, `all`, or names of parameters.
            likelihood: `exact` (the default here) is the law of rounded and clipped readings; `paper` is biased for
                levels near a bound.
            initial: how the series start: `baseline` as tapes do, or `uniform`.
            priors: name -> numpyro distribution, in place of the default law.
            distinct: see `SeriesEvidence.of`.

        Raises:
            InputError: for unknown names, groups or channels, nothing to learn, or unusable readings.
        """
        self.factor, self._readings = factor, readings
        self.evidence = SeriesEvidence.of(factor, readings, likelihood, initial, distinct=distinct)
        found = roles(factor, self.evidence.channels)
        names = select(factor, learn, found)
        if not names:
            raise InputError(f"{factor.name}: no parameter of {learn!r} can be learned from these readings")
        self.prior = Prior(factor, names, ladders(factor, self.evidence.channels), priors)
        self.emissions_known = not set(names) & set(found.emissions)
        self.data: Evidence = self.evidence
        if self.emissions_known and distinct:
            self.data = self.evidence.tabulated(factor)
        asked = {n: "was not asked for" for n in entries(factor) if n not in names}
        self.fixed = asked | found.fixed
        self._distinct = distinct
        self._jitted = jax.jit(self.log_evidence)
        self.negative = jax.jit(jax.value_and_grad(self._negative, has_aux=True))

    def again(self, readings: Mapping[str, Float[Array, "series week"]]) -> Problem:
        """The same problem with other readings of the same channels; what was compiled serves again where shapes agree.

        Raises:
            InputError: if other channels have readings.
        """
        e = self.evidence
        other = SeriesEvidence.of(self.factor, readings, e.likelihood, e.initial, distinct=self._distinct)
        if other.channels != e.channels:
            raise InputError(f"{self.factor.name}: readings of {other.channels}, not of {e.channels}")
        new = copy.copy(self)
        new.evidence, new._readings = other, readings
        new.data = other.tabulated(self.factor) if isinstance(self.data, TabulatedEvidence) else other
        return new

    def _negative(self, u: Array, data: Evidence) -> tuple[Array, Array]:
        """Minus the log posterior (up to a constant), and each series' log evidence."""
        values, log_prior = self.log_prior(u)
        evidence = self.log_evidence(values, data)
        return -(log_prior + jnp.sum(evidence)), evidence

    @property
    def names(self) -> tuple[str, ...]:
        """Of the learned numbers."""
        return self.prior.names

    def start(self) -> Float[np.ndarray, " entry"]:
        """The base world's values on the real line."""
        return self.prior.unconstrain(np.array([e.base for e in self.prior.entries]))

    def log_evidence(self, values: Float[Array, " entry"], data: Evidence) -> Float[Array, " series"]:
        """log P(readings of a series | values of the learned numbers), for each series."""
        return data(self.prior.build(values))

    def evidence_at(self, values: Float[np.ndarray, " entry"]) -> Float[np.ndarray, " series"]:
        """`log_evidence` on the host, in float64."""
        with jax.enable_x64(True):
            return np.asarray(self._jitted(np.asarray(values, np.float64), self.data))

    def log_prior(self, u: Float[Array, " entry"]) -> tuple[Float[Array, " entry"], Float[Array, ""]]:
        """The values at a point of the real line, and the log prior density there."""
        values, log_det = self.prior.constrain(u)
        return values, self.prior.log_density(values) + log_det

    def model(
        self,
        data: Evidence,
        centre: Float[Array, " entry"],
        spread: Float[Array, "entry entry"],
        reference: Float[Array, " series"],
    ) -> None:
        """The numpyro model. Hidden states are summed out: its one site `z` are the parameters, on a convenient scale.

        Args:
            data: `self.data`, handed in so that a compiled sampler serves many data sets.
            centre: u = centre + spread z: the mode, and
            spread: a square root of the covariance there, so that a sampler starts with a round density.
            reference: each series' evidence at the mode, taken off so that float32 keeps the digits that matter.
        """
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real_vector, (), (len(self.names),)))
        values, log_prior = self.log_prior(centre + jnp.matmul(spread, z, precision="highest"))
        numpyro.factor("prior", log_prior)
        numpyro.factor("evidence", jnp.sum(self.log_evidence(values, data) - reference))

    def potential(self, *arguments: Any) -> Callable[[dict[str, Array]], Array]:
        """Minus the log density of `model` with these arguments, as numpyro's samplers take it."""

        def energy(sites: dict[str, Array]) -> Array:
            # numpyro keeps its stack of handlers in a global, and factors may be fitted in several threads.
            with _TRACING:
                return potential_energy(self.model, arguments, {}, sites)

        return energy

    def require_possible(self, log_evidence: Float[np.ndarray, " series"]) -> None:
        """Refuse series with a reading that the factor cannot explain, naming the first one.

        Args:
            log_evidence: of each series, with every learned number inside its bounds.

        Raises:
            InputError: see above.
        """
        impossible = np.flatnonzero(np.isneginf(log_evidence))
        if not impossible.size:
            return
        first = int(impossible[0])
        inside = self.prior.build_host(self.prior.inside())
        with jax.enable_x64(True):
            series = {k: jnp.asarray(np.asarray(v, np.float64)[first]) for k, v in self._readings.items()}
            status = int(forward(chain(inside, series, self.evidence.likelihood, self.evidence.initial)).status)
        week = f" in week {status}" if status != FINE else ""
        raise InputError(
            f"{self.factor.name}: series {first}{week} has readings that are impossible under the "
            f"{self.evidence.likelihood!r} likelihood ({impossible.size} of {log_evidence.size} series); check the column "
            "map, the units and the base world"
        )


@dataclass(frozen=True)
class FactorFit:
    """What a fit found.

    Attributes:
        factor: its name.
        method: `map`, `nuts`, `svi` or `em`.
        names: of the learned numbers.
        estimate: their plug-in values: the mode, or the posterior mean.
        standard_error: posterior standard deviation (Laplace's for `map`, nan for `em`).
        low, high: ends of the intervals that hold `LEVEL` of the posterior (nan for `em`).
        draws: (chain, draw, entry) from the posterior (for `map`, from its Laplace approximation); empty for `em`.
        log_evidence: of all series at the estimate.
        fixed: numbers that were not learned -> why.
        diagnostics: what the method says about itself, numbers only; lists for `PER_NUMBER`.
        problems: reasons not to trust the fit, in words; empty if it converged.
        transition: the free transition matrix, from `em` alone.
    """

    factor: str
    method: Method
    names: tuple[str, ...]
    estimate: np.ndarray
    standard_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    draws: np.ndarray
    log_evidence: float
    fixed: dict[str, str]
    diagnostics: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    transition: np.ndarray | None = None

    @property
    def converged(self) -> bool:
        """Whether the fit can be trusted."""
        return not self.problems

    @property
    def values(self) -> dict[str, float]:
        """name -> estimate."""
        return dict(zip(self.names, self.estimate.tolist(), strict=True))

    def recovery(self, truth: Factor) -> list[dict[str, Any]]:
        """One row a learned number: truth, estimate, interval, whether it covers the truth, error in standard errors."""
        known = entries(truth)
        rows = []
        for k, name in enumerate(self.names):
            true = value_of(truth, known[name])
            error, se = float(self.estimate[k]) - true, float(self.standard_error[k])
            rows.append(
                {
                    "name": name,
                    "truth": true,
                    "estimate": float(self.estimate[k]),
                    "standard_error": se,
                    "low": float(self.low[k]),
                    "high": float(self.high[k]),
                    "covered": bool(self.low[k] <= true <= self.high[k]),
                    "z": error / se if se > 0 else math.nan,
                }
            )
        return rows


# -- the mode


@dataclass(frozen=True)
class Mode:
    """The posterior's mode on the real line, and the curvature there.

    Attributes:
        u: the point.
        precision: minus the second derivatives of the log posterior.
        value: the log posterior.
        log_evidence: of each series.
        reached: how many restarts came within half a nat of it, of how many.
        problems: see `FactorFit`.
    """

    u: np.ndarray
    precision: np.ndarray
    value: float
    log_evidence: np.ndarray
    reached: tuple[int, int]
    problems: tuple[str, ...]

    @property
    def covariance(self) -> np.ndarray:
        """Of Laplace's approximation; of the nearest proper one where the curvature has the wrong sign."""
        size, direction = np.linalg.eigh(self.precision)
        return (direction / np.maximum(size, 1e-6)) @ direction.T

    @property
    def spread(self) -> np.ndarray:
        """A square root of the covariance."""
        return np.linalg.cholesky(self.covariance)


def _host_generator(key: Array) -> np.random.Generator:
    """A numpy generator seeded by a JAX key, for a handful of numbers that are not worth compiling for."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())


Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]


def find_mode(problem: Problem, *, key: Array, restarts: int = 3, iterations: int = 200) -> Mode:
    """The posterior's mode: L-BFGS from the base world's values and from random points around them, then Newton.

    Args:
        problem: what to fit.
        key: of the random starts.
        restarts: their number, the base world's one included. If only one of several reaches the best mode, more random
            points are tried, up to three times as many in all, until another does.
        iterations: of L-BFGS, at most, per start.

    Raises:
        InputError: if there is no start, or a series is impossible whatever the parameters.
    """
    if restarts < 1:
        raise InputError(f"restarts must be at least 1, not {restarts}")
    with jax.enable_x64(True):

        def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
            (value, _), slope = problem.negative(jnp.asarray(u), problem.data)
            return float(value), np.asarray(slope)

        base = problem.start()
        (_, evidence), _ = problem.negative(jnp.asarray(base), problem.data)
        problem.require_possible(np.asarray(evidence))
        jitter = _host_generator(key).normal(size=(3 * restarts, base.size))
        jitter[0] = 0.0
        ends: list[tuple[np.ndarray, float]] = []
        for shift in jitter:
            least = min((v for _, v in ends), default=math.inf)
            if len(ends) >= restarts and (restarts == 1 or sum(v < least + 0.5 for _, v in ends) > 1):
                break
            ends.append(_lbfgs(objective, base + shift, iterations))
        best = min(ends, key=lambda end: end[1])
        u, value, precision, decrement = _newton(objective, best[0])
        (_, evidence), _ = problem.negative(jnp.asarray(u), problem.data)
    reached = sum(1 for _, v in ends if v < value + 0.5)
    problems = []
    if not np.all(np.linalg.eigvalsh(precision) > 0):
        problems.append("the curvature at the mode is not that of a maximum")
    if not decrement < 1e-3:
        problems.append(f"the search did not settle (Newton decrement {decrement:.2g})")
    if restarts > 1 and reached < 2:
        problems.append(f"only {reached} of {len(ends)} restarts reached the best mode")
    return Mode(u, precision, -value, np.asarray(evidence), (reached, len(ends)), tuple(problems))


_RULE = optax.scale_by_lbfgs(memory_size=10)
_advise = jax.jit(_RULE.update)


def _lbfgs(objective: Objective, u: np.ndarray, iterations: int) -> tuple[np.ndarray, float]:
    """Minimise by optax's L-BFGS directions with step halving; the host drives, so the objective compiles once."""
    room = -u.size % 16  # filled up with zeros, which stay zeros, so that all factors share one compiled rule
    value, slope = objective(u)
    state = _RULE.init(jnp.asarray(np.pad(u, (0, room))))
    quiet = 0
    for _ in range(iterations):
        if not np.isfinite(value):
            break
        padded = (jnp.asarray(np.pad(x, (0, room))) for x in (slope, u))
        direction, state = _advise(next(padded), state, next(padded))
        move = -np.asarray(direction)[: u.size]
        if not np.all(np.isfinite(move)) or move @ slope >= 0:
            move = -slope
        move *= min(1.0, 2.0 / np.max(np.abs(move)))  # never more than two units of the real line at a time
        descent, length = float(move @ slope), 1.0
        after, after_slope = objective(u + move)
        while not after <= value + 1e-4 * length * descent and length > 1e-6:
            length /= 2
            after, after_slope = objective(u + length * move)
        if length <= 1e-6:
            break
        quiet = quiet + 1 if value - after < 1e-3 else 0
        u, value, slope = u + length * move, after, after_slope
        if quiet == 3:
            break
    return u, value


def _newton(objective: Objective, u: np.ndarray) -> tuple[np.ndarray, float, np.ndarray, float]:
    """Finish with Newton's method: the point, its value, the second derivatives, the last Newton decrement."""
    value, slope = objective(u)
    precision, decrement = np.eye(u.size), math.inf
    for _ in range(8):
        precision = _second_derivatives(objective, u)
        size, direction = np.linalg.eigh(precision)
        step = direction @ ((direction.T @ slope) / np.maximum(np.abs(size), 1e-3))
        decrement = float(slope @ step)
        if decrement < 1e-8:
            break
        length = 1.0
        after, after_slope = objective(u - step)
        while not after <= value + 1e-9 * abs(value) and length > 1e-4:
            length /= 2
            after, after_slope = objective(u - length * step)
        if length <= 1e-4:
            break
        u, value, slope = u - length * step, after, after_slope
    return u, value, precision, decrement


def _second_derivatives(objective: Objective, u: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """Central differences of the gradient, in float64: as good as second derivatives, and nothing more to compile."""
    rows = [(objective(u + shift)[1] - objective(u - shift)[1]) / (2 * step) for shift in step * np.eye(u.size)]
    return (np.stack(rows) + np.stack(rows).T) / 2


def laplace_interval(
    problem: Problem, estimate: np.ndarray, standard_error: np.ndarray, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """Intervals for each number by itself: symmetric on the log or log-odds scale, and stated on the number's own.

    On the number's own scale a symmetric interval would reach out of bounds, and be too short on the side where little
    was seen.
    """
    z = float(norm.ppf(0.5 + level / 2))
    low, high = np.empty_like(estimate), np.empty_like(estimate)
    for k, e in enumerate(problem.prior.entries):
        x, se, c = estimate[k], standard_error[k], e.constraint
        if math.isfinite(c.low) and math.isfinite(c.high):
            width = c.high - c.low
            share = min(max((x - c.low) / width, 1e-12), 1 - 1e-12)
            reach = z * se / (width * share * (1 - share))
            low[k], high[k] = (c.low + width * expit(logit(share) + sign * reach) for sign in (-1, 1))
        elif math.isfinite(c.low):
            reach = z * se / max(x - c.low, 1e-12)
            low[k], high[k] = (c.low + (x - c.low) * math.exp(sign * min(reach, 50.0)) for sign in (-1, 1))
        else:
            low[k], high[k] = x - z * se, x + z * se
    return low, high


def fit_map(
    problem: Problem, *, key: Array, restarts: int = 3, draws: int = 1000, mode: Mode | None = None
) -> FactorFit:
    """Penalised maximum likelihood, with Laplace's approximation for intervals and draws.

    Args:
        problem: what to fit.
        key: of the random starts and the draws.
        restarts: see `find_mode`.
        draws: from Laplace's approximation.
        mode: if it was found already.
    """
    key_mode, key_draws = jax.random.split(key)
    mode = mode or find_mode(problem, key=key_mode, restarts=restarts)
    step = 1e-5 * np.eye(mode.u.size)
    noise = _host_generator(key_draws).normal(size=(draws, mode.u.size))
    points = np.concatenate([mode.u[None], mode.u + step, mode.u - step, mode.u + noise @ mode.spread.T])
    values = problem.prior.values_at(points)
    estimate, above, below, sample = np.split(values, np.cumsum([1, mode.u.size, mode.u.size]))
    estimate, slope = estimate[0], (above - below).T / 2e-5
    standard_error = np.sqrt(np.diag(slope @ mode.covariance @ slope.T))
    low, high = laplace_interval(problem, estimate, standard_error)
    return FactorFit(
        problem.factor.name, "map", problem.names, estimate, standard_error, low, high, sample[None],
        float(mode.log_evidence.sum()), problem.fixed,
        {
            "log_posterior": mode.value,
            "restarts": mode.reached[1],
            "restarts_at_mode": mode.reached[0],
            "prior_sd": problem.prior.standard_deviations.tolist(),
        },
        mode.problems,
    )  # fmt: skip


# -- the whole posterior


def _values_of(problem: Problem, mode: Mode, z: np.ndarray) -> np.ndarray:
    """The values at draws of the model's site, in float64."""
    return problem.prior.values_at(mode.u + z.reshape(-1, z.shape[-1]) @ mode.spread.T).reshape(z.shape)


def _around(mode: Mode) -> tuple[Array, Array, Array]:
    """The arguments of `Problem.model` about a mode, after the data, in float32."""
    centre, spread, reference = (jnp.asarray(x, jnp.float32) for x in (mode.u, mode.spread, mode.log_evidence))
    return centre, spread, reference


def fit_nuts(
    problem: Problem,
    *,
    key: Array,
    chains: int = 4,
    warmup: int = 1000,
    samples: int = 1000,
    restarts: int = 3,
    mode: Mode | None = None,
) -> FactorFit:
    """The posterior by NUTS, started around the mode and on the scale of its curvature.

    A fit has converged if split R-hat is at most 1.01 for every number, the effective sample size at least 400, and no
    more than one transition in a hundred diverged.

    Args:
        problem: what to fit.
        key: of everything random.
        chains: of NUTS.
        warmup: transitions per chain that are thrown away.
        samples: transitions per chain that are kept.
        restarts: see `find_mode`.
        mode: if it was found already.
    """
    key_mode, key_start, key_run = jax.random.split(key, 3)
    mode = mode or find_mode(problem, key=key_mode, restarts=restarts)
    arguments = problem.data, *_around(mode)
    sampler = MCMC(
        NUTS(potential_fn=problem.potential(*arguments)),
        num_warmup=warmup,
        num_samples=samples,
        num_chains=chains,
        chain_method="sequential",
        progress_bar=False,
    )
    # Starts are spread wider than the posterior, so that R-hat can tell.
    start = 1.5 * jax.random.normal(key_start, (chains, mode.u.size), jnp.float32)
    sampler.run(key_run, init_params={"z": start if chains > 1 else start[0]}, extra_fields=("diverging", "num_steps"))
    drawn = _values_of(problem, mode, np.asarray(sampler.get_samples(group_by_chain=True)["z"], np.float64))
    extra = sampler.get_extra_fields(group_by_chain=True)
    diverging = int(np.sum(np.asarray(extra["diverging"])))
    r_hat = split_gelman_rubin(drawn) if samples >= 4 else np.full(drawn.shape[2], np.nan)
    ess = effective_sample_size(drawn) if samples >= 4 else np.full(drawn.shape[2], np.nan)
    problems = []
    worst = int(np.argmax(np.nan_to_num(r_hat, nan=np.inf)))
    if not np.all(r_hat <= 1.01):
        problems.append(f"R-hat of {problem.names[worst]} is {r_hat[worst]:.3f}, above 1.01")
    least = int(np.argmin(np.nan_to_num(ess, nan=-np.inf)))
    if not np.all(ess >= 400):
        problems.append(f"the effective sample size of {problem.names[least]} is {ess[least]:.0f}, below 400")
    if diverging > chains * samples / 100:
        problems.append(f"{diverging} of {chains * samples} transitions diverged")
    return _from_draws(
        problem, "nuts", drawn,
        {
            "r_hat": r_hat.tolist(),
            "ess": ess.tolist(),
            "divergences": diverging,
            "steps": float(np.mean(np.asarray(extra["num_steps"]))),
        },
        problems,
    )  # fmt: skip


def fit_svi(
    problem: Problem,
    *,
    key: Array,
    steps: int = 2000,
    draws: int = 2000,
    restarts: int = 3,
    mode: Mode | None = None,
) -> FactorFit:
    """The posterior by stochastic variational inference with a full-rank normal guide on the real line.

    A fit has converged if the ELBO rose by less than half a nat between the last two quarters of the steps, and if
    importance weights of guide draws, against the true posterior, keep a tenth of their number effective.

    Args:
        problem: what to fit.
        key: of everything random.
        steps: of Adam.
        draws: from the guide.
        restarts: see `find_mode`.
        mode: if it was found already.
    """
    key_mode, key_run, key_draws = jax.random.split(key, 3)
    mode = mode or find_mode(problem, key=key_mode, restarts=restarts)
    arguments = problem.data, *_around(mode)
    zero = jnp.zeros(mode.u.size, jnp.float32)
    guide = AutoMultivariateNormal(problem.model, init_loc_fn=init_to_value(values={"z": zero}), init_scale=0.7)
    rate = optax.cosine_decay_schedule(0.02, steps, 0.02)
    svi = SVI(problem.model, guide, optax.adam(rate), Trace_ELBO(num_particles=4))
    with _TRACING:
        found = svi.run(key_run, steps, *arguments, progress_bar=False)
    losses = np.asarray(found.losses, np.float64)
    half, quarter = losses[len(losses) // 2 : 3 * len(losses) // 4], losses[3 * len(losses) // 4 :]
    gained = float(np.mean(half) - np.mean(quarter)) if len(quarter) else math.nan
    law = guide.get_posterior(found.params)
    z = jax.vmap(law.sample)(jax.random.split(key_draws, draws))
    energy = problem.potential(*arguments)
    potential = jax.jit(lambda z: jax.lax.map(lambda one: energy({"z": one}), z))(z)
    log_weight = np.asarray(-potential - jax.vmap(law.log_prob)(z), np.float64)
    weight = np.exp(log_weight - log_weight.max())
    efficiency = float(weight.sum() ** 2 / (weight**2).sum() / draws)
    problems = []
    if not gained < 0.5:
        problems.append(f"the ELBO still rose by {gained:.2g} nats over the last quarter of the steps")
    if not efficiency > 0.1:
        problems.append(f"the guide fits badly: its importance weights keep {efficiency:.1%} of the draws effective")
    return _from_draws(
        problem, "svi", _values_of(problem, mode, np.asarray(z, np.float64)[None]),
        {"elbo": -float(np.mean(quarter)), "elbo_gain": gained, "importance_efficiency": efficiency}, problems,
    )  # fmt: skip


def _from_draws(
    problem: Problem, method: Method, drawn: np.ndarray, diagnostics: dict[str, Any], problems: Sequence[str]
) -> FactorFit:
    """A fit from posterior draws: their means and quantiles. Rows and ladders are convex, so means keep them."""
    flat = drawn.reshape(-1, drawn.shape[-1])
    tail = (1 - LEVEL) / 2
    estimate = flat.mean(axis=0)
    total = float(np.sum(problem.evidence_at(estimate)))
    low, high = np.quantile(flat, tail, axis=0), np.quantile(flat, 1 - tail, axis=0)
    return FactorFit(
        problem.factor.name, method, problem.names, estimate, flat.std(axis=0, ddof=1), low, high, drawn, total,
        problem.fixed, diagnostics | {"prior_sd": problem.prior.standard_deviations.tolist()}, tuple(problems),
    )  # fmt: skip
