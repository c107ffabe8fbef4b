"""The evidence of many series at once, fast enough to be differentiated a hundred thousand times.

`hmm.log_evidence` is the reference; this is the same number for a batch, made cheap in three ways. A reading's likelihood
depends on a state only through what the state shows, so it is computed once per group of states that show the same. It is
computed once per distinct value of a channel, since readings are rounded. And the gradient is the smoother's expected
counts (Fisher's identity), one backward pass, where differentiating the filter step by step would store and undo each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stocktake_jax.errors import InputError
from stocktake_jax.models import Channel, Discrete, Factor, Gaussian, Initial, Likelihood, Parameter, parameters


def generic(factor: Factor, salt: int = 0) -> Factor:
    """The same kind of factor with unremarkable parameter values, no two alike.

    What two states of it share is then shared by declaration, and not because two numbers happen to agree. Values lie
    well inside their constraints; competing events of a row leave room for each other.
    """
    rng = np.random.default_rng(salt)
    declared = parameters(factor)
    values = {name: _generic_value(p, declared, rng) for name, p in declared.items()}
    return dataclasses.replace(factor, **values)


def _generic_value(p: Parameter, declared: Mapping[str, Parameter], rng: np.random.Generator) -> np.ndarray:
    shape, low, high = np.shape(p.value), p.constraint.low, p.constraint.high
    u = rng.uniform(0.1, 0.9, shape)
    if np.isfinite(low) and np.isfinite(high):
        rivals = sum(1 for q in declared.values() if q.row == p.row) if p.row else 1
        return np.asarray(low + (high - low) * u / rivals)
    size = np.maximum(np.abs(np.asarray(p.value, np.float64)), 1.0)
    return np.asarray((low if np.isfinite(low) else np.asarray(p.value, np.float64)) + size * (0.5 + u))


def emission_groups(factor: Factor, channels: tuple[str, ...]) -> tuple[int, ...]:
    """(state,) the group of each state: states of a group show the same in all of these channels, by declaration."""
    probe = generic(factor)
    signs: list[list[Any]] = [[] for _ in factor.states]
    for c in probe.channels():
        if c.name not in channels:
            continue
        for i, sign in enumerate(signs):
            sign.append(_fingerprint(c, i))
    groups: dict[tuple[Any, ...], int] = {}
    return tuple(groups.setdefault(tuple(sign), len(groups)) for sign in signs)


def _fingerprint(channel: Channel, state: int) -> Any:
    frozen = channel.frozen[state] if channel.frozen else False
    if isinstance(channel, Gaussian):
        return float(channel.mean[state]), frozen
    if isinstance(channel, Discrete):
        law: dict[float, float] = {}
        for value, p in zip(np.asarray(channel.values)[state], np.asarray(channel.probs)[state], strict=True):
            law[float(value)] = law.get(float(value), 0.0) + float(p)
        return tuple(law.items()), frozen
    return state  # a kind of channel that is not known here: every state by itself


def _narrow(channel: Channel, states: np.ndarray) -> Channel | None:
    """The channel restricted to some states; None for a kind that is not known here."""
    frozen = tuple(channel.frozen[i] for i in states) if channel.frozen else ()
    if isinstance(channel, Gaussian):
        return dataclasses.replace(channel, mean=jnp.asarray(channel.mean)[states], frozen=frozen)
    if isinstance(channel, Discrete):
        values, probs = jnp.asarray(channel.values)[states], jnp.asarray(channel.probs)[states]
        return dataclasses.replace(channel, values=values, probs=probs, frozen=frozen)
    return None


def membership(groups: tuple[int, ...], dtype: Any) -> Float[Array, "group state"]:
    """1 where the state belongs to the group."""
    of_state = np.asarray(groups)
    return jnp.asarray(np.arange(of_state.max() + 1)[:, None] == of_state, dtype)


def _alike(channels: list[Channel], states: np.ndarray) -> list[tuple[list[str], Channel]]:
    """Channels that differ in their numbers alone, side by side: they compile as one. Restricted to some states."""
    kinds: dict[Any, list[tuple[str, Channel]]] = {}
    for c in channels:
        law = _narrow(c, states) or c
        law = dataclasses.replace(law, name="", start=None, shown=True, likelihoods=())
        shapes = tuple(jnp.shape(x) for x in jax.tree.leaves(law))
        kinds.setdefault((jax.tree.structure(law), shapes), []).append((c.name, law))
    return [
        (
            [n for n, _ in members],
            jax.tree.map(lambda *x: jnp.stack([jnp.asarray(v) for v in x]), *[c for _, c in members]),
        )
        for members in kinds.values()
    ]


class SeriesEvidence(eqx.Module):
    """log P(readings | parameters) of each of many series, as a function of the factor.

    Attributes:
        values: channel -> its distinct readings.
        where: channel -> (week, series) which of them was read.
        groups: (state,) see `emission_groups`.
        likelihood, initial: see `Factor.log_likelihood`, `Factor.initial`.
    """

    values: dict[str, Float[Array, " value"]]
    where: dict[str, Int[Array, "week series"]]
    groups: tuple[int, ...] = eqx.field(static=True)
    likelihood: Likelihood = eqx.field(static=True)
    initial: Initial = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        factor: Factor,
        readings: Mapping[str, Float[Array, "series week"]],
        likelihood: Likelihood = "exact",
        initial: Initial = "baseline",
        *,
        distinct: bool = True,
    ) -> SeriesEvidence:
        """Prepare the readings of many series, channel -> (series, week), nan where there is none.

        Series of unequal length are filled up with nan: weeks without readings say nothing.

        Args:
            factor: of which the readings are.
            readings: see above; a channel may be absent.
            likelihood: see `Factor.log_likelihood`.
            initial: see `Factor.initial`. With the `baseline` start, a channel whose first reading is a constant of the
                world says nothing in week 0.
            distinct: compute each distinct reading once. Without it shapes depend on the shape of the readings alone,
                so that one compiled function serves many data sets.

        Raises:
            InputError: for unknown channels or shapes that differ.
        """
        channels = {c.name: c for c in factor.shown_channels()}
        unknown = sorted(readings.keys() - channels.keys())
        if unknown or not readings:
            problem = f"unknown channel(s) {', '.join(unknown)}" if unknown else "no readings"
            raise InputError(f"{factor.name}: {problem}; it shows {', '.join(channels)}")
        shapes = {name: np.shape(x) for name, x in readings.items()}
        if len(set(shapes.values())) > 1 or any(len(s) != 2 or 0 in s for s in shapes.values()):
            raise InputError(f"{factor.name}: readings must be (series, week) arrays of one shape, not {shapes}")
        values, where = {}, {}
        for name, channel in channels.items():
            if name not in readings or not channel.speaks(likelihood):
                continue
            y = np.array(readings[name], np.float64)
            if initial == "baseline" and channel.start is not None:
                y[:, 0] = np.nan
            if distinct:
                if np.isnan(y).all():
                    continue
                listed, index = np.unique(y, return_inverse=True)
                # Filled up with missing readings, so that data sets of one size mostly share a compiled function.
                values[name] = np.pad(listed, (0, -len(listed) % 32), constant_values=np.nan)
            else:
                values[name], index = y.ravel(), np.arange(y.size)
            where[name] = np.ascontiguousarray(index.reshape(y.shape).T, np.int32)
        groups = emission_groups(factor, tuple(values))
        return cls(values, where, groups, likelihood, initial)

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels with any reading that this likelihood uses."""
        return tuple(self.values)

    def __call__(self, factor: Factor) -> Float[Array, " series"]:
        """log P(all readings of a series) for every series, in the type of the factor's parameters; -inf if impossible."""
        transition = jnp.asarray(factor.transition_matrix())
        initial = jnp.asarray(factor.initial(self.initial), transition.dtype)
        return batch_evidence(initial, transition, self.table(factor), membership(self.groups, transition.dtype))

    def table(self, factor: Factor) -> Float[Array, "week group series"]:
        """log P(the week's readings | a state of the group)."""
        dtype = jax.tree.leaves(factor)[0].dtype
        first = np.array([self.groups.index(g) for g in range(max(self.groups) + 1)])
        total: Any = None
        for names, law in _alike([c for c in factor.shown_channels() if c.name in self.values], first):
            longest = max(len(self.values[n]) for n in names)
            padded = [
                jnp.pad(jnp.asarray(self.values[n], dtype), (0, longest - len(self.values[n])), constant_values=jnp.nan)
                for n in names
            ]
            rows = jax.vmap(lambda one, ys: jax.vmap(lambda y: self._log_prob(one, y))(ys))(law, jnp.stack(padded))
            rows = rows if rows.shape[2] == len(first) else rows[:, :, first]
            # Without the barrier XLA moves the arithmetic behind the look-up and does it for every week again.
            rows = jax.lax.optimization_barrier(jnp.swapaxes(rows, 1, 2))
            for name, own in zip(names, rows, strict=True):
                weekly = own[:, self.where[name]]
                total = weekly if total is None else total + weekly
        if total is None:
            raise InputError(f"{factor.name}: no channel has a reading that the {self.likelihood!r} likelihood uses")
        return jnp.swapaxes(total, 0, 1)

    def _log_prob(self, law: Channel, y: Array) -> Array:
        return law.log_prob(y, self.likelihood) + law.log_scale(y, self.likelihood)

    def tabulated(self, factor: Factor) -> TabulatedEvidence:
        """The same with this factor's emission laws, in float64: for when the transitions alone are in question."""
        with jax.enable_x64(True):
            host = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), factor)
            table = np.asarray(jax.jit(lambda e, f: e.table(f))(self, host))
        return TabulatedEvidence(table, self.groups, self.initial)


class TabulatedEvidence(eqx.Module):
    """`SeriesEvidence` with the emissions' part worked out: a function of the transitions alone.

    Attributes:
        table: log P(the week's readings | a state of the group).
        groups, initial: see `SeriesEvidence`.
    """

    table: Float[Array, "week group series"]
    groups: tuple[int, ...] = eqx.field(static=True)
    initial: Initial = eqx.field(static=True)

    def __call__(self, factor: Factor) -> Float[Array, " series"]:
        """See `SeriesEvidence.__call__`."""
        transition = jnp.asarray(factor.transition_matrix())
        initial = jnp.asarray(factor.initial(self.initial), transition.dtype)
        table = jnp.asarray(self.table, transition.dtype)
        return batch_evidence(initial, transition, table, membership(self.groups, transition.dtype))


@jax.custom_vjp
def batch_evidence(
    initial: Float[Array, " state"],
    transition: Float[Array, "state state"],
    table: Float[Array, "week group series"],
    membership: Float[Array, "group state"],
) -> Float[Array, " series"]:
    """log P(all readings) of each series by the forward filter; -inf where they are impossible.

    Reverse-mode gradients are exact, finite at structural zeros (the derivative towards a probability that is zero is the
    evidence that a move there would have), and can be differentiated again; there is no forward mode.

    Args:
        initial: law of the state in week 0.
        transition: `transition[i, j]` = P(next state is j | this state is i).
        table: log P(the week's readings | a state of the group).
        membership: which states belong to which group.
    """
    return _forward(initial, transition, table, membership)[0]


def _forward(initial: Array, transition: Array, table: Array, membership: Array) -> tuple[Array, tuple[Array, Array]]:
    onward = transition.T

    def step(predicted: Array, log_likelihood: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        mass = jnp.matmul(membership, predicted, precision="highest")
        # Scaled by the largest likelihood among reachable groups, so that nothing underflows that matters.
        heard = (mass > 0) & jnp.isfinite(log_likelihood)
        best = jnp.max(jnp.where(heard, log_likelihood, -jnp.inf), axis=0, keepdims=True)
        possible = jnp.isfinite(best)
        best = jnp.where(possible, best, 0.0)
        likelihood = jnp.where(heard, jnp.exp(jnp.where(heard, log_likelihood, best) - best), 0.0)
        total = jnp.where(possible, jnp.sum(mass * likelihood, axis=0, keepdims=True), 1.0)
        # An impossible reading leaves the prediction as it is; the evidence tells.
        ratio = jnp.where(possible, likelihood / total, 1.0)
        belief = predicted * jnp.matmul(membership.T, ratio, precision="highest")
        evidence = jnp.where(possible, best + jnp.log(total), -jnp.inf)
        return jnp.matmul(onward, belief, precision="highest"), (belief, ratio, evidence[0])

    first = jnp.broadcast_to(initial[:, None], (initial.shape[0], table.shape[2]))
    _, (belief, ratio, evidence) = jax.lax.scan(step, first, table)
    return jnp.sum(evidence, axis=0), (belief, ratio)


def _forward_saved(
    initial: Array, transition: Array, table: Array, membership: Array
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    evidence, (belief, ratio) = _forward(initial, transition, table, membership)
    return evidence, (transition, belief, ratio, membership)


def _backward(saved: tuple[Array, Array, Array, Array], weight: Array) -> tuple[Array, Array, Array, Array]:
    """Expected counts, weighted by series: the gradient of the evidence."""
    transition, belief, ratio, membership = saved

    def step(later: Array, week: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        belief_now, ratio_now = week
        # `later` is P(readings after this week | state) over its mean, `arriving` the same with this week's readings.
        arriving = jnp.matmul(membership.T, ratio_now, precision="highest") * later
        smoothed = jnp.matmul(membership, belief_now * later, precision="highest")
        return jnp.matmul(transition, arriving, precision="highest"), (arriving, smoothed)

    last = jnp.broadcast_to(weight[None], belief.shape[1:])
    _, (arriving, smoothed) = jax.lax.scan(step, last, (belief, ratio), reverse=True)
    moves = jnp.einsum("tin,tjn->ij", belief[:-1], arriving[1:], precision="highest")
    return jnp.sum(arriving[0], axis=1), moves, smoothed, jnp.zeros_like(membership)


batch_evidence.defvjp(_forward_saved, _backward)
