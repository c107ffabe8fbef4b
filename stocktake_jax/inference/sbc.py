"""Simulation-based calibration: is a factor's posterior right, whatever the truth?

Draw parameters from the prior, series from the parameters, and a posterior from the series: the rank of the true value
among posterior draws is then uniform, if evidence, prior, change of variables and sampler are all right (Talts and others,
2018). The log likelihood is ranked as well: it notices posteriors that miss the data, which parameters by themselves do not
(Modrák and others, 2023).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.infer import MCMC, NUTS
from scipy.stats import chi2

from stocktake_jax.errors import InputError
from stocktake_jax.inference.evidence import TabulatedEvidence
from stocktake_jax.inference.fit import Evidence, Problem
from stocktake_jax.inference.priors import Learn
from stocktake_jax.models import Factor, Likelihood

LOG_LIKELIHOOD = "log likelihood"
"""The name of the test quantity beside the parameters."""


@dataclass(frozen=True)
class Ranks:
    """Ranks of the truth among posterior draws.

    Attributes:
        factor: its name.
        quantities: what is ranked: the learned parameters, and the log likelihood.
        ranks: (replicate, quantity) number of posterior draws below the truth, 0 .. draws.
        draws: posterior draws per replicate.
        divergences: (replicate,) transitions of the sampler that diverged.
    """

    factor: str
    quantities: tuple[str, ...]
    ranks: np.ndarray
    draws: int
    divergences: np.ndarray

    @property
    def bins(self) -> int:
        """Bins of the histograms: 8, or fewer so that five ranks are expected in each."""
        return max(min(8, len(self.ranks) // 5, self.draws + 1), 1)

    def histogram(self) -> np.ndarray:
        """(quantity, bin) counts of ranks."""
        edges = np.arange(self.bins + 1) * (self.draws + 1) / self.bins - 0.5
        return np.stack([np.histogram(r, edges)[0] for r in self.ranks.T])

    def p_values(self) -> np.ndarray:
        """(quantity,) chi-squared test of a flat histogram; the bins' expected counts allow for ranks being whole."""
        edges = np.arange(self.bins + 1) * (self.draws + 1) / self.bins - 0.5
        possible = np.histogram(np.arange(self.draws + 1), edges)[0]
        expected = len(self.ranks) * possible / (self.draws + 1)
        if self.bins < 2:
            return np.ones(len(self.quantities))
        return chi2.sf(((self.histogram() - expected) ** 2 / expected).sum(axis=1), self.bins - 1)

    def failures(self, level: float = 0.01) -> tuple[str, ...]:
        """Quantities whose ranks are not uniform, by Holm's procedure at this family-wise level."""
        p = self.p_values()
        order = np.argsort(p)
        out = []
        for place, k in enumerate(order):
            if p[k] * (len(p) - place) > level:
                break
            out.append(self.quantities[k])
        return tuple(out)

    def document(self, level: float = 0.01) -> dict[str, Any]:
        """Histograms and tests, ready for JSON."""
        return {
            "factor": self.factor,
            "replicates": len(self.ranks),
            "draws": self.draws,
            "bins": self.bins,
            "divergences": int(self.divergences.sum()),
            "not_uniform": list(self.failures(level)),
            "quantities": [
                {"name": q, "histogram": h.tolist(), "p": float(p)}
                for q, h, p in zip(self.quantities, self.histogram(), self.p_values(), strict=True)
            ],
        }


def rank_rows(found: Sequence[Ranks]) -> Iterator[dict[str, Any]]:
    """One row a factor, data set and quantity."""
    for r in found:
        for i, row in enumerate(r.ranks):
            for quantity, rank in zip(r.quantities, row, strict=True):
                yield {"factor": r.factor, "replicate": i, "quantity": quantity, "rank": int(rank), "draws": r.draws}


def document_of(found: Sequence[Ranks], level: float = 0.01) -> dict[str, Any]:
    """Histograms and tests of several factors, ready for JSON.

    `{"study": "sbc", "level": p, "factors": [...]}`: a factor is `Ranks.document`. `plots.ranks` draws them.
    """
    return {"study": "sbc", "level": level, "factors": [r.document(level) for r in found]}


def simulation_based_calibration(
    factor: Factor,
    *,
    key: Array,
    replicates: int = 100,
    series: int = 20,
    weeks: int = 27,
    learn: Learn | Sequence[str] = "all",
    likelihood: Likelihood = "exact",
    priors: Mapping[str, Any] | None = None,
    sourced: bool = False,
    warmup: int = 300,
    draws: int = 63,
    thin: int = 4,
    out: str | os.PathLike[str] | None = None,
    on_replicate: Callable[[int], None] | None = None,
) -> Ranks:
    """Ranks of true parameters, and of their log likelihood, among draws from the posteriors of simulated series.

    Each chain starts at the truth, which is a draw from its posterior, so it needs no time to get there; the warm-up is for
    the step size and the scales.

    Args:
        factor: which one; its values are those of parameters that are not learned, and centre the priors.
        key: of everything random; replicate i depends on the key and i alone.
        replicates: how many data sets.
        series: in each data set.
        weeks: of each series.
        learn: see `Problem`.
        likelihood: see `Problem`.
        priors: see `Problem`.
        sourced: whether channels that have no reading in week 0 (a fill) are read in all later weeks, or never.
        warmup: transitions of NUTS that are thrown away.
        draws: that are kept, and that the truth is ranked among.
        thin: transitions per draw.
        out: a folder that keeps finished data sets, in `sbc/<factor>.json`; the same call goes on from there.
        on_replicate: called with the number of replicates done.

    Raises:
        InputError: for sizes below 1, a folder that holds another run, and see `Problem`.
    """
    sizes = {"replicates": replicates, "series": series, "weeks": weeks, "warmup": warmup, "draws": draws, "thin": thin}
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name} must be at least 1, not {size}")
    silent = (
        {c.name for c in factor.shown_channels() if c.start is not None and np.isnan(c.start)} if not sourced else set()
    )
    template = {
        c.name: np.full((series, weeks), np.nan if c.name in silent else 0.0)
        for c in factor.shown_channels()
        if c.name not in silent
    }
    problem = Problem(factor, template, learn=learn, likelihood=likelihood, priors=priors, distinct=False)
    key_prior, key_data, key_chain = jax.random.split(key, 3)
    truths = problem.prior.sample(replicates, key=key_prior)
    one = jax.jit(_replicate(problem, series, weeks, warmup, draws, thin))
    plan = {
        **sizes,
        "names": list(problem.names),
        "likelihood": likelihood,
        "sourced": sourced,
        "truths": hashlib.sha256(truths.tobytes()).hexdigest(),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
    }
    log = None if out is None else _Log(Path(out) / "sbc" / f"{factor.name}.jsonl", plan)
    kept = [] if log is None else log.rows
    rows, diverged = [np.array(r["ranks"]) for r in kept], [r["divergences"] for r in kept]
    for i in range(len(kept), replicates):
        u = problem.prior.unconstrain(truths[i])
        ranks, divergences = one(
            jnp.asarray(u, jnp.float32), jax.random.fold_in(key_data, i), jax.random.fold_in(key_chain, i)
        )
        rows.append(np.asarray(ranks))
        diverged.append(int(divergences))
        if log is not None:
            log.add({"ranks": rows[-1].tolist(), "divergences": diverged[-1]})
        if on_replicate is not None:
            on_replicate(i + 1)
    return Ranks(factor.name, (*problem.names, LOG_LIKELIHOOD), np.stack(rows), draws, np.array(diverged))


class _Log:
    """Finished data sets, a line each behind a line that says what of; a line that a kill cut short is dropped."""

    def __init__(self, path: Path, plan: Mapping[str, Any]) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
            whole = [line for line in lines if line.endswith("\n")]
            first, *rest = [json.loads(line) for line in whole] or [None]
            if first is not None and first != plan:
                raise InputError(f"{path} is of another run; give another folder, or delete it")
            self.rows = rest
            path.write_text("".join(whole) or json.dumps(plan) + "\n", encoding="utf-8")
        except ValueError as error:
            raise InputError(f"{path} is damaged ({error}); delete it") from None
        except OSError as error:
            raise InputError(f"{path} cannot be used ({error.strerror}); give another folder") from None

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep one more data set."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _replicate(
    problem: Problem, series: int, weeks: int, warmup: int, draws: int, thin: int
) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    def one(u: Array, key_data: Array, key_chain: Array) -> tuple[Array, Array]:
        truth = problem.prior.constrain(u)[0]
        evidence = _simulated(problem, truth, series, weeks, key_data)
        reference = problem.log_evidence(truth, evidence)
        spread = 0.3 * jnp.eye(u.size, dtype=u.dtype)
        sampler = MCMC(
            NUTS(potential_fn=problem.potential(evidence, u, spread, reference), dense_mass=True),
            num_warmup=warmup,
            num_samples=draws * thin,
            thinning=thin,
            progress_bar=False,
        )
        sampler.run(key_chain, init_params={"z": jnp.zeros_like(u)}, extra_fields=("diverging",))

        def look(z: Array) -> tuple[Array, Array]:
            values = problem.prior.constrain(u + jnp.matmul(spread, z, precision="highest"))[0]
            return values, jnp.sum(problem.log_evidence(values, evidence) - reference)

        values, log_likelihood = jax.lax.map(look, sampler.get_samples()["z"])
        below = jnp.sum(values < truth[None], axis=0)
        # The truth's own log likelihood is zero, since it is the reference.
        less_likely = jnp.sum(log_likelihood < 0)
        diverging = jnp.sum(sampler.get_extra_fields()["diverging"])
        return jnp.append(below, less_likely), diverging

    return one


def _simulated(problem: Problem, values: Array, series: int, weeks: int, key: Array) -> Evidence:
    """The evidence of fresh series of a factor with these values of the learned numbers."""
    factor = problem.prior.build(values)

    def draw(k: Array) -> dict[str, Float[Array, " week"]]:
        key_chain, key_emissions = jax.random.split(k)
        states, _ = factor.sample_states(weeks, key=key_chain)
        emitted = factor.sample_emissions(states, key=key_emissions)
        readings = {}
        for c in factor.shown_channels():
            if c.name in problem.evidence.values:
                shown = jnp.asarray(c.reading(emitted[c.name]), values.dtype)
                readings[c.name] = shown if c.start is None else shown.at[0].set(jnp.nan)
        return readings

    readings = jax.vmap(draw)(jax.random.split(key, series))
    evidence = dataclasses.replace(problem.evidence, values={name: y.ravel() for name, y in readings.items()})
    if not problem.emissions_known:
        return evidence
    return TabulatedEvidence(evidence.table(factor), evidence.groups, evidence.initial)
