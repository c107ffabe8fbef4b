"""Fresh tapes by the million: sampled, and sampled and filtered, in chunks that bound the memory."""

from __future__ import annotations

from typing import Any

from benchmarks.measure import Spread, Timing, answer, clock


def measure(what: str = "stream", count: int = 1_000_000, chunk: int | None = None, repeats: int = 1) -> dict[str, Any]:
    """Time `count` tapes; whoever started this process sees its memory.

    Args:
        what: "sample": the tapes alone; "stream": six filters on each as well.
        count: of tapes.
        chunk: tapes in memory together; None: as many as the default budget holds.
        repeats: of the whole; what is compiled was compiled before, on one chunk.
    """
    import jax

    from stocktake_jax.inference.batch import BYTES_PER_TAPE, MEMORY, sample_and_filter
    from stocktake_jax.models import HORIZON, Tape, World

    world, key = World.paper(), jax.random.key(2)
    size = min(chunk or MEMORY // BYTES_PER_TAPE, count)
    kept: dict[str, Any] = {}

    def sample(total: int = count) -> None:
        for start in range(0, total, size):
            jax.block_until_ready(Tape.sample_batch(world, size, key=jax.random.fold_in(key, start)))

    def stream(total: int = count) -> None:
        kept["summary"] = sample_and_filter(world, total, key=key, chunk=size)

    call = {"sample": sample, "stream": stream}[what]
    first, _ = clock(lambda: call(size))
    times = [clock(call) for _ in range(repeats)]
    timing = Timing(Spread.of([w for w, _ in times]), Spread.of([c for _, c in times]))
    result: dict[str, Any] = {
        "what": what,
        "tapes": count,
        "chunk": size,
        "first_chunk_s": round(first, 2),
        "timing": timing.to_json(),
        "tapes_per_s": round(count / timing.wall.median),
        "weeks": HORIZON + 1,
    }
    if "summary" in kept:
        s = kept["summary"]
        result["summary"] = {
            name: {
                "log_evidence": round(s.log_evidence[name], 4),
                "log_evidence_se": round(s.log_evidence_se[name], 5),
                "truth": round(s.truth[name], 5),
                "truth_se": round(s.truth_se[name], 6),
            }
            for name in world.factors
        }
    return result


if __name__ == "__main__":
    answer(measure)
