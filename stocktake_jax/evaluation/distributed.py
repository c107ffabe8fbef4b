"""Several hosts on one benchmark: each computes its share of the seeds, the results are gathered once.

Nothing else is exchanged: a run's random numbers are a function of its seed and its number, so shares need not know of
each other, and what a host finished stays finished if another one dies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from stocktake_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Share:
    """Which part of the work is this process's.

    Attributes:
        index, count: this process, and how many there are.
    """

    index: int = 0
    count: int = 1

    def of(self, seeds: Sequence[int]) -> tuple[int, ...]:
        """This process's seeds: every `count`-th one, so that all shares have work of every kind."""
        return tuple(seeds[self.index :: self.count])

    def wait(self, at: str) -> None:
        """Go on when all processes have come to this point."""
        if self.count > 1:
            with _together():
                multihost_utils.sync_global_devices(at)

    def gather(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows (JSON values) of all processes, on every one of them; all must call it, and it waits for all."""
        if self.count == 1:
            return rows
        mine = np.frombuffer(json.dumps(rows).encode(), np.uint8)
        with _together():
            sizes = np.asarray(multihost_utils.process_allgather(np.array([mine.size], np.int32))).reshape(-1)
            padded = np.zeros(int(sizes.max()), np.uint8)
            padded[: mine.size] = mine
            every = np.asarray(multihost_utils.process_allgather(padded)).reshape(self.count, -1)
        return [row for size, data in zip(sizes, every, strict=True) for row in json.loads(data[:size].tobytes())]


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Talk to the other processes, whose loss is an error that says what to do.

    The transport announces itself on standard output, which belongs to the results: it is sent to standard error.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"another process was lost ({reason}); what is finished is in --out, run all again") from None
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def join(coordinator: str | None = None, processes: int | None = None, process: int | None = None) -> Share:
    """Join the other hosts; before anything else has used JAX.

    Args:
        coordinator: host:port of process 0.
        processes: how many there are.
        process: which one this is, from 0. With none of the three, JAX finds them in the cluster's environment (Slurm,
            Open MPI, Kubernetes, cloud TPUs).

    Raises:
        InputError: if only some are given, they are out of range, or the others cannot be reached.
    """
    given = (coordinator, processes, process)
    if any(x is None for x in given) and any(x is not None for x in given):
        raise InputError("give all of --coordinator, --processes and --process, or none (then the cluster is asked)")
    if processes is not None and process is not None and not 0 <= process < processes:
        raise InputError(f"--process must be from 0 to {processes - 1}, not {process}")
    if coordinator is not None and not coordinator.rpartition(":")[2].isdecimal():
        raise InputError(f"--coordinator must look like HOST:PORT, not {coordinator!r}")
    try:
        jax.distributed.initialize(coordinator, processes, process)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"cannot join the other processes: {reason}") from None
    return Share(jax.process_index(), jax.process_count())
