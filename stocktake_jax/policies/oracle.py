"""The oracle as a policy: in a batch of runs, and in one episode through the agent's tools."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, UInt32

from stocktake_jax.desk import ACTIONS, ROUTES, SUPPLIERS, Decision, Episode, readings_from
from stocktake_jax.errors import InputError
from stocktake_jax.models import Initial, Likelihood, Readings, World
from stocktake_jax.policies.protocol import Runs, Shown
from stocktake_jax.policies.rollout import Choice, Layout, Planner, choose, opening_readings, planner, watch
from stocktake_jax.policies.surrogate import LOCK_WEEKS, QUALIFIED, Candidate

FEWEST_FUTURES = 190
"""Run r of the published protocol samples 190 + r futures a decision."""


def protocol_futures(replication: Any) -> Any:
    """Futures sampled by the published protocol's run r = 1 .. 20: 191 .. 210."""
    return FEWEST_FUTURES + replication


class Oracle:
    """Filters, sampled futures, a menu, the cheapest candidate. It is a `Policy` and a `BatchPolicy`.

    Args:
        model: the world that it believes in; the true one makes it the fair oracle. A posterior (`policies.posterior`)
            makes it average over its draws, in its filters and in its futures.
        likelihood, initial: how its filters read and start; the published ones by default.
        futures: futures sampled per decision; None: 190 + r in run r, as published.
        layout: how batches are cut; None: chosen by the platform. It does not change results.
        devices: the devices that share a batch; None: the default one.
        seed: in a single episode, what its own randomness starts from (a batch gives it by run). An agent's harness
            passes an arbitrary number; the benchmark passes the tape's, which tells the policy nothing.
    """

    def __init__(
        self,
        model: World | None = None,
        *,
        likelihood: Likelihood = "paper",
        initial: Initial = "uniform",
        futures: int | None = None,
        layout: Layout | None = None,
        devices: Sequence[jax.Device] | None = None,
        seed: int = 0,
    ) -> None:
        if futures is not None and (isinstance(futures, bool) or not isinstance(futures, int) or futures < 1):
            raise InputError(f"futures must be a whole number of at least 1, not {futures!r}")
        if likelihood not in ("paper", "exact"):
            raise InputError(f"likelihood must be 'paper' or 'exact', not {likelihood!r}")
        self.name = "oracle"
        self.model = model or World.paper()
        self.likelihood, self.initial, self.futures, self.seed = likelihood, initial, futures, seed
        self.devices = list(devices) if devices else [jax.devices()[0]]
        self.layout = layout or Layout.choose(self.devices[0].platform)
        self.planner = planner(self.model, initial)
        self._mesh = Mesh(np.array(self.devices), ("episode",)) if len(self.devices) > 1 else None
        self._memory: Any = None

    # -- many episodes

    def begin(self, runs: Runs) -> Any:
        """See `BatchPolicy.begin`: the prediction for week 0, the runs' keys, and how many futures each samples."""
        count = len(runs.seed)
        predicted = {n: np.tile(np.asarray(p)[None], (count, 1)) for n, p in self.planner.initial.items()}
        if self._mesh is not None:
            # As the weeks will return it: jit compiles anew for arguments that lie elsewhere.
            predicted = jax.device_put(predicted, NamedSharding(self._mesh, PartitionSpec("episode")))
        futures = protocol_futures(runs.replication) if self.futures is None else np.full(count, self.futures)
        return predicted, np.asarray(runs.keys), np.asarray(futures, np.int32)

    def decide(
        self, memory: Any, week: int, readings: Readings, shown: Shown
    ) -> tuple[Any, Decision, dict[str, np.ndarray]]:
        """See `BatchPolicy.decide`. Notes: `belief.<factor>` regime probabilities, `slot` chosen, `cost` expected."""
        predicted, keys, futures = memory
        predicted, choice, beliefs, _ = self._decide(predicted, week, readings, shown, keys, futures)
        chosen = jax.tree.map(np.asarray, choice.chosen)
        notes = {f"belief.{name}": np.asarray(b) for name, b in beliefs.items()}
        notes |= {"slot": np.asarray(choice.slot), "cost": np.asarray(jnp.min(choice.costs, axis=1))}
        return (predicted, keys, futures), as_decision(chosen), notes

    def _decide(
        self, predicted: Any, week: int, readings: Readings, shown: Shown, keys: Any, futures: np.ndarray
    ) -> tuple[Any, Choice, dict[str, Array], dict[str, Array]]:
        readings = jax.tree.map(lambda x: np.asarray(x, np.float32), readings)
        if week == 0:
            readings = opening_readings(self.model, readings, self.initial)
        most = max(int(futures.max()), protocol_futures(20) if self.futures is None else 0)
        return _decide_jit(self._mesh, most, self.layout, self.likelihood)(
            self.planner, predicted, readings, jax.tree.map(np.asarray, shown), np.int32(week), keys, futures
        )

    # -- one episode

    def reset(self, replication: int) -> None:
        """See `Policy.reset`."""
        self._memory = self.begin(Runs(np.array([self.seed]), np.array([replication])))

    def act(self, observation: Mapping[str, Any], desk: Episode) -> None:
        """See `Policy.act`: the decision of `decide`, carried out through the tools."""
        if self._memory is None:
            raise InputError("reset the oracle before its first week")
        readings, shown = read(observation)
        self._memory, d, _ = self.decide(self._memory, observation["week"], readings, shown)
        execute(jax.tree.map(lambda x: x[0], d), desk, "The cheapest candidate on the futures that I sampled.")


def read(observation: Mapping[str, Any]) -> tuple[Readings, Shown]:
    """An observation as the arrays that batch policies take, with an episode axis of length one."""
    ships = observation["pipeline"]
    slots = max(len(ships), 1) if len(ships) > _SLOTS else _SLOTS
    units, eta = np.zeros((1, slots), np.int32), np.zeros((1, slots), np.int32)
    for i, ship in enumerate(ships):
        units[0, i], eta[0, i] = ship["qty"], ship["eta"]
    lapsed = list(observation["contract_open"])
    live = np.zeros((1, len(SUPPLIERS)), bool)
    for contract in observation["contracts"]:
        ended = contract["end_week"] is not None and contract["end_week"] <= observation["week"]
        gone = contract["supplier"] in lapsed and contract["end_week"] is None
        live[0, SUPPLIERS.index(contract["supplier"])] |= not (ended or gone)
    sourced = np.array(["realized_fill" in observation])
    readings = jax.tree.map(lambda x: np.asarray(x, np.float32)[None], readings_from(observation))
    return readings, Shown(np.array([observation["inventory"]], np.int32), units, eta, live, sourced)


_SLOTS = 27


def execute(decision: Decision, desk: Episode, rationale: str) -> None:
    """Carry out a decision through the agent's tools, the order last."""
    d = {name: int(value) for name, value in vars(decision).items()}
    if d["briefing"]:
        desk.buy_briefing()
    if d["audit"]:
        desk.buy_audit()
    if d["lock_weeks"]:
        desk.lock_freight(d["lock_weeks"])
    if d["air"]:
        desk.expedite_air(d["air"])
    if d["inspect"]:
        desk.inspect_batch()
    contract: dict[str, Any] = {}
    if d["action"]:
        contract["contract_action"] = ACTIONS[d["action"] - 1]
        contract["contract_supplier"] = SUPPLIERS[d["contract_supplier"]]
    order = (ROUTES[d["route"]], SUPPLIERS[d["supplier"]]) if d["qty"] else (None, None)
    desk.place_order(rationale, d["qty"], *order, **contract)


def as_decision(chosen: Candidate) -> Decision:
    """A candidate of the menu in the terms of the books."""
    sign = np.asarray(chosen.sign)
    return Decision.make(
        qty=chosen.qty,
        route=chosen.route,
        supplier=chosen.supplier,
        action=np.where(sign, 1, 0),
        contract_supplier=np.where(sign, QUALIFIED, -1),
        lock_weeks=np.where(chosen.lock, LOCK_WEEKS, 0),
        air=chosen.air,
        inspect=np.asarray(chosen.inspect).astype(np.int32),
    )


def decide_batch(
    p: Planner,
    predicted: dict[str, Float[Array, "episode state"]],
    readings: Readings,
    shown: Shown,
    week: Int[Array, ""],
    keys: UInt32[Array, "episode 2"],
    futures: Int[Array, " episode"],
    *,
    most_futures: int,
    layout: Layout,
    likelihood: Likelihood,
) -> tuple[dict[str, Array], Choice, dict[str, Array], dict[str, Array]]:
    """A week of a batch: the predictions for the next one, the choices, beliefs by regime, log evidence by factor."""
    seen = watch(p, predicted, readings, likelihood)
    key = jax.vmap(lambda k: jax.random.key_data(jax.random.fold_in(_wrap(k), week)))(keys)
    choice = choose(p, seen.risks, seen.belief, shown, week, key, futures, most_futures=most_futures, layout=layout)
    return seen.ahead, choice, seen.regimes, seen.belief.log_evidence


@functools.cache
def _decide_jit(mesh: Mesh | None, most_futures: int, layout: Layout, likelihood: Likelihood) -> Any:
    """The jitted week of a batch, its episodes shared among the mesh's devices if there is one."""

    def decide(*arguments: Any) -> Any:
        return decide_batch(*arguments, most_futures=most_futures, layout=layout, likelihood=likelihood)

    if mesh is None:
        return jax.jit(decide)
    here, everywhere = PartitionSpec("episode"), PartitionSpec()
    specs = (everywhere, here, here, here, everywhere, here, here)
    return jax.jit(jax.shard_map(decide, mesh=mesh, in_specs=specs, out_specs=here, check_vma=False))


def _wrap(words: Array) -> Array:
    return jax.random.wrap_key_data(words, impl="threefry2x32")
