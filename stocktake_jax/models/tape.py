"""Tapes: every hidden and emitted value of an episode's weeks, fixed before anybody acts.

A published seed's tape comes from Python's own generator on the host, draw by draw; fresh tapes come from a JAX key.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from stocktake_jax.errors import InputError
from stocktake_jax.models.factor import STAY, Branch, Factor, State
from stocktake_jax.models.quality import RESULTS
from stocktake_jax.models.world import FACTORS, HORIZON, World

Readings = dict[str, dict[str, Float[Array, "..."]]]
"""Shown readings: factor -> channel -> values; nan where a channel is not there. All that filters take."""


class Tape(eqx.Module):
    """The hidden states and emitted values of weeks 0 .. 26, with any leading axes.

    Attributes:
        states: factor -> (..., week) index of the state.
        ages: factor -> (..., week) weeks since the regime began, not capped.
        values: factor -> channel -> (..., week) what was emitted; hidden channels included. Published tapes are float64
            numpy, fresh ones float32 jax arrays that `snapped` turns into the same decimals.
    """

    states: dict[str, Int[Array, "*batch week"]]
    ages: dict[str, Int[Array, "*batch week"]]
    values: dict[str, dict[str, Float[Array, "*batch week"]]]

    @classmethod
    def published(cls, seed: int, world: World | None = None) -> Tape:
        """The tape of a seed: a function of the seed (and the world's parameters), the same on every machine.

        Raises:
            InputError: if the seed is not a whole number >= 0.
        """
        return _Generator(world or World.paper()).tape(seed)

    @classmethod
    def published_batch(cls, seeds: Sequence[int], world: World | None = None) -> Tape:
        """The tapes of several seeds, stacked along a leading axis."""
        generator = _Generator(world or World.paper())
        return jax.tree.map(lambda *leaves: np.stack(leaves), *[generator.tape(s) for s in seeds])

    @classmethod
    def sample(cls, world: World, *, key: Array, weeks: int = HORIZON + 1) -> Self:
        """A fresh tape of the same law. Jit and vmap it over keys for as many as memory holds."""
        states, ages, values = {}, {}, {}
        # Few calls of the generator, since each costs some tenths of a second of compilation: one draw for all moves,
        # one split for all channels.
        chain_key, emission_key = jax.random.split(key)
        moves = jax.random.uniform(chain_key, (len(FACTORS), weeks - 1), jnp.asarray(world.port.wait_sd).dtype)
        counts = [len(factor.channels()) for factor in world.factors.values()]
        keys = jax.random.split(emission_key, sum(counts))
        for i, (name, factor) in enumerate(world.factors.items()):
            states[name], age = factor.follow(moves[i])
            ageless = jnp.asarray([r.ageless for r in factor.state_regimes])[states[name]]
            ages[name] = jnp.where(ageless, 0, age)
            values[name] = factor.emit(states[name], keys[sum(counts[:i]) : sum(counts[: i + 1])])
        return cls(states, ages, values)

    @classmethod
    def sample_batch(cls, world: World, count: int, *, key: Array, weeks: int = HORIZON + 1, start: int = 0) -> Tape:
        """Fresh tapes start .. start + count - 1 in one jitted call; tape i depends on the key and i alone."""
        numbers = jnp.arange(start, start + count)
        return _sample_batch(world, jax.vmap(lambda i: jax.random.fold_in(key, i))(numbers), weeks)

    def snapped(self, world: World) -> Self:
        """The tape with every emitted value as the float64 number of its channel's decimals, in numpy."""
        values = {
            name: {c.name: c.snap(self.values[name][c.name]) for c in factor.channels()}
            for name, factor in world.factors.items()
        }
        return type(self)(jax.tree.map(np.asarray, self.states), jax.tree.map(np.asarray, self.ages), values)

    def readings(self, world: World, sourced: Bool[Array, "*batch week"] | None = None) -> Readings:
        """What an observer reads. `sourced` says in which weeks spot shipped an order, so that its fill is known.

        Without it nothing was ordered and no fill is shown.
        """
        out: Readings = {}
        for name, factor in world.factors.items():
            out[name] = {c.name: c.reading(self.values[name][c.name]) for c in factor.shown_channels()}
        fill = out["supplier"]["realized_fill"]
        hidden = jnp.full_like(fill, jnp.nan) if isinstance(fill, jax.Array) else np.full_like(fill, np.nan)
        if sourced is None:
            out["supplier"]["realized_fill"] = hidden
        else:
            xp: Any = jnp if isinstance(fill, jax.Array) else np
            out["supplier"]["realized_fill"] = xp.where(sourced, fill, hidden)
        return out

    def regimes(self, world: World) -> dict[str, list[str]]:
        """factor -> the report's regime name of every week, for a single tape."""
        return {
            name: [factor.state_regimes[int(s)].label for s in np.asarray(self.states[name])]
            for name, factor in world.factors.items()
        }

    def to_json(self, seed: int, world: World) -> dict[str, Any]:
        """A single published tape in the exchange shape: seed, and per week and factor the hidden and emitted values."""
        weeks = []
        regimes = self.regimes(world)
        for t in range(np.asarray(self.states["canal"]).shape[0]):
            week: dict[str, dict[str, Any]] = {}
            for name in FACTORS:
                week[name] = {"regime": regimes[name][t], "age": int(self.ages[name][t])}
                value = {k: float(v[t]) for k, v in self.values[name].items()}
                week[name].update(_exchange(name, int(self.states[name][t]), value, world))
            weeks.append(week)
        return {"seed": int(seed), "weeks": weeks}


def _exchange(name: str, state: int, value: dict[str, float], world: World) -> dict[str, Any]:
    """The emitted values of one factor and week under the exchange format's keys and types."""
    if name == "canal":
        regime = world.canal.state_regimes[state]
        plain = world.canal.channels()[2].values[state, 1]  # type: ignore[attr-defined]
        return {
            "kind": regime.name if regime.label == "disruption" else None,
            "cape_local": value["cape_count"] != float(plain),
        }
    if name == "supplier":
        fill = value["realized_fill"]
        return {"lead_slip": value["realized_lead_slip"], "fill": None if np.isnan(fill) else fill}
    if name == "demand":
        return {"units": int(value["pos_units"]), "forecast": int(value["demand_forecast"])}
    if name == "freight":
        return {"multiplier": value["freight_index"], "outlook": value["freight_outlook"]}
    if name == "port":
        return {"berth_wait": int(value["berth_wait"]), "wait_outlook": int(value["wait_outlook"])}
    return {"aql": RESULTS[int(value["aql_result"])], "defect_fraction": value["defect_fraction"]}


@eqx.filter_jit
def _sample_batch(world: World, keys: Array, weeks: int) -> Tape:
    return jax.vmap(lambda k: Tape.sample(world, key=k, weeks=weeks))(keys)


class _Generator:
    """The published generator: one Mersenne Twister, consumed by the factors in their order, week by week."""

    def __init__(self, world: World) -> None:
        self.factors = [_HostFactor(f) for f in world.factors.values()]

    def tape(self, seed: int) -> Tape:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise InputError(f"a seed is a whole number of at least 0, not {seed!r}")
        rng = random.Random(int(seed))
        runs = [_HostRun(f) for f in self.factors]
        for _ in range(HORIZON):
            for run in runs:
                run.step(rng)
        return Tape(
            {r.host.name: np.array(r.states, np.int32) for r in runs},
            {r.host.name: np.array(r.ages, np.int32) for r in runs},
            {r.host.name: {c.name: np.array(v) for c, v in zip(r.host.channels, r.values, strict=True)} for r in runs},
        )


class _HostFactor:
    """What the generator needs of a factor, as plain Python values."""

    def __init__(self, factor: Factor) -> None:
        self.name, self.channels = factor.name, factor.channels()
        self.baseline = factor.regimes[0].name
        self.state_of = {state: i for i, state in enumerate(factor.states)}
        self.oldest = {r.name: r.ages - 1 for r in factor.regimes}
        self.ageless = {r.name for r in factor.regimes if r.ageless}
        self.moves = [factor.moves(*state) for state in factor.states]
        self.draws = [(c.frozen, c.drawer()) for c in self.channels]


class _HostRun:
    """One factor on its way through the weeks of one seed."""

    def __init__(self, host: _HostFactor) -> None:
        self.host, self.regime, self.age = host, host.baseline, 0
        self.states, self.ages = [0], [0]
        self.values = [[float("nan") if c.start is None else c.start] for c in host.channels]

    def step(self, rng: random.Random) -> None:
        """One week: the move, then every channel in its order."""
        host = self.host
        node = host.moves[self.states[-1]]
        while isinstance(node, Branch):
            u, cumulative = rng.random(), 0.0
            for p, child in node.outcomes:
                cumulative += float(p)
                if u < cumulative:
                    node = child
                    break
            else:
                node = node.otherwise
        self.regime, self.age = (self.regime, self.age + 1) if node == STAY else (node, 0)
        state = host.state_of[State(self.regime, min(self.age, host.oldest[self.regime]))]
        self.states.append(state)
        self.ages.append(0 if self.regime in host.ageless else self.age)
        for values, (frozen, draw) in zip(self.values, host.draws, strict=True):
            values.append(values[-1] if frozen and frozen[state] else draw(rng, state))
