"""How the cost grows, along each axis of the work, on one device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from benchmarks.measure import answer, interleaved

FULL = {
    "seeds": (1, 5, 10, 20, 50),
    "replications": (1, 5, 10, 20),
    "futures": (50, 100, 200, 400, 800),
    "menu": (1, 5, 9, 13, 20, 26, 40, 52, 104),
    "weeks": (1, 2, 4, 8, 13, 20, 26),
    "worlds": (1, 5, 10, 20),
}
QUICK = {
    "seeds": (1, 2),
    "replications": (1, 2),
    "futures": (4, 8),
    "menu": (1, 104),
    "weeks": (1, 26),
    "worlds": (1, 2),
}

UNITS = {
    "seeds": "seeds × 20 runs, whole episodes",
    "replications": "runs of each of 10 seeds, whole episodes",
    "futures": "futures per decision, 10 seeds × 5 runs",
    "menu": "candidates on the menu, one decision of 200 episodes in week 0",
    "weeks": "weeks left, one decision of 200 episodes with 5 candidates",
    "worlds": "models in one ensemble, 10 seeds × 1 run each",
}


def measure(quick: bool = False, repeats: int = 3) -> dict[str, Any]:
    """Warm times along every axis; the rest of each problem is held at what `UNITS` says.

    Args:
        quick: two tiny points per axis instead.
        repeats: of every point.
    """
    axes = QUICK if quick else FULL
    base = _Problems(episodes=4 if quick else 200, seeds=2 if quick else 10, futures=4 if quick else None)
    makers: dict[str, Callable[[int], Callable[[], Any]]] = {
        "seeds": lambda n: base.episodes_of(n, 2 if quick else 20),
        "replications": lambda n: base.episodes_of(base.seeds, n),
        "futures": lambda n: base.episodes_of(base.seeds, 1 if quick else 5, n),
        "menu": lambda n: base.decision(candidates=n, weeks=26),
        "weeks": lambda n: base.decision(candidates=5, weeks=n),
        "worlds": base.ensemble,
    }
    rows = []
    for axis, values in axes.items():
        timings = interleaved({str(n): makers[axis](n) for n in values}, repeats)
        rows += [{"axis": axis, "value": n} | timings[str(n)].to_json() for n in values]
    return {"units": UNITS, "rows": rows}


class _Problems:
    def __init__(self, episodes: int, seeds: int, futures: int | None) -> None:
        from stocktake_jax.evaluation.catalog import published_seeds
        from stocktake_jax.models import World

        self.world, self.episodes, self.seeds, self.futures = World.paper(), episodes, seeds, futures
        self.published = published_seeds()
        self._decide: Any = None  # one program for all decisions

    def episodes_of(self, seeds: int, replications: int, futures: int | None = None) -> Callable[[], Any]:
        """Whole episodes of the oracle."""
        import numpy as np

        from stocktake_jax.evaluation.simulate import simulate
        from stocktake_jax.models import Tape
        from stocktake_jax.policies import Oracle, Runs

        chosen = self.published[:seeds]
        tapes, tape_of = Tape.published_batch(chosen, self.world), np.repeat(np.arange(seeds), replications)
        runs = Runs(np.array(chosen)[tape_of], np.tile(np.arange(1, replications + 1), seeds))
        oracle = Oracle(self.world, futures=futures or self.futures)
        return lambda: simulate(oracle, tapes, runs, tape_of, self.world)

    def decision(self, candidates: int, weeks: int) -> Callable[[], Any]:
        """One decision of a batch, with a menu of exactly this many candidates: levers and suppliers open by need."""
        import jax
        import jax.numpy as jnp
        import numpy as np

        from stocktake_jax.inference import Belief
        from stocktake_jax.models import HORIZON
        from stocktake_jax.policies import Layout, Runs, Shown
        from stocktake_jax.policies.menu import Risks
        from stocktake_jax.policies.rollout import choose, planner

        n, p = self.episodes, planner(self.world)
        orders, levers = next(
            (orders, levers) for orders in (13, 9, 5, 1) for levers in range(4) if orders << levers == candidates
        )
        suppliers = max((orders - 1) // 4, 1)
        week = HORIZON - weeks
        high = [np.full(n, 1.0 if i < levers else 0.0, np.float32) for i in range(3)]
        risk = Risks(np.full(n, 20.0, np.float32), *high)
        belief = Belief(
            {k: np.tile(np.asarray(v, np.float32), (n, 1)) for k, v in p.initial.items()},
            {k: np.zeros(n, np.float32) for k in p.initial},
        )
        inventory = np.full(n, 20 if orders > 1 else 200, np.int32)
        units, eta = np.zeros((n, 27), np.int32), np.zeros((n, 27), np.int32)
        units[:, 0], eta[:, 0] = 10, week + 1
        live = np.tile(np.arange(3) < suppliers, (n, 1))
        shown = Shown(inventory, units, eta, live, np.zeros(n, bool))
        keys = Runs(np.arange(n), np.ones(n, np.int64)).keys
        futures = np.full(n, self.futures or 200, np.int32)
        if self._decide is None:
            most, layout = int(futures.max()), Layout.choose(jax.devices()[0].platform)
            self._decide = jax.jit(functools.partial(choose, most_futures=most, layout=layout))
        decide = self._decide
        arguments = (p, risk, belief, shown, jnp.int32(week), keys, futures)
        offered = np.isfinite(np.asarray(decide(*arguments).costs)).sum(axis=1)
        if not (offered == candidates).all():
            raise RuntimeError(f"the menu has {offered.min()} to {offered.max()} candidates, not {candidates}")
        return lambda: jax.block_until_ready(decide(*arguments))

    def ensemble(self, worlds: int) -> Callable[[], Any]:
        """Whole episodes under several models of the world at once."""
        import numpy as np

        from stocktake_jax.evaluation.simulate import simulate
        from stocktake_jax.models import Tape
        from stocktake_jax.policies import Runs
        from stocktake_jax.policies.ensemble import OracleEnsemble

        models = [self.world.perturb("port.build_onset", 0.5 + i / worlds) for i in range(worlds)]
        chosen = self.published[: self.seeds]
        tapes, tape_of = Tape.published_batch(chosen, self.world), np.tile(np.arange(self.seeds), worlds)
        runs = Runs(np.array(chosen)[tape_of], np.ones(len(tape_of), np.int64))
        oracle = OracleEnsemble(models, futures=self.futures)
        return lambda: simulate(oracle, tapes, runs, tape_of, self.world)


if __name__ == "__main__":
    answer(measure)
