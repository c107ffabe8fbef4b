"""What a policy is: in an episode, week by week, and over a batch of episodes in lockstep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Int, UInt32

from stocktake_jax.desk import Decision, Episode
from stocktake_jax.models import Readings


@runtime_checkable
class Policy(Protocol):
    """Plays an episode through the agent's own tools. `evaluation.play` runs any object of this shape.

    Attributes:
        name: how tables call it.
    """

    name: str

    def reset(self, replication: int) -> None:
        """Forget the last episode; `replication` numbers the repeats on a seed, from 1."""

    def act(self, observation: Mapping[str, Any], desk: Episode) -> None:
        """Read the week's observation, use any tools, and commit the week with `desk.place_order`."""


class Shown(eqx.Module):
    """What the desk shows a planner, with any leading axes.

    Attributes:
        inventory: units on the shelf.
        units, eta: (ship) units at sea (0: no ship) and the week of arrival as shown.
        live: (supplier) who is under contract.
        sourced: whether spot was sourced for the week, so that its fill is shown.
    """

    inventory: Int[Array, "*batch"]
    units: Int[Array, "*batch ship"]
    eta: Int[Array, "*batch ship"]
    live: Bool[Array, "*batch supplier"]
    sourced: Bool[Array, "*batch"]

    @property
    def position(self) -> Int[Array, "*batch"]:
        """Units on the shelf and at sea."""
        return self.inventory + self.units.sum(-1)


class Runs(NamedTuple):
    """The episodes of a batch, one entry each.

    Attributes:
        seed: which tape.
        replication: numbers the repeats on a seed, from 1.
    """

    seed: np.ndarray
    replication: np.ndarray

    @property
    def keys(self) -> UInt32[Array, "episode 2"]:
        """Two words of randomness per run: a function of (seed, replication) alone, whatever the batch."""
        return _run_keys(np.asarray(self.seed, np.uint32), np.asarray(self.replication, np.uint32))


@jax.jit
def _run_keys(seed: Array, replication: Array) -> Array:
    root = jax.random.key(0, impl="threefry2x32")

    def key(s: Array, r: Array) -> Array:
        return jax.random.key_data(jax.random.fold_in(jax.random.fold_in(root, s), r))

    return jax.vmap(key)(seed, replication)


@runtime_checkable
class BatchPolicy(Protocol):
    """Decides many episodes at once. It is given what is shown to an agent, and nothing else.

    Attributes:
        name: how tables call it.
    """

    name: str

    def begin(self, runs: Runs) -> Any:
        """The policy's memory at the start."""

    def decide(
        self, memory: Any, week: int, readings: Readings, shown: Shown
    ) -> tuple[Any, Decision, dict[str, np.ndarray]]:
        """One week: (memory, decisions, notes), the notes being arrays by episode that reports may keep.

        Args:
            memory: what `begin` or the week before returned.
            week: the week whose observation is read, 0 .. 25.
            readings: factor -> channel -> (episode) value; nan where a channel is not there.
            shown: the desks.
        """
