"""Filters side by side with dynamax and hmmlearn: the same factors, the same series, one process, turn by turn.

All start from the same law and matrices, and give the log evidence; the largest difference is noted. Ours start from
the readings. dynamax runs twice: from the readings, and given the log likelihoods by state, worked out beforehand and off
the clock. Both give filtered probabilities and log evidence; whatever else they compute is dropped inside the compiled
function. hmmlearn has no filter: its `score` is the forward pass for the evidence alone, from log likelihoods worked out
off the clock as well.
"""

from __future__ import annotations

from typing import Any

from benchmarks.measure import answer, interleaved


def measure(
    series: int = 10_000, weeks: int = 26, repeats: int = 9, factors: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """Time every contestant on every factor.

    Args:
        series: series per factor.
        weeks: of each.
        repeats: see `interleaved`.
        factors: which; None: all six.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from stocktake_jax.inference import filter_factor
    from stocktake_jax.inference.batch import filter_series
    from stocktake_jax.models import Tape, World

    world = World.paper()
    # What is read does not change the time: a thousand tapes, again and again.
    tapes = Tape.published_batch(range(min(series, 1000)), world)
    rows_of = np.arange(series) % 1000
    readings = jax.tree.map(
        lambda x: np.asarray(x, np.float32)[rows_of, :weeks],
        tapes.readings(world, np.ones(np.shape(tapes.states["canal"]), bool)),
    )
    rows, missing = [], []
    for name in factors or tuple(world.factors):
        factor = world.factors[name]
        states = len(factor.states)
        start = jnp.asarray(factor.initial("uniform"), jnp.float32)
        matrix = jnp.asarray(factor.transition_matrix(), jnp.float32)
        by_series = jax.tree.map(jnp.asarray, readings[name])
        by_week = jax.tree.map(lambda x: jnp.asarray(np.ascontiguousarray(np.asarray(x).T)), by_series)
        table, scale = jax.jit(jax.vmap(factor.log_likelihood))(by_series)
        evidence: dict[str, float] = {}
        contestants: dict[str, Any] = {}

        def jitted(label: str, function: Any, total: Any, *arguments: Any, kept: dict[str, float] = evidence) -> Any:
            compiled = jax.jit(function)
            kept[label] = float(np.sum(np.asarray(total(compiled(*arguments)), np.float64)))
            return lambda: jax.block_until_ready(compiled(*arguments))

        contestants["filter_series"] = jitted(
            "filter_series", lambda r, f=factor: filter_series(f, r), lambda x: x.log_evidence, by_week
        )
        contestants["filter_factor, vmapped"] = jitted(
            "filter_factor, vmapped",
            jax.vmap(lambda r, f=factor: _wanted(filter_factor(f, r))),
            lambda x: x[1],
            by_series,
        )
        shared = float(np.sum(np.asarray(scale, np.float64)))
        try:
            from dynamax.hidden_markov_model import hmm_filter
        except ImportError:
            missing.append("dynamax")
        else:
            contestants["dynamax, from readings"] = jitted(
                "dynamax, from readings",
                jax.vmap(
                    lambda r, a=start, b=matrix, f=factor: _wanted_of_dynamax(
                        hmm_filter(a, b, f.log_likelihood(r).table)
                    )
                ),
                lambda x, c=shared: np.append(np.asarray(x[1]), c),
                by_series,
            )
            contestants["dynamax"] = jitted(
                "dynamax",
                jax.vmap(lambda t, a=start, b=matrix: _wanted_of_dynamax(hmm_filter(a, b, t))),
                lambda x, c=shared: np.append(np.asarray(x[1]), c),
                table,
            )
        try:
            model, samples = _hmmlearn(factor, np.asarray(table, np.float64))
        except ImportError:
            missing.append("hmmlearn")
        else:
            lengths = np.full(series, weeks)
            evidence["hmmlearn"] = float(model.score(samples, lengths)) + shared
            contestants["hmmlearn"] = lambda m=model, x=samples, n=lengths: m.score(x, n)
        timings = interleaved(contestants, repeats)
        ours = timings["filter_series"]
        peers = [label for label in timings if label.startswith(("dynamax", "hmmlearn"))]
        state_weeks = series * weeks * states
        rows.append(
            {
                "factor": name,
                "states": states,
                "timings": {
                    label: t.to_json()
                    | {
                        "wall_ns_per_state_week": float(f"{1e9 * t.wall.median / state_weeks:.3g}"),
                        "cpu_ns_per_state_week": float(f"{1e9 * t.cpu.median / state_weeks:.3g}"),
                    }
                    for label, t in timings.items()
                },
                "times_faster_wall": {p: round(timings[p].wall.median / ours.wall.median, 2) for p in peers},
                "times_faster_cpu": {p: round(timings[p].cpu.median / ours.cpu.median, 2) for p in peers},
                "evidence_relative_difference": {
                    label: float(f"{abs(e / evidence['filter_series'] - 1):.1e}") for label, e in evidence.items()
                },
            }
        )
    return {"series": series, "weeks": weeks, "rows": rows, "not_installed": sorted(set(missing))}


def _wanted(filtered: Any) -> Any:
    return filtered.belief, filtered.log_evidence


def _wanted_of_dynamax(posterior: Any) -> Any:
    return posterior.filtered_probs, posterior.marginal_loglik


def _hmmlearn(factor: Any, table: Any) -> tuple[Any, Any]:
    """A hmmlearn model of the factor whose samples are row numbers of the (series, week, state) log likelihoods."""
    import numpy as np
    from hmmlearn.base import BaseHMM

    flat = table.reshape(-1, table.shape[-1])

    class Tabulated(BaseHMM):
        def _compute_log_likelihood(self, X: Any) -> Any:
            return flat[X[:, 0]]

        def _check(self) -> None:
            pass

    # The implementation with scaling factors is the faster one.
    model = Tabulated(table.shape[-1], implementation="scaling")
    model.startprob_ = np.asarray(factor.initial("uniform"), np.float64)
    model.transmat_ = np.asarray(factor.transition_matrix(), np.float64)
    model.n_features = 1
    return model, np.arange(len(flat))[:, None]


if __name__ == "__main__":
    answer(measure)
