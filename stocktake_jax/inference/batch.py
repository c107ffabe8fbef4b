"""The exact filter over many series at once, and over streams of fresh tapes that no memory could hold.

`hmm.forward` is the definition; this gives the same numbers for a batch, several times faster on CPUs. The series are
the last axis, so that every operation runs along them. A reading's likelihood is worked out once per group of states
that show the same. And what moves most states is that their age grows by one: that part of a move is a shift, and only
the few states that can be entered otherwise need a product with the belief.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stocktake_jax.errors import InputError
from stocktake_jax.inference.evidence import emission_groups
from stocktake_jax.inference.hmm import FINE
from stocktake_jax.models import HORIZON, Channel, Discrete, Factor, Gaussian, Initial, Likelihood, Tape, World


class FilteredSeries(eqx.Module):
    """The result of `filter_series`: what `hmm.Filtered` is for one series, the series as last axis.

    There are no predictions in it: `Moves` makes them from beliefs in less time than they take to be written down.

    Attributes:
        belief: P(state of week t | readings 0 .. t).
        log_evidence: log P(reading t | readings 0 .. t - 1); -inf where it was impossible.
        status: `FINE`, or the first week whose reading was impossible.
    """

    belief: Float[Array, "week state series"]
    log_evidence: Float[Array, "week series"]
    status: Int[Array, " series"]


class Moves(eqx.Module):
    """A transition matrix, taken apart into growing older and everything else.

    Attributes:
        older: P(next state is the one after this, one week older in the same regime); zero where there is none.
        entry: (entered, state) P(next state is the entered one | this state), the shift left out.
        entered: indices of the states that can be reached other than by growing older.
    """

    older: Float[Array, " state"]
    entry: Float[Array, "entered state"]
    entered: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, factor: Factor, dtype: Any = jnp.float32) -> Moves:
        """The moves of a factor. What can be entered follows from its declaration, whatever the probabilities."""
        regimes = [s.regime for s in factor.states]
        grows = np.array([a == b for a, b in zip(regimes, [*regimes[1:], None], strict=True)])
        shifted = np.eye(len(regimes), k=1) * grows[:, None]
        entered = np.flatnonzero((factor.support() & (shifted == 0)).any(axis=0))
        matrix = jnp.asarray(factor.transition_matrix(), dtype)
        one_older = jnp.asarray(shifted, dtype)
        older = jnp.sum(matrix * one_older, axis=1)
        return cls(older, (matrix * (1 - one_older))[:, entered].T, tuple(entered.tolist()))

    def __call__(self, belief: Float[Array, "state series"]) -> Float[Array, "state series"]:
        """The beliefs one week on; `hmm.move`, series by series."""
        aged = belief[:-1] * self.older[:-1, None]
        ahead = jnp.concatenate([jnp.zeros_like(belief[:1]), aged])
        entering = jnp.matmul(self.entry, belief, precision="highest")
        return ahead.at[np.array(self.entered)].add(entering)


def filter_series(
    factor: Factor,
    readings: Mapping[str, Float[Array, "week series"]],
    likelihood: Likelihood = "paper",
    initial: Initial = "uniform",
) -> FilteredSeries:
    """The exact filter of one factor on many series: `filter_factor` of each, to float rounding.

    Jit it. The factor's parameters may be traced, and the whole vmapped over them.

    Args:
        factor: of which the readings are.
        readings: channel -> (week, series) values, nan where missing; a channel may be absent. Mind the order of the
            axes: weeks first. Series of unequal length are filled up with nan.
        likelihood: see `Factor.log_likelihood`.
        initial: see `Factor.initial`.

    Raises:
        InputError: for unknown channels, shapes that differ, an unknown likelihood or start.
    """
    laws = _laws(factor, readings, likelihood, initial)
    kind = jnp.result_type(next(iter(readings.values())))
    dtype = kind if jnp.issubdtype(kind, jnp.floating) else jnp.result_type(float)
    series = {name: jnp.asarray(readings[name], dtype) for name in laws.channels}
    if initial == "baseline":
        constant = [name for name, c in laws.channels.items() if c.start is not None]
        series |= {name: series[name].at[0].set(jnp.nan) for name in constant}
    start, moves = jnp.asarray(factor.initial(initial), dtype), Moves.of(factor, dtype)
    weeks, count = np.shape(next(iter(readings.values())))
    groups = np.array(laws.groups)
    membership = jnp.asarray(np.arange(groups.max() + 1)[:, None] == groups, dtype)

    def step(predicted: Array, now: dict[str, Array]) -> tuple[Array, tuple[Array, Array]]:
        mass = jnp.matmul(membership, predicted, precision="highest")
        table, scale = laws.log_likelihood(now, likelihood, jnp.zeros((len(membership), count), dtype))
        # Scaled by the largest likelihood among reachable groups, so that nothing underflows that matters.
        heard = (mass > 0) & jnp.isfinite(table)
        best = jnp.max(jnp.where(heard, table, -jnp.inf), axis=0)
        possible = jnp.isfinite(best)
        best = jnp.where(possible, best, 0.0)
        relative = jnp.where(heard, jnp.exp(jnp.where(heard, table, best[None]) - best[None]), 0.0)
        total = jnp.where(possible, jnp.sum(mass * relative, axis=0), 1.0)
        # An impossible reading leaves the prediction as it is; evidence and status tell.
        ratio = jnp.where(possible[None], relative / total[None], 1.0)
        belief = predicted * ratio[groups]
        log_evidence = jnp.where(possible, best + jnp.log(total) + scale, -jnp.inf)
        return moves(belief), (belief, log_evidence)

    first = jnp.broadcast_to(start[:, None], (len(start), count))
    _, (belief, log_evidence) = jax.lax.scan(step, first, series, length=weeks)
    bad = jnp.isneginf(log_evidence)
    status = jnp.where(jnp.any(bad, axis=0), jnp.argmax(bad, axis=0), FINE).astype(jnp.int32)
    return FilteredSeries(belief, log_evidence, status)


class _Laws(NamedTuple):
    """The channels that are read, and the states that they tell apart.

    Attributes:
        channels: name -> channel.
        groups: (state,) which states show the same.
        first: one state of each group.
    """

    channels: dict[str, Channel]
    groups: tuple[int, ...]
    first: np.ndarray

    def log_likelihood(
        self, now: dict[str, Float[Array, " series"]], likelihood: Likelihood, zeros: Float[Array, "group series"]
    ) -> tuple[Float[Array, "group series"], Float[Array, " series"]]:
        """log P(a week's readings | group), and the part of it that all groups share, apart; see `LogLikelihood`."""
        table, scale = zeros, zeros[0]
        for name, channel in self.channels.items():
            table = table + _rows(channel, self.first, now[name], likelihood)
            scale = scale + jax.vmap(lambda y, c=channel: c.log_scale(y, likelihood))(now[name])
        return table, scale


def _laws(factor: Factor, readings: Mapping[str, Array], likelihood: Likelihood, initial: Initial) -> _Laws:
    shapes = {name: np.shape(x) for name, x in readings.items()}
    if len(set(shapes.values())) > 1 or any(len(s) != 2 or 0 in s for s in shapes.values()):
        raise InputError(f"{factor.name}: readings must be (week, series) arrays of one shape, not {shapes}")
    # One week of one series, for the messages about names.
    jax.eval_shape(lambda: factor.log_likelihood({name: jnp.zeros(1) for name in readings}, likelihood, initial))
    channels = {c.name: c for c in factor.shown_channels() if c.name in readings and c.speaks(likelihood)}
    # Grouping goes by the declaration; traced values would not tell.
    declared = jax.tree.map(lambda x: np.ones(np.shape(x)), factor)
    groups = emission_groups(declared, tuple(channels))
    first = np.array([groups.index(g) for g in range(max(groups) + 1)])
    return _Laws(channels, groups, first)


def _rows(
    channel: Channel, states: np.ndarray, y: Float[Array, " series"], likelihood: Likelihood
) -> Float[Array, "group series"]:
    """`Channel.log_prob` of many readings, in some of the states alone."""
    if type(channel) is Discrete:
        # Value by value: a sum over a short axis is the one operation that would not run along the series.
        values, probs = (jnp.asarray(x, y.dtype)[states][:, :, None] for x in (channel.values, channel.probs))
        p = jnp.zeros((len(states), len(y)), y.dtype)
        for v in range(values.shape[1]):
            p = p + jnp.where(values[:, v] == y[None], probs[:, v], 0.0)
        log_p = jnp.where(p > 0, jnp.log(jnp.where(p > 0, p, 1.0)), -jnp.inf)
        return jnp.where(jnp.isnan(y)[None], 0.0, log_p)
    if isinstance(channel, Gaussian):
        frozen = tuple(channel.frozen[i] for i in states) if channel.frozen else ()
        channel = dataclasses.replace(channel, mean=jnp.asarray(channel.mean)[states], frozen=frozen)
        states = np.arange(len(states))
    return jax.vmap(lambda v: channel.log_prob(v, likelihood)[states], out_axes=-1)(y)


# ---- fresh tapes, sampled and filtered ------------------------------------------------------------------------------


MEMORY = 2**29
"""Bytes that a chunk of `sample_and_filter` may take, if nothing else is said."""

BYTES_PER_TAPE = 40_000
"""Upper estimate of what one tape takes at a time: all its values, and the beliefs of the largest factor."""


@dataclasses.dataclass(frozen=True)
class StreamSummary:
    """What the six filters made of many fresh tapes, per factor.

    Attributes:
        tapes: how many.
        chunk: how many were in memory together.
        log_evidence, log_evidence_se: mean log P(readings of weeks 0 .. 26) of a tape in nats, and its standard error.
        truth, truth_se: mean posterior probability of the true regime over weeks 1 .. 26, and its standard error over
            tapes.
        impossible: tapes with a reading of probability zero; they are left out of the log evidence.
    """

    tapes: int
    chunk: int
    log_evidence: dict[str, float]
    log_evidence_se: dict[str, float]
    truth: dict[str, float]
    truth_se: dict[str, float]
    impossible: dict[str, int]


def sample_and_filter(
    world: World,
    count: int,
    *,
    key: Array,
    model: World | None = None,
    likelihood: Likelihood = "paper",
    initial: Initial = "uniform",
    chunk: int | None = None,
    memory: int = MEMORY,
) -> StreamSummary:
    """Sample fresh tapes and filter each of them, a chunk at a time, and keep the statistics alone.

    Tape i depends on the key and i, as in `Tape.sample_batch`, so the chunk changes nothing but time and memory. No
    fill is read: nothing is ordered.

    Args:
        world: of the tapes.
        count: how many tapes.
        key: where they start from.
        model: the filters' world; None: the true one.
        likelihood: how the filters read.
        initial: how they start.
        chunk: tapes at a time; None: as many as `memory` holds.
        memory: bytes for a chunk.

    Raises:
        InputError: if count or chunk is below 1, or the memory is too small for one tape.
    """
    chunk = memory // BYTES_PER_TAPE if chunk is None else chunk
    if count < 1 or chunk < 1:
        raise InputError(f"count ({count}) and chunk ({chunk}) must be at least 1; a tape takes {BYTES_PER_TAPE} bytes")
    chunk, filters = min(chunk, count), (model or world).factors
    # The last chunk goes beyond the count, so that one compiled shape serves all, and what is too much is dropped.
    parts = []
    for start in range(0, count, chunk):
        tapes = Tape.sample_batch(world, chunk, key=key, start=start)
        readings = tapes.readings(world)
        judged = {n: _judge(f, readings[n], tapes.states[n], likelihood, initial) for n, f in filters.items()}
        parts.append(jax.device_get(judged))

    def collect(i: int) -> dict[str, np.ndarray]:
        return {n: np.concatenate([part[n][i] for part in parts])[:count].astype(np.float64) for n in filters}

    evidence, truth = collect(0), collect(1)
    possible = {name: e[np.isfinite(e)] for name, e in evidence.items()}
    return StreamSummary(
        count,
        chunk,
        {name: float(e.mean()) for name, e in possible.items()},
        {name: _standard_error(e) for name, e in possible.items()},
        {name: float(p.mean()) for name, p in truth.items()},
        {name: _standard_error(p) for name, p in truth.items()},
        {name: int(np.sum(~np.isfinite(e))) for name, e in evidence.items()},
    )


def _standard_error(x: np.ndarray) -> float:
    return float(x.std(ddof=1) / np.sqrt(x.size)) if x.size > 1 else float("nan")


@eqx.filter_jit
def _judge(
    factor: Factor,
    readings: Mapping[str, Float[Array, "series week"]],
    states: Int[Array, "series week"],
    likelihood: Likelihood,
    initial: Initial,
) -> tuple[Float[Array, " series"], Float[Array, " series"]]:
    """Log evidence and mean posterior of the truth of each tape."""
    filtered = filter_series(factor, {k: y.T for k, y in readings.items()}, likelihood, initial)
    label = jnp.asarray([factor.labels.index(r.label) for r in factor.state_regimes])
    same = label[None, :, None] == label[states.T][:, None]
    held = jnp.sum(jnp.where(same, filtered.belief, 0.0), axis=1)
    return jnp.sum(filtered.log_evidence, axis=0), jnp.sum(held[1:], axis=0) / HORIZON
