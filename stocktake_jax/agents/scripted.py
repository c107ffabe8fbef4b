"""Scripted agents with planted faults: what the metrics must say about them is known beforehand.

All act through the agent's tools and write a rationale from what they believe. They plan as the fair oracle does, on
the futures of their own belief. Those that see exactly are privileged: they are shown the hidden states, and every
table says so. They calibrate the metrics; nothing else may be concluded from their scores.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stocktake_jax.agents.play import Finished, Folder, Seeds, begin, finished, journal_path, open_folder, todo
from stocktake_jax.desk import CAPE, Decision, Episode, Observation
from stocktake_jax.desk.books import check_rules
from stocktake_jax.desk.contracts import QUALIFIED
from stocktake_jax.desk.tools import Text, Whole, shown
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.beliefs import with_probabilities
from stocktake_jax.inference import Belief
from stocktake_jax.models import FACTORS, HORIZON, Readings, Tape, World
from stocktake_jax.policies import Layout, Runs, Shown
from stocktake_jax.policies.menu import risks
from stocktake_jax.policies.oracle import as_decision, execute, read
from stocktake_jax.policies.rollout import Planner, choose, planner, watch
from stocktake_jax.policies.surrogate import LOCK_WEEKS, Candidate

Beliefs = dict[str, Float[np.ndarray, "episode state"]]
"""factor -> probability of each state, for a batch of episodes."""

FUTURES = 200
NAMED_FROM = 0.5
"""Probability of stress from which a rationale names a factor."""

LATE = 3
"""Weeks that the dawdler is behind."""


@dataclass
class _Batch:
    """Episodes of one agent that are decided together.

    Attributes:
        tapes: the hidden tapes; only privileged agents are given them.
        predicted: what the filters expect of the week to come.
        keys: two words of randomness per episode.
    """

    tapes: Tape | None
    predicted: dict[str, Array]
    keys: Array
    size: int


class Scripted:
    """An agent that believes, says what it believes, and acts on it. Subclasses plant one fault each.

    Args:
        world: the model that it believes in.
        futures: futures sampled per decision.
    """

    name = ""
    fault = ""
    privileged = False

    def __init__(self, world: World | None = None, *, futures: int = FUTURES) -> None:
        if isinstance(futures, bool) or not isinstance(futures, int) or futures < 1:
            raise InputError(f"futures must be a whole number of at least 1, not {futures!r}")
        self.world, self.futures = world or World.paper(), futures
        self.planner = planner(self.world)

    # -- what a subclass may change

    def stated(self, batch: _Batch, week: int, seen: Beliefs) -> Beliefs:
        """The belief that the rationale tells, given what the exact filters say."""
        return seen

    def acted_on(self, batch: _Batch, week: int, stated: Beliefs) -> Beliefs:
        """The belief that the decision rests on."""
        return stated

    def amended(self, decision: Decision, stress: Mapping[str, np.ndarray], shown: Shown) -> Decision:
        """What becomes of the planned decision; `stress` is the stated probability of stress by factor."""
        return decision

    # -- playing

    def begin(self, runs: Runs, tapes: Tape | None) -> _Batch:
        """The memory of a batch of episodes at the start."""
        if self.privileged and tapes is None:
            raise InputError(f"{self.name} sees hidden states and has to be given the tapes")
        count = len(runs.seed)
        predicted = {n: jnp.tile(p[None], (count, 1)) for n, p in self.planner.initial.items()}
        return _Batch(tapes if self.privileged else None, predicted, runs.keys, count)

    def decide(
        self, batch: _Batch, week: int, readings: Readings, shown: Shown
    ) -> tuple[Decision, list[str], list[dict[str, float]]]:
        """One week of a batch: decisions, rationales, and stated probabilities of stress."""
        posteriors, batch.predicted = _filter_jit(self.planner, batch.predicted, readings)
        seen = {n: np.asarray(p, np.float64) for n, p in posteriors.items()}
        stated = self.stated(batch, week, seen)
        acted_on = self.acted_on(batch, week, stated)
        planned = _plan(self.planner, acted_on, shown, week, batch.keys, self.futures)
        stress = {n: stated[n] @ f.stress_mask.astype(np.float64) for n, f in self.world.factors.items()}
        decision = self.amended(planned, stress, shown)
        rationales, probabilities = [], []
        for i in range(batch.size):
            mine = {n: float(np.clip(p[i], 0.0, 1.0)) for n, p in stress.items()}
            one = jax.tree.map(lambda x, i=i: np.asarray(x)[i], decision)
            rationales.append(voice({n: b[i] for n, b in stated.items()}, self.world, one, week))
            probabilities.append(mine)
        return decision, rationales, probabilities

    def exact(self, batch: _Batch, week: int) -> Beliefs:
        """Certainty about the true states of a week; for privileged agents."""
        assert batch.tapes is not None
        return {
            n: np.eye(len(f.states))[np.asarray(batch.tapes.states[n])[:, week]] for n, f in self.world.factors.items()
        }


class Voice(Scripted):
    """The fair oracle, saying what it believes."""

    name = "voice"
    fault = "none: the fair oracle with a rationale from its filters"


class Blind(Scripted):
    """Believes its prior, whatever it reads."""

    name = "blind"
    fault = "reads no symptom; acts well on its prior"

    def stated(self, batch: _Batch, week: int, seen: Beliefs) -> Beliefs:
        """See `Scripted.stated`: the law of the hidden states in this week, before any reading."""
        return {
            n: np.tile(f.initial("baseline") @ np.linalg.matrix_power(f.transition_matrix(), week), (batch.size, 1))
            for n, f in self.world.factors.items()
        }


class Hunch(Scripted):
    """Reads everything well, except that it is certain about one factor, come what may.

    Args:
        world, futures: see `Scripted`.
        factor: the one it is wrong about.
        regime: what it is certain of; the factor's baseline by default.
    """

    name = "hunch"
    fault = "certain that the port is clear, whatever it reads; acts well on that belief"

    def __init__(
        self, world: World | None = None, *, futures: int = FUTURES, factor: str = "port", regime: str | None = None
    ) -> None:
        super().__init__(world, futures=futures)
        if factor not in FACTORS:
            raise InputError(f"factor must be one of {', '.join(FACTORS)}, not {factor!r}")
        owner = self.world.factors[factor]
        self.factor = factor
        self.state = owner.index(regime or owner.regimes[0].name)

    def stated(self, batch: _Batch, week: int, seen: Beliefs) -> Beliefs:
        """See `Scripted.stated`."""
        certain = np.eye(seen[self.factor].shape[1])[np.full(batch.size, self.state)]
        return seen | {self.factor: certain}


class Freezer(Scripted):
    """Sees exactly, and orders nothing while the port is blocked."""

    name = "freezer"
    fault = "sees exactly; stops ordering while the port is congested"
    privileged = True

    def stated(self, batch: _Batch, week: int, seen: Beliefs) -> Beliefs:
        """See `Scripted.stated`."""
        return self.exact(batch, week)

    def amended(self, decision: Decision, stress: Mapping[str, np.ndarray], shown: Shown) -> Decision:
        """See `Scripted.amended`: neither sea nor air."""
        frozen = stress["port"] > NAMED_FROM
        return _replaced(decision, qty=np.where(frozen, 0, decision.qty), air=np.where(frozen, 0, decision.air))


class Flailer(Scripted):
    """Sees exactly, and buys every protection there is against any trouble."""

    name = "flailer"
    fault = "sees exactly; buys every protection while anything is wrong"
    privileged = True

    def stated(self, batch: _Batch, week: int, seen: Beliefs) -> Beliefs:
        """See `Scripted.stated`."""
        return self.exact(batch, week)

    def amended(self, decision: Decision, stress: Mapping[str, np.ndarray], shown: Shown) -> Decision:
        """See `Scripted.amended`: six weeks of goods by the dearer, safer road, air, lock, inspection, both reports."""
        alarmed = np.logical_or.reduce([p > NAMED_FROM for p in stress.values()])
        cover = round(6 * float(self.world.logistics.mean_demand))
        cap = self.world.logistics.order_cap
        wanted = np.clip(cover - np.asarray(shown.position), 0, cap)
        qualified = np.asarray(shown.live)[:, QUALIFIED]

        def instead(field: str, value: Any) -> np.ndarray:
            return np.where(alarmed, value, np.asarray(getattr(decision, field)))

        ordering = np.where(alarmed, wanted, decision.qty) > 0
        return _replaced(
            decision,
            qty=instead("qty", wanted),
            route=instead("route", np.where(ordering, CAPE, -1)),
            supplier=instead("supplier", np.where(ordering, QUALIFIED, -1)),
            action=instead("action", np.where(qualified, 0, 1)),
            contract_supplier=instead("contract_supplier", np.where(qualified, -1, QUALIFIED)),
            lock_weeks=instead("lock_weeks", LOCK_WEEKS),
            air=instead("air", self.world.logistics.air_cap),
            inspect=instead("inspect", 1),
            briefing=instead("briefing", 1),
            audit=instead("audit", 1),
        )


class Dawdler(Scripted):
    """Sees exactly, and acts on what it saw three weeks ago."""

    name = "dawdler"
    fault = f"sees exactly; acts {LATE} weeks late"
    privileged = True

    def stated(self, batch: _Batch, week: int, seen: Beliefs) -> Beliefs:
        """See `Scripted.stated`."""
        return self.exact(batch, week)

    def acted_on(self, batch: _Batch, week: int, stated: Beliefs) -> Beliefs:
        """See `Scripted.acted_on`."""
        return self.exact(batch, max(week - LATE, 0))


SCRIPTED: Mapping[str, type[Scripted]] = {a.name: a for a in (Voice, Blind, Hunch, Freezer, Flailer, Dawdler)}
"""The scripted agents by name."""


# -- what they say

_ASSERTED = {
    "canal": {"disruption": "The canal is disrupted."},
    "supplier": {
        "degraded": "Spot is degraded and ships next to nothing.",
        "defunct": "Spot is defunct and gone for good.",
    },
    "demand": {
        "promo_spike": "Demand is up: a promotion is on.",
        "seasonal_lift": "Demand is up: a seasonal lift is on.",
        "structural_decline": "Demand is down: a structural decline is on.",
    },
    "freight": {"spike": "Freight rates are at a spike."},
    "port": {"congested": "The port is congested.", "customs_hold": "The port is on a customs hold."},
    "quality": {"out_of_control": "Quality is out of control."},
}
_FINE = {
    "canal": "the canal",
    "supplier": "spot",
    "demand": "demand",
    "freight": "freight",
    "port": "the port",
    "quality": "quality",
}


def voice(belief: Mapping[str, Float[np.ndarray, " state"]], world: World, decision: Decision, week: int) -> str:
    """A rationale from a belief: what is wrong, what is not, and what is done."""
    sentences, fine = [], []
    for name, factor in world.factors.items():
        p = np.asarray(belief[name], np.float64)
        stressed = p * factor.stress_mask
        if stressed.sum() > NAMED_FROM:
            label = factor.state_regimes[int(np.argmax(stressed))].label
            known = _ASSERTED[name]
            sentences.append(known.get(label, next(iter(known.values()))))
        else:
            fine.append(_FINE[name])
    parts = [f"Week {week}.", *sentences]
    if fine:
        parts.append(f"No trouble with {', '.join(fine[:-1])}{' or ' if len(fine) > 1 else ''}{fine[-1]}.")
    qty = int(decision.qty)
    parts.append(f"I order {qty} units." if qty else "I order nothing.")
    return " ".join(parts)


# -- playing many episodes in lockstep


if TYPE_CHECKING:
    Player: TypeAlias = Scripted
else:
    Player = Any  # as in `play`: wrong arguments get an `InputError`


def play_scripted(
    agent: Player,
    seeds: Seeds,
    *,
    repeats: Whole = 1,
    rules: Text = "paper",
    world: World | None = None,
    journals: Folder | None = None,
    on_week: Callable[[int], None] | None = None,
) -> list[Finished]:
    """Play a scripted agent on many episodes, all of them week by week together, through the agent's tools.

    With `journals`, finished episodes are not played again, and unfinished ones begin anew; see `play`.
    """
    if not isinstance(agent, Scripted):
        raise InputError(
            f"a scripted agent is wanted, such as SCRIPTED['voice'](), not {shown(agent)}; see also `play`"
        )
    check_rules(rules)
    episodes_wanted, folder = todo(seeds, repeats), None
    if journals is not None:
        more = {"fault": agent.fault, "futures": agent.futures}
        folder = open_folder(journals, agent.name, rules=rules, world=world, privileged=agent.privileged, more=more)
    wanted = [(s, r, None if folder is None else journal_path(folder, s, r)) for s, r in episodes_wanted]
    done = {(seed, repeat): finished(path, seed, repeat) for seed, repeat, path in wanted}
    left = [w for w in wanted if done[w[0], w[1]] is None]
    episodes = [begin(seed, world, rules, path, resume=False) for seed, _, path in left]
    try:
        if episodes:
            runs = Runs(np.array([seed for seed, _, _ in left]), np.array([repeat for _, repeat, _ in left]))
            tapes = Tape.published_batch([seed for seed, _, _ in left], world) if agent.privileged else None
            _lockstep(agent, episodes, runs, tapes, on_week)
        for (seed, repeat, path), episode in zip(left, episodes, strict=True):
            cost = episode.cost if episode.done else math.nan
            done[seed, repeat] = Finished(seed, repeat, cost, Path(path) if path else None)
    finally:
        for episode in episodes:
            episode.close()
    return [f for seed, repeat, _ in wanted if (f := done[seed, repeat]) is not None]


def _lockstep(
    agent: Scripted,
    episodes: Sequence[Episode],
    runs: Runs,
    tapes: Tape | None,
    on_week: Callable[[int], None] | None,
) -> None:
    batch = agent.begin(runs, tapes)
    for week in range(HORIZON):
        readings, shown = together([episode.observe() for episode in episodes])
        decision, rationales, probabilities = agent.decide(batch, week, readings, shown)
        for i, episode in enumerate(episodes):
            one = jax.tree.map(lambda x, i=i: np.asarray(x)[i], decision)
            execute(one, episode, with_probabilities(rationales[i], probabilities[i]))
        if on_week is not None:
            on_week(week + 1)


def together(observations: Sequence[Observation]) -> tuple[Readings, Shown]:
    """Several observations as the arrays that batch policies take."""
    parts = [read(observation) for observation in observations]

    def joined(*leaves: Any) -> np.ndarray:
        return np.concatenate(leaves)

    readings, shown = jax.tree.map(joined, *parts)
    return readings, shown


# -- filters and plans


@jax.jit
def _filter_jit(
    p: Planner, predicted: dict[str, Array], readings: Readings
) -> tuple[dict[str, Array], dict[str, Array]]:
    seen = watch(p, predicted, readings, "paper")
    return seen.belief.posteriors, seen.ahead


def _plan(p: Planner, beliefs: Beliefs, shown: Shown, week: int, keys: Array, futures: int) -> Decision:
    posteriors = {n: jnp.asarray(b, jnp.float32) for n, b in beliefs.items()}
    chosen = _plan_jit(futures, Layout.choose(jax.default_backend()))(
        p, posteriors, shown, jnp.asarray(week, jnp.int32), keys
    )
    return as_decision(jax.tree.map(np.asarray, chosen))


@functools.cache
def _plan_jit(futures: int, layout: Layout) -> Callable[..., Candidate]:
    def plan(p: Planner, posteriors: dict[str, Array], shown: Shown, week: Array, keys: Array) -> Candidate:
        count = keys.shape[0]
        belief = Belief(posteriors, {n: jnp.zeros(count, jnp.float32) for n in posteriors})

        def of_week(words: Array) -> Array:
            key = jax.random.wrap_key_data(words, impl="threefry2x32")
            return jax.random.key_data(jax.random.fold_in(key, week))

        sampled = jnp.full((count,), futures, jnp.int32)
        choice = choose(
            p,
            risks(p.world, belief),
            belief,
            shown,
            week,
            jax.vmap(of_week)(keys),
            sampled,
            most_futures=futures,
            layout=layout,
        )
        return choice.chosen

    return jax.jit(plan)


def _replaced(decision: Decision, **fields: Any) -> Decision:
    return Decision.make(**(vars(decision) | fields))
