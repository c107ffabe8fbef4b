"""What tracing and compiling cost: the programs of the reference job, of tapes and of filters, by name."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from benchmarks.measure import answer

PHASES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace_s",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower_s",
    "/jax/core/compile/backend_compile_duration": "compile_s",
}


def measure(devices: int = 2, seeds: int = 50, replications: int = 20, series: int = 10_000) -> dict[str, Any]:
    """Seconds of tracing, lowering and compiling, by job and by program.

    Programs that are traced inside others count in both, so the traces add up to more than the time that passed.

    Args:
        devices: that share the reference job.
        seeds: of the reference job.
        replications: of the reference job.
        series: tapes that are sampled, and filtered.
    """
    import jax

    jax.config.update("jax_num_cpu_devices", devices)

    from stocktake_jax.evaluation.benchmark import BenchOptions, run_benchmark
    from stocktake_jax.evaluation.catalog import published_seeds
    from stocktake_jax.inference.batch import filter_series
    from stocktake_jax.models import Tape, World

    spent: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(PHASES.values(), 0.0))
    counts: dict[str, int] = defaultdict(int)

    def listen(event: str, duration_secs: float, **details: str | int) -> None:
        if event in PHASES:
            name = str(details.get("fun_name", "?"))
            spent[name][PHASES[event]] += duration_secs
            counts[name] += PHASES[event] == "compile_s"

    jax.monitoring.register_event_duration_secs_listener(listen)
    world = World.paper()

    def take() -> dict[str, Any]:
        programs = sorted(spent, key=lambda name: -spent[name]["compile_s"])
        rows = [
            {"program": name, "times": counts[name]} | {k: round(v, 2) for k, v in spent[name].items()}
            for name in programs
            if spent[name]["compile_s"] >= 0.2
        ]
        total: dict[str, Any] = {phase: round(sum(s[phase] for s in spent.values()), 2) for phase in PHASES.values()}
        total |= {"programs": sum(counts.values()), "largest": rows[:8]}
        spent.clear()
        counts.clear()
        return total

    result: dict[str, Any] = {}
    options = BenchOptions(seeds=published_seeds()[:seeds], replications=replications)
    run_benchmark(options, devices=jax.devices()[:devices])
    result["reference job"] = take()
    tapes = jax.block_until_ready(Tape.sample_batch(world, series, key=jax.random.key(0)))
    result["fresh tapes"] = take()
    readings = jax.tree.map(lambda x: x.T, tapes.readings(world))
    jax.block_until_ready(readings)
    take()
    for name, factor in world.factors.items():
        jax.block_until_ready(jax.jit(lambda r, f=factor: filter_series(f, r))(readings[name]))
    result["six filters"] = take()
    return result


if __name__ == "__main__":
    answer(measure)
