"""The reference job in a running process: every seed and run of the benchmark, and the numpy peer beside it."""

from __future__ import annotations

from typing import Any

from benchmarks.measure import Spread, Timing, answer, clock, interleaved


def measure(
    devices: int = 2, seeds: int = 50, replications: int = 20, repeats: int = 5, peer: int = 50, peer_repeats: int = 3
) -> dict[str, Any]:
    """Warm times of the job, of its oracle runs alone, and of the peer on some of the episodes.

    Args:
        devices: that share the job.
        seeds: how many of the published ones.
        replications: oracle runs per seed.
        repeats: of the job; one more, with the compilation in it, does not count.
        peer: episodes that the peer plays, spread over seeds and run numbers; 0: none.
        peer_repeats: of the peer.
    """
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    import numpy as np

    from benchmarks.numpy_peer import NumpyOracle
    from stocktake_jax.evaluation.benchmark import BenchOptions, run_benchmark
    from stocktake_jax.evaluation.catalog import published_seeds
    from stocktake_jax.evaluation.simulate import simulate
    from stocktake_jax.models import Tape, World
    from stocktake_jax.policies import Oracle, Runs

    world, chosen = World.paper(), published_seeds()[:seeds]
    options = BenchOptions(seeds=chosen, replications=replications)
    tapes = Tape.published_batch(options.seeds, world)
    # Run by run, as the job itself orders them.
    tape_of = np.tile(np.arange(len(options.seeds)), replications)
    runs = Runs(np.array(options.seeds)[tape_of], np.repeat(np.arange(1, replications + 1), len(options.seeds)))
    even = len(tape_of) % devices == 0
    oracle = Oracle(world, devices=jax.devices()[:devices] if even else jax.devices()[:1])
    kept: dict[str, Any] = {}

    def job() -> None:
        kept["job"] = run_benchmark(options, devices=jax.devices()[:devices])

    def oracle_runs() -> None:
        kept["oracle"] = simulate(oracle, tapes, runs, tape_of, world)

    timings = interleaved({"job": job, "oracle runs": oracle_runs}, repeats)
    episodes = len(tape_of)
    result: dict[str, Any] = {
        "devices": devices,
        "episodes": episodes,
        "timings": {name: t.to_json() for name, t in timings.items()},
    }
    if peer:
        which = np.arange(peer) % len(options.seeds)
        few = Runs(np.array(options.seeds)[which], 1 + np.arange(peer) % replications)

        def peer_runs() -> None:
            kept["peer"] = simulate(NumpyOracle(world), tapes, few, which, world)

        peer_runs()  # compiles the books for this many episodes
        times = [clock(peer_runs) for _ in range(peer_repeats)]
        scale = episodes / peer
        scaled = Timing(Spread.of([scale * w for w, _ in times]), Spread.of([scale * c for _, c in times]))
        ours = timings["oracle runs"]
        costs = kept["oracle"].cost.reshape(replications, len(options.seeds))
        spread = costs.std(axis=0, ddof=1)[which] if replications > 1 else np.zeros(peer)
        difference = kept["peer"].cost - costs.mean(axis=0)[which]
        result["peer"] = {
            "episodes": peer,
            "scaled_to": episodes,
            "timing_scaled": scaled.to_json(),
            "wall_ratio": round(scaled.wall.median / ours.wall.median, 2),
            "ratio_per_core": round(scaled.cpu.median / ours.cpu.median, 2),
            "mean_cost_less_ours": round(float(difference.mean()), 2),
            "standard_error": round(float(np.sqrt((spread**2).sum() * (1 + 1 / replications)) / peer), 2),
        }
    return result


if __name__ == "__main__":
    answer(measure)
