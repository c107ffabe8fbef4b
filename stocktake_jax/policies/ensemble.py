"""Many oracles at once: one batch over models of the world, which a study compares on the same tapes and futures."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float

from stocktake_jax.desk import Decision
from stocktake_jax.errors import InputError
from stocktake_jax.models import FACTORS, HORIZON, Initial, Likelihood, Readings, World
from stocktake_jax.policies.oracle import as_decision, decide_batch, protocol_futures
from stocktake_jax.policies.posterior import Matrices, draws_of, laws
from stocktake_jax.policies.protocol import Runs, Shown
from stocktake_jax.policies.rollout import Layout, Planner, assemble, opening_readings

WIDE = 8
"""Models that an accelerator works on side by side; a CPU takes one after the other, to stay in its cache."""


def long_run(transition: np.ndarray) -> np.ndarray:
    """(state,) the law under which a factor is believed to be by somebody who never looks.

    The stationary law; for a chain with an absorbing state, whose stationary law says only that all is lost, the share
    of an episode's weeks that it spends in each state, from its first one.
    """
    matrix = np.asarray(transition, np.float64)
    if np.any(np.diag(matrix) == 1.0):
        weeks = [np.eye(len(matrix))[0]]
        for _ in range(HORIZON):
            weeks.append(weeks[-1] @ matrix)
        return np.asarray(np.mean(weeks, axis=0))
    far = np.linalg.matrix_power(matrix, 4096)[0]
    return np.asarray((far + far @ matrix) / 2)


class OracleEnsemble:
    """Oracles that differ in the model they believe in, as one `BatchPolicy`.

    Its runs are the models one after the other: model m has the entries m n .. (m + 1) n - 1, n being the runs of one
    model. Each run's randomness depends on its seed and replication alone, so that models meet on common random numbers.

    Args:
        models: what each oracle believes: worlds, or posteriors with equally many draws (`policies.posterior`).
        ignored: per model, factors that it does not watch: its belief about them stays at the long-run law.
        matrices: per model, factors that move by another matrix than the declared one, in its filters and its futures.
        likelihood, initial, futures, layout, devices: as for `Oracle`; common to all.

    Raises:
        InputError: for no models, or models whose static parts (caps, lead times) differ.
    """

    def __init__(
        self,
        models: Sequence[World],
        *,
        ignored: Sequence[frozenset[str]] | None = None,
        matrices: Sequence[Matrices] | None = None,
        likelihood: Likelihood = "paper",
        initial: Initial = "uniform",
        futures: int | None = None,
        layout: Layout | None = None,
        devices: Sequence[jax.Device] | None = None,
    ) -> None:
        if not models:
            raise InputError("an ensemble needs at least one model")
        if len({jax.tree.structure(m) for m in models}) > 1:
            raise InputError("the models of an ensemble must share lead times, caps and starting stock")
        if len({draws_of(m) for m in models}) > 1:
            raise InputError("the models of an ensemble must all be worlds, or posteriors with equally many draws")
        ignored = ignored or [frozenset()] * len(models)
        matrices = matrices or [{}] * len(models)
        self.name, self.models = "ensemble", tuple(models)
        self.likelihood, self.initial, self.futures = likelihood, initial, futures
        self.devices = list(devices) if devices else [jax.devices()[0]]
        self.layout = layout or Layout.choose(self.devices[0].platform)
        count = -(-len(models) // len(self.devices)) * len(self.devices)
        self._filled = [*range(len(models)), *([len(models) - 1] * (count - len(models)))]
        self._mesh = Mesh(np.array(self.devices), ("model",)) if len(self.devices) > 1 else None
        each = zip(models, ignored, matrices, strict=True)
        parts = [_part(m, skip, initial, other) for m, skip, other in each]
        stacked = jax.tree.map(lambda *x: np.stack(x), *[parts[i] for i in self._filled])
        self._planners = self._spread(_assemble_all(*stacked))
        self._watched = self._spread({n: np.array([n not in ignored[i] for i in self._filled]) for n in FACTORS})

    def _spread(self, tree: Any) -> Any:
        if self._mesh is None:
            return tree
        return jax.device_put(tree, NamedSharding(self._mesh, PartitionSpec("model")))

    def _by_model(self, x: Any) -> Any:
        rows = np.asarray(x)
        rows = rows.reshape(len(self.models), -1, *rows.shape[1:])
        return rows[self._filled]

    def begin(self, runs: Runs) -> Any:
        """See `BatchPolicy.begin`."""
        each = len(runs.seed) // len(self.models)
        if each * len(self.models) != len(runs.seed):
            raise InputError(f"{len(runs.seed)} runs cannot be shared evenly among {len(self.models)} models")
        futures = protocol_futures(runs.replication) if self.futures is None else np.full(len(runs.seed), self.futures)
        predicted = {
            n: self._spread(np.repeat(np.asarray(p)[:, None], each, axis=1)) for n, p in self._planners.initial.items()
        }
        return predicted, self._by_model(runs.keys), self._by_model(np.asarray(futures, np.int32))

    def decide(
        self, memory: Any, week: int, readings: Readings, shown: Shown
    ) -> tuple[Any, Decision, dict[str, np.ndarray]]:
        """See `BatchPolicy.decide`. Notes as for `Oracle`, and `evidence.<factor>`, the log evidence of the week."""
        predicted, keys, futures = memory
        readings = jax.tree.map(lambda x: np.asarray(x, np.float32), readings)
        if week == 0:
            readings = opening_readings(self.models[0], readings, self.initial)
        readings, shown = jax.tree.map(self._by_model, (readings, jax.tree.map(np.asarray, shown)))
        most = max(int(futures.max()), protocol_futures(20) if self.futures is None else 0)
        run = _decide_models(self._mesh, most, self.layout, self.likelihood)
        predicted, choice, belief, evidence = run(
            self._planners, self._watched, predicted, readings, shown, np.int32(week), keys, futures
        )

        def flat(x: Array) -> np.ndarray:
            rows = np.asarray(x)[: len(self.models)]
            return rows.reshape(-1, *rows.shape[2:])

        notes = {f"belief.{name}": flat(b) for name, b in belief.items()}
        notes |= {f"evidence.{name}": flat(e) for name, e in evidence.items()}
        notes |= {"slot": flat(choice.slot), "cost": flat(choice.costs).min(axis=1)}
        return (predicted, keys, futures), as_decision(jax.tree.map(flat, choice.chosen)), notes


def _part(
    model: World, ignored: frozenset[str], initial: Initial, matrices: Matrices
) -> tuple[World, dict[str, Any], dict[str, Any], Any]:
    """A model's law for the filters, and for the futures: they differ in factors that are ignored."""
    unknown = sorted(ignored - set(FACTORS))
    if unknown:
        raise InputError(f"unknown factor {unknown[0]!r}; there are {', '.join(FACTORS)}")
    if ignored and draws_of(model) is not None:
        raise InputError("a posterior cannot be combined with ignored factors")
    start, moves = laws(model, initial, matrices)
    filters = dict(moves)
    for n in ignored:
        start[n] = long_run(moves[n])
        filters[n] = np.tile(start[n], (len(start[n]), 1))
    return model, start, filters, moves


_assemble_all = jax.jit(jax.vmap(assemble))


@functools.cache
def _decide_models(mesh: Mesh | None, most_futures: int, layout: Layout, likelihood: Likelihood) -> Any:
    def decide(
        planners: Planner,
        watched: dict[str, Bool[Array, " model"]],
        predicted: dict[str, Float[Array, "model episode state"]],
        readings: Readings,
        shown: Shown,
        week: Array,
        keys: Array,
        futures: Array,
    ) -> Any:
        def one(case: Any) -> Any:
            planner, watch, before, seen, desk, key, number = case
            seen = {n: {k: jnp.where(watch[n], v, jnp.nan) for k, v in c.items()} for n, c in seen.items()}
            static = {"most_futures": most_futures, "layout": layout, "likelihood": likelihood}
            return decide_batch(planner, before, seen, desk, week, key, number, **static)

        cases = (planners, watched, predicted, readings, shown, keys, futures)
        platform = jax.devices()[0].platform if mesh is None else mesh.devices.flat[0].platform
        return jax.lax.map(one, cases, batch_size=None if platform == "cpu" else WIDE)

    if mesh is None:
        return jax.jit(decide)
    here, everywhere = PartitionSpec("model"), PartitionSpec()
    specs = (here, here, here, here, here, everywhere, here, here)
    return jax.jit(jax.shard_map(decide, mesh=mesh, in_specs=specs, out_specs=here, check_vma=False))
