"""Sampling futures: random bits by counter, and one table look-up per factor and week.

Every number drawn is a function of (key, future, week, factor) alone, so that futures do not depend on how a batch was
cut. The bits are Threefry-2x32 as `jax.random` has it, written out as arithmetic, which compiles to vector code on CPUs
(several times faster there than the library's loop); a test holds the two against each other.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from stocktake_jax.models import FACTORS, World
from stocktake_jax.policies.posterior import draws_of

FEW_STATES = 64
"""Up to so many states a draw counts the steps of the cumulative law that it has passed; beyond, it searches for them."""

ROUNDS = 13
"""Rounds of Threefry spent on futures: the fewest that pass BigCrush (Salmon et al., SC 2011). `jax.random` does 20."""


def threefry_2x32(key: tuple[Array, Array], count: tuple[Array, Array], rounds: int = 20) -> tuple[Array, Array]:
    """Two random uint32 words per counter pair: Threefry-2x32 (Salmon et al., SC 2011)."""
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    k0, k1 = key
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    x0, x1 = count[0] + keys[0], count[1] + keys[1]
    for i in range(rounds):
        r = rotations[i // 4 % 2][i % 4]
        x0 = x0 + x1
        x1 = (x1 << np.uint32(r)) | (x1 >> np.uint32(32 - r))
        x1 = x0 ^ x1
        if i % 4 == 3:
            block = i // 4 + 1
            x0 = x0 + keys[block % 3]
            x1 = x1 + keys[(block + 1) % 3] + np.uint32(block)
    return x0, x1


class MoveTable(eqx.Module):
    """The moves of all factors as alias tables (Walker 1977): a draw costs one word and one comparison.

    The successors of a state fill `width` equal columns; a column is its own successor up to a threshold and another one
    above it. Thresholds have 32 bits less the column's. The factors' states are numbered through.

    Attributes:
        threshold: (state * width,) in units of 2^-32.
        outcomes: (state * width,) the column's successor, and 2^16 times the other one, numbered through.
        first: (factor,) the number of each factor's first state.
    """

    threshold: UInt32[Array, " column"]
    outcomes: Int[Array, " column"]
    first: Int[Array, " factor"]
    width: int = eqx.field(static=True)

    def move(self, state: Int[Array, "*lanes"], word: UInt32[Array, "*lanes"]) -> Int[Array, "*lanes"]:
        """The next states, numbered through, from one random word each."""
        bits = self.width.bit_length() - 1
        at = state * self.width + (word >> np.uint32(32 - bits)).astype(jnp.int32)
        own = (word << np.uint32(bits)) <= self.threshold[at]
        pair = self.outcomes[at]
        return jnp.where(own, pair & 0xFFFF, pair >> 16)


def move_table(world: World, transition: dict[str, Float[Array, "*draw old new"]]) -> MoveTable:
    """The alias tables of all factors' moves.

    Args:
        world: gives the declared moves, and so the layout, which no parameter changes.
        transition: factor -> transition matrix; of a posterior, one a draw. Its states are (draw, state).
    """
    draws = draws_of(world)
    if draws is None:
        return _move_table(world, transition)
    one = jax.tree.map(lambda x: x[0], world)
    table = jax.vmap(lambda t: _move_table(one, t))(transition)
    sizes = [transition[n].shape[-1] for n in FACTORS]
    first, width = np.cumsum([0, *sizes[:-1]]), table.width
    own, other = table.outcomes & 0xFFFF, table.outcomes >> 16
    threshold, outcomes = [], []
    for at, size in zip(first.tolist(), sizes, strict=True):
        columns = slice(at * width, (at + size) * width)
        # Draw d of state x becomes number draws * at + d * size + x.
        shift = (draws - 1) * at + size * jnp.arange(draws, dtype=jnp.int32)[:, None]
        threshold.append(table.threshold[:, columns].ravel())
        outcomes.append(((own[:, columns] + shift) | ((other[:, columns] + shift) << 16)).ravel())
    return MoveTable(
        jnp.concatenate(threshold), jnp.concatenate(outcomes), jnp.asarray(draws * first, jnp.int32), width
    )


def _move_table(world: World, transition: dict[str, Float[Array, "old new"]]) -> MoveTable:
    supports = [f.support() for f in world.factors.values()]
    width = max(2, 1 << (max(int(s.sum(1).max()) for s in supports) - 1).bit_length())
    first = np.cumsum([0, *[len(s) for s in supports[:-1]]])
    successors, columns, p = [], [], []
    for name, support, at in zip(world.factors, supports, first.tolist(), strict=True):
        found = [np.flatnonzero(row) for row in support]
        local = np.stack([np.pad(f, (0, width - len(f)), constant_values=f[0]) for f in found])
        successors.append(local + at)
        columns.append(np.arange(width)[None, :] < support.sum(1)[:, None])
        p.append(jnp.take_along_axis(transition[name].astype(jnp.float32), jnp.asarray(local), axis=1))
    left = jnp.where(jnp.asarray(np.concatenate(columns)), jnp.concatenate(p), 0.0)
    left = width * left / jnp.sum(left, axis=1, keepdims=True)
    state = jnp.arange(left.shape[0])

    # Each round settles the poorest open column of every state and takes what it lacks from the richest.
    def settle(_: Array, carry: Any) -> Any:
        left, done, threshold, alias = carry
        poor = jnp.argmin(jnp.where(done, jnp.inf, left), axis=1)
        rich = jnp.argmax(jnp.where(done, -jnp.inf, left), axis=1)
        share = jnp.minimum(left[state, poor], 1.0)
        threshold = threshold.at[state, poor].set(share)
        alias = alias.at[state, poor].set(rich)
        left = left.at[state, rich].add(share - 1.0)
        return left, done.at[state, poor].set(True), threshold, alias

    start = left, jnp.zeros(left.shape, bool), jnp.ones_like(left), jnp.zeros(left.shape, jnp.int32)
    _, _, threshold, alias = jax.lax.fori_loop(0, width - 1, settle, start)
    own = jnp.asarray(np.concatenate(successors), jnp.int32)
    other = jnp.take_along_axis(own, alias, axis=1)
    # A full column must never say no, and an empty one never yes, not even to the words 2^32 - 1 and 0.
    own = jnp.where(threshold > 0, own, other)
    scaled = (jnp.minimum(threshold, 1.0 - 2.0**-24) * jnp.float32(2.0**32)).astype(jnp.uint32)
    limit = jnp.where(threshold >= 1.0, jnp.uint32(0xFFFFFFFF), scaled)
    return MoveTable(limit.ravel(), (own | (other << 16)).ravel(), jnp.asarray(first, jnp.int32), width)


def from_belief(belief: Float[Array, " state"], word: UInt32[Array, " future"]) -> Int[Array, " future"]:
    """States drawn from a posterior by inversion; a state of probability zero is never drawn."""
    u = (word >> np.uint32(8)).astype(jnp.float32) * jnp.float32(2.0**-24)
    cumulative = jnp.cumsum(belief.astype(jnp.float32))
    u = u * cumulative[-1]
    drawn: Any
    if belief.shape[0] > FEW_STATES:
        drawn = jnp.searchsorted(cumulative, u, side="right").astype(jnp.int32)
    else:
        steps = [(u >= cumulative[i]).astype(jnp.int32) for i in range(belief.shape[0] - 1)]
        drawn = sum(steps, start=jnp.zeros_like(word, jnp.int32))
    last = belief.shape[0] - 1 - jnp.argmax(belief[::-1] > 0)
    return jnp.minimum(drawn, last.astype(jnp.int32))


def words(key: UInt32[Array, "2"], futures: int, week: Int[Array, ""]) -> UInt32[Array, "factor future"]:
    """One random word per factor for every future in one relative week (0: the draw of the present state)."""
    pairs = len(FACTORS) // 2
    future = jnp.arange(futures, dtype=jnp.uint32)
    at = week.astype(jnp.uint32) * np.uint32(pairs) + jnp.arange(pairs, dtype=jnp.uint32)
    counts = (jnp.tile(future[None], (pairs, 1)), jnp.tile(at[:, None], (1, futures)))
    # The barrier keeps XLA from working the words out again in every use of them.
    return jax.lax.optimization_barrier(jnp.concatenate(threefry_2x32((key[0], key[1]), counts, ROUNDS)))


def sample_futures(
    moves: MoveTable,
    belief: dict[str, Float[Array, " state"]],
    key: UInt32[Array, "2"],
    weeks: Int[Array, ""],
    futures: int,
    length: int,
) -> Int[Array, "week factor future"]:
    """Futures of all six factors: each state now from its belief, then moved week by week.

    Args:
        moves: see `move_table`.
        belief: factor -> P(state now).
        key: two words that no other decision uses.
        weeks: how many weeks to go; later entries mean nothing.
        futures: how many.
        length: weeks in the result, at least `weeks` of every call.
    """
    drawn = words(key, futures, jnp.zeros((), jnp.int32))
    first = moves.first[:, None]
    now = jnp.stack([from_belief(belief[name], drawn[i]) for i, name in enumerate(FACTORS)]) + first
    kind = jnp.int8 if max(belief[name].shape[0] for name in FACTORS) < 128 else jnp.int16

    def step(h: Array, carry: Any) -> Any:
        state, paths = carry
        state = jax.lax.optimization_barrier(moves.move(state, words(key, futures, h + 1)))
        return state, paths.at[h].set((state - first).astype(kind))

    start = now, jnp.zeros((length, len(FACTORS), futures), kind)
    return jax.lax.fori_loop(0, weeks, step, start)[1]
