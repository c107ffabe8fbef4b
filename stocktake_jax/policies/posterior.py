"""Oracles that do not know their parameters: parameter uncertainty as a part of the hidden state that never moves.

A posterior is a `World` whose leaves have a leading axis of draws. For one factor, draw and state together are the state
of a bigger chain, (draw, state), which moves within its draw. The filter of that chain is the exact average over the
posterior: it keeps a filter per draw and weighs the draws by how well each has explained this episode's readings. A future
sampled from its belief has a draw of its own for each factor, and keeps it to the end. So nothing but the tables of a
planner changes: what decides is the code that decides for a known world.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stocktake_jax.errors import InputError
from stocktake_jax.inference import Belief
from stocktake_jax.models import Initial, World


def draws_of(world: World) -> int | None:
    """How many draws a posterior has; None for a world, which is certain of its parameters.

    Raises:
        InputError: if some leaves have another number of draws than others.
    """
    plain = World.paper()
    extra = {
        np.shape(x)[: np.ndim(x) - np.ndim(y)]
        for x, y in zip(jax.tree.leaves(world), jax.tree.leaves(plain), strict=True)
    }
    if extra == {()}:
        return None
    if len(extra) > 1 or len(only := extra.pop()) != 1:
        raise InputError("a posterior must be a world all of whose leaves have one leading axis of draws")
    return int(only[0])


def worlds_of(posterior: World) -> list[World]:
    """The draws of a posterior one by one; a world alone is itself."""
    count = draws_of(posterior)
    if count is None:
        return [posterior]
    return [jax.tree.map(lambda x, i=i: np.asarray(x)[i], posterior) for i in range(count)]


Matrices = Mapping[str, np.ndarray]
"""factor -> transition matrix that holds in place of the declared one, such as EM on free rows learns."""


def laws(
    model: World, initial: Initial, matrices: Matrices | None = None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """factor -> law of the first state, and factor -> transition matrix, in float64.

    Of a posterior: (draw * state) with every draw alike, and (draw, state, state).

    Raises:
        InputError: for matrices of an unknown factor or of another size, or with a posterior.
    """
    worlds = worlds_of(model)
    names = list(model.factors)
    if matrices:
        return _with_matrices(model, initial, matrices)
    start = {n: [np.asarray(w.factors[n].initial(initial)) for w in worlds] for n in names}
    moves = {n: [np.asarray(w.factors[n].transition_matrix()) for w in worlds] for n in names}
    if draws_of(model) is None:
        return {n: start[n][0] for n in names}, {n: moves[n][0] for n in names}
    return {n: np.concatenate(start[n]) / len(worlds) for n in names}, {n: np.stack(moves[n]) for n in names}


def _with_matrices(
    model: World, initial: Initial, matrices: Matrices
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    if draws_of(model) is not None:
        raise InputError("a posterior cannot be combined with other transition matrices")
    start, moves = laws(model, initial)
    for n, matrix in matrices.items():
        if n not in moves or np.shape(matrix) != moves[n].shape:
            raise InputError(f"there is no factor {n!r} with a transition matrix of shape {np.shape(matrix)}")
        moves[n] = np.asarray(matrix, np.float64)
        if initial == "uniform":
            weights = model.factors[n].uniform_weights()
            start[n] = weights / weights.sum() @ moves[n]
    return start, moves


def by_state(world: World, of: Callable[[World], Any]) -> Array:
    """What `of` says of each state, as one vector: (state), or (draw * state) of a posterior."""
    if draws_of(world) is None:
        return jnp.asarray(of(world))
    return jax.vmap(lambda w: jnp.asarray(of(w)))(world).reshape(-1)


def onward(belief: Float[Array, " state"], transition: Float[Array, "draw old new"]) -> Float[Array, " state"]:
    """The belief one week on, every draw within itself."""
    draws, states, _ = transition.shape
    split = belief.reshape(draws, states)
    return jnp.einsum("ds,dst->dt", split, transition, precision="highest").reshape(-1)


def marginal(world: World, belief: Belief) -> Belief:
    """The belief about states alone, draws summed out."""
    draws = draws_of(world)
    if draws is None:
        return belief
    pooled = {n: p.reshape(*p.shape[:-1], draws, -1).sum(axis=-2) for n, p in belief.posteriors.items()}
    return Belief(pooled, belief.log_evidence)
