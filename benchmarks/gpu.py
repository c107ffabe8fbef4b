"""For somebody with a GPU: `python -m benchmarks.gpu [--quick] [--out DIR]`.

Runs the whole reference job, a million fresh tapes through six filters, and one batch of 1,000 wrong models of the world,
on the accelerator and, the job whole and the rest in part, on the CPU of the same machine; compares the results, and
writes gpu.json, gpu.md and gpu.png. Needs a jax that finds the device (`pip install 'jax[cuda13]'`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, clock, load, machine
from benchmarks.run import table


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything works")
    parser.add_argument("--any-device", action="store_true", help="go on without a GPU, on what there is")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the tables")
    options = parser.parse_args(arguments)
    import jax

    device = jax.devices()[0]
    if device.platform == "cpu" and not options.any_device:
        parser.exit(2, "jax finds no accelerator; install jax[cuda13], or try --any-device\n")
    document = {
        "machine": machine() | {"device": device.device_kind, "platform": device.platform},
        "quick": options.quick,
        "load": load(),
        "parts": measure(options.quick, device),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / "gpu"
    stem.with_suffix(".json").write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    stem.with_suffix(".md").write_text(markdown(document), encoding="utf-8")
    if not figure(document["parts"], stem.with_suffix(".png")):
        print("no figure: matplotlib is not installed", file=sys.stderr)
    print(stem.with_suffix(".md"))


def measure(quick: bool, device: Any) -> dict[str, Any]:
    """All three parts, on the device and on the CPU."""
    import jax

    cpu = jax.devices("cpu")[0]
    parts = {}
    for name, run in (("reference job", reference_job), ("fresh tapes", fresh_tapes), ("wrong models", wrong_models)):
        parts[name] = run(quick, device, cpu)
        print(name, json.dumps(parts[name]["timings"]), file=sys.stderr, flush=True)
    return parts


def _timed(call: Callable[[], Any], device: Any, repeats: int) -> tuple[dict[str, Any], Any]:
    """First and best later time of a call on a device, and its result."""
    import jax

    kept: list[Any] = []
    with jax.default_device(device):
        times = [clock(lambda: kept.append(call()))[0] for _ in range(1 + repeats)]
    return {"first_s": round(times[0], 3), "warm_s": round(min(times[1:]), 3)}, kept[-1]


def reference_job(quick: bool, device: Any, cpu: Any) -> dict[str, Any]:
    """The benchmark on both; the same seeds and keys, so runs differ by float rounding alone."""
    import numpy as np

    from stocktake_jax.evaluation.benchmark import BenchOptions, run_benchmark
    from stocktake_jax.evaluation.catalog import published_seeds

    options = BenchOptions(seeds=published_seeds()[: 2 if quick else 50], replications=2 if quick else 20)
    timings, costs = {}, {}
    for name, where in (("device", device), ("cpu", cpu)):
        timings[name], result = _timed(lambda d=where: run_benchmark(options, devices=[d]), where, 1 if quick else 3)
        costs[name] = np.array([seed.oracle for seed in result.seeds])
    difference = costs["device"] - costs["cpu"]
    return {
        "episodes": costs["cpu"].size,
        "timings": timings,
        "mean_cost": {name: float(c.mean()) for name, c in costs.items()},
        "equal_runs": float(np.mean(np.abs(difference) < 0.005)),
        "mean_difference": float(difference.mean()),
        "se_of_difference": float(difference.std() / np.sqrt(difference.size)),
    }


def fresh_tapes(quick: bool, device: Any, cpu: Any) -> dict[str, Any]:
    """A million tapes on the device, a part of them on the CPU: the same law, the same means."""
    import jax

    from stocktake_jax.inference.batch import BYTES_PER_TAPE, sample_and_filter
    from stocktake_jax.models import World

    world = World.paper()
    counts = {"device": 40 if quick else 1_000_000, "cpu": 40 if quick else 50_000}
    chunks = {"device": min(counts["device"], 8 * 2**30 // BYTES_PER_TAPE), "cpu": min(counts["cpu"], 10_000)}
    timings, summaries = {}, {}
    for name, where in (("device", device), ("cpu", cpu)):

        def call(name: str = name) -> Any:
            return sample_and_filter(world, counts[name], key=jax.random.key(2), chunk=chunks[name])

        timings[name], summaries[name] = _timed(call, where, 1)
    of, other = summaries["device"], summaries["cpu"]
    z = {
        n: round((of.truth[n] - other.truth[n]) / (of.truth_se[n] ** 2 + other.truth_se[n] ** 2) ** 0.5, 2)
        for n in world.factors
    }
    return {
        "tapes": counts,
        "chunks": chunks,
        "timings": timings,
        "tapes_per_s": {name: round(counts[name] / timings[name]["warm_s"]) for name in counts},
        "truth": of.truth,
        "difference_in_standard_errors": z,
    }


def wrong_models(quick: bool, device: Any, cpu: Any) -> dict[str, Any]:
    """One batch of oracles that each believe in another world, on ten published tapes; a few of them on the CPU."""
    import numpy as np

    from stocktake_jax.evaluation.catalog import published_seeds
    from stocktake_jax.evaluation.simulate import simulate
    from stocktake_jax.evaluation.studies import transition_parameters
    from stocktake_jax.models import FACTORS, Tape, World
    from stocktake_jax.policies import Runs
    from stocktake_jax.policies.ensemble import OracleEnsemble

    world = World.paper()
    count, few, seeds = (4, 2, 2) if quick else (1000, 20, 10)
    names = [f"{f}.{p}" for f in FACTORS for p in transition_parameters(world.factors[f])]
    rng = np.random.default_rng(0)
    models = [world]
    for i in range(1, count):
        # One parameter after the other, its odds up to four times as large or small.
        models.append(world.perturb(names[i % len(names)], float(np.exp(rng.uniform(-1, 1) * np.log(4.0)))))
    chosen = published_seeds()[:seeds]
    tapes = Tape.published_batch(chosen, world)

    def play(number: int, where: Any) -> Any:
        tape_of = np.tile(np.arange(seeds), number)
        runs = Runs(np.array(chosen)[tape_of], np.ones(len(tape_of), np.int64))
        oracle = OracleEnsemble(models[:number], futures=8 if quick else None, devices=[where])
        return simulate(oracle, tapes, runs, tape_of, world).cost.reshape(number, seeds)

    timings, costs = {}, {}
    for name, number, where in (("device", count, device), ("cpu", few, cpu)):
        timings[name], costs[name] = _timed(lambda n=number, d=where: play(n, d), where, 1)
    regret = (costs["device"] - costs["device"][:1]).mean(axis=1)
    return {
        "models": {"device": count, "cpu": few},
        "episodes_per_model": seeds,
        "timings": timings,
        "models_per_s": {
            name: round(number / timings[name]["warm_s"], 2) for name, number in (("device", count), ("cpu", few))
        },
        "equal_runs": float(np.mean(np.abs(costs["device"][:few] - costs["cpu"]) < 0.005)),
        "mean_difference": float((costs["device"][:few] - costs["cpu"]).mean()),
        "regret": [round(float(x), 2) for x in regret],
    }


def markdown(document: dict[str, Any]) -> str:
    """The document as tables."""
    m, parts = document["machine"], document["parts"]
    rows = []
    for name, p in parts.items():
        size = p.get("tapes") or p.get("models") or {"device": p["episodes"], "cpu": p["episodes"]}
        rows += [[name, where, size[where], t["first_s"], t["warm_s"]] for where, t in p["timings"].items()]
    job, tapes, models = parts["reference job"], parts["fresh tapes"], parts["wrong models"]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    beside = f"beside {m['processor']} with {m['cores']} cores; {m['system']}"
    same = "of the runs cost the same to the cent on both"
    off = f"{job['mean_difference']:+.2f} ± {job['se_of_difference']:.2f} $ a run"
    in_errors = ", ".join(f"{name} {z:+}" for name, z in tapes["difference_in_standard_errors"].items())
    lines = [
        "# Benchmarks: an accelerator",
        "",
        f"{m['device']} ({m['platform']}), {beside}; Python {m['python']}, {versions}."
        + (" A quick run at tiny sizes: its times mean nothing." if document["quick"] else ""),
        "",
        *table(["", "where", "episodes, tapes or models", "first call s", "warm s"], rows),
        f"- Reference job: {job['equal_runs']:.1%} {same}; mean difference {off}.",
        f"- Fresh tapes: the posterior of the truth differs, in standard errors, by {in_errors}.",
        f"- Wrong models: {models['equal_runs']:.1%} {same}; mean difference {models['mean_difference']:+.2f} $ a run.",
    ]
    return "\n".join(lines) + "\n"


def figure(parts: dict[str, Any], path: Path) -> bool:
    """Times side by side, and what the wrong models cost; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    job, tapes, models = parts["reference job"], parts["fresh tapes"], parts["wrong models"]
    rates = {
        "episodes/s": {name: job["episodes"] / t["warm_s"] for name, t in job["timings"].items()},
        "tapes/s": tapes["tapes_per_s"],
        "models/s": models["models_per_s"],
    }
    drawing, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for i, name in enumerate(("device", "cpu")):
        left.bar([x + 0.4 * i for x in range(len(rates))], [r[name] for r in rates.values()], 0.4, label=name)
    left.set(yscale="log", xticks=[x + 0.2 for x in range(len(rates))], xticklabels=list(rates), title="throughput")
    left.legend()
    right.hist(models["regret"], bins=40)
    right.set(xlabel="mean cost more than under the true model, $", ylabel="models", title="wrong models")
    drawing.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(drawing)
    return True


if __name__ == "__main__":
    main()
