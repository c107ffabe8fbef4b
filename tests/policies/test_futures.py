"""Sampled futures: the bits, the alias tables, the law of the paths, and that no batch changes them."""

from __future__ import annotations

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from stocktake_jax.models import FACTORS, HORIZON, World
from stocktake_jax.policies.futures import ROUNDS, from_belief, move_table, sample_futures, threefry_2x32, words

KEY = jnp.array([0x13198A2E, 0x03707344], jnp.uint32)
EVERYTHING = 2**32 - 1


def random_world(seed: int) -> World:
    """A world with many parameters far from the published ones."""
    rng, world = np.random.default_rng(seed), World.paper()
    names = [n for n, p in world.parameters.items() if np.ndim(p.value) == 0 and 0 < p.value < 1]
    for name in rng.choice(names, 25, replace=False):
        world = world.perturb(str(name), float(np.exp(rng.normal(0, 1))))
    return world


WORLDS = {
    "paper": World.paper(),
    "one": random_world(1),
    "two": random_world(2),
    # Events that never happen, and one that always does.
    "bare": World.paper().replace({"port.build_onset": 0.0, "port.congest_persist": 1.0, "canal.watch_onset": 0.0}),
}


def matrices(world: World) -> dict[str, np.ndarray]:
    return {name: np.asarray(f.transition_matrix(), np.float64) for name, f in world.factors.items()}


# ---- bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [(0, 0), (EVERYTHING, EVERYTHING), (0x13198A2E, 0x03707344)])
def test_bits_are_those_of_jax(key: tuple[int, int]) -> None:
    count = np.random.default_rng(0).integers(0, 2**32, (2, 500), dtype=np.uint32)
    count[:, 0], count[:, 1] = 0, EVERYTHING
    words_of_key = jnp.array(key, jnp.uint32)
    mine = threefry_2x32((words_of_key[0], words_of_key[1]), (jnp.asarray(count[0]), jnp.asarray(count[1])))
    theirs = jax.extend.random.threefry_2x32(words_of_key, jnp.asarray(count.ravel()))
    assert np.concatenate(mine).tolist() == theirs.tolist()


@pytest.mark.parametrize(
    ("word", "key", "rounds", "wanted"),
    [
        # The known answers that come with Random123.
        ((0, 0), (0, 0), 20, (0x6B200159, 0x99BA4EFE)),
        ((0, 0), (0, 0), 13, (0x9D1C5EC6, 0x8BD50731)),
        ((EVERYTHING,) * 2, (EVERYTHING,) * 2, 20, (0x1CB996FC, 0xBB002BE7)),
        ((EVERYTHING,) * 2, (EVERYTHING,) * 2, 13, (0xFD36D048, 0x2D17272C)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), 20, (0xC4923A9C, 0x483DF7A0)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), 13, (0xBA3E4725, 0xF27D669E)),
    ],
)
def test_known_answers(word, key, rounds, wanted) -> None:
    mine = threefry_2x32(tuple(map(jnp.uint32, key)), tuple(map(jnp.uint32, word)), rounds)
    assert tuple(int(x) for x in mine) == wanted


def test_words_are_uniform_and_differ_everywhere() -> None:
    drawn = np.stack([np.asarray(words(KEY, 200, jnp.int32(week))) for week in range(HORIZON + 1)])
    assert drawn.shape == (HORIZON + 1, len(FACTORS), 200)
    assert len(np.unique(drawn)) > 0.999 * drawn.size  # a few meet by chance
    assert stats.kstest(drawn.ravel() / 2**32, "uniform").pvalue > 1e-3
    two = np.stack([np.asarray(words(KEY + np.uint32(1), 200, jnp.int32(week))) for week in range(HORIZON + 1)])
    assert not np.isin(two, drawn).mean() > 1e-3
    assert ROUNDS >= 13


# ---- tables ---------------------------------------------------------------------------------------------------------


def implied(world: World) -> np.ndarray:
    """(state, state) the exact probabilities with which a table moves, over all words; states numbered through."""
    transition = {n: jnp.asarray(m, jnp.float32) for n, m in matrices(world).items()}
    table = move_table(world, transition)
    bits = table.width.bit_length() - 1
    states = sum(len(m) for m in transition.values())
    threshold = np.asarray(table.threshold, np.uint64).reshape(states, table.width)
    outcomes = np.asarray(table.outcomes).reshape(states, table.width)
    # A column sees the words' other bits, in steps of 2^bits.
    own = (threshold >> np.uint64(bits)).astype(np.float64) + 1
    share = own / 2.0 ** (32 - bits)
    out = np.zeros((states, states))
    rows = np.repeat(np.arange(states)[:, None], table.width, axis=1)
    np.add.at(out, (rows, outcomes & 0xFFFF), share / table.width)
    np.add.at(out, (rows, outcomes >> 16), (1 - share) / table.width)
    return out


@pytest.mark.parametrize("name", WORLDS)
def test_tables_imply_the_transition_matrices(name: str) -> None:
    wanted = matrices(WORLDS[name])
    mine = implied(WORLDS[name])
    start = 0
    for matrix in wanted.values():
        block = slice(start, start := start + len(matrix))
        assert np.abs(mine[block, block] - matrix).max() < 1e-6
        assert (mine[block, block][matrix == 0] == 0).all()  # what cannot happen never does, whatever the word
        assert mine[block].sum() == pytest.approx(len(matrix), abs=1e-9)
        assert mine[block, block].sum() == pytest.approx(len(matrix), abs=1e-9)  # nor a jump to another factor


def test_the_table_is_what_moves() -> None:
    """The probabilities read off the table's fields are those with which `move` moves."""
    transition = {n: jnp.asarray(m, jnp.float32) for n, m in matrices(World.paper()).items()}
    table, n = move_table(World.paper(), transition), 1 << 16
    grid = (np.arange(n, dtype=np.uint64) * (2**32 // n) + 2**15).astype(np.uint32)
    law = implied(World.paper())
    for state in range(0, len(law), 5):
        landed = np.asarray(table.move(jnp.full(n, state, jnp.int32), jnp.asarray(grid)))
        assert np.abs(np.bincount(landed, minlength=len(law)) / n - law[state]).max() < 4 * table.width / n


@pytest.mark.parametrize("belief", [[0.0, 0.3, 0.0, 0.2, 0.5, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0], [0.25] * 4])
def test_states_drawn_from_a_belief(belief: list[float]) -> None:
    n = 1 << 16
    grid = (np.arange(n, dtype=np.uint64) * (2**32 // n)).astype(np.uint32)
    grid[-1] = EVERYTHING
    drawn = np.asarray(from_belief(jnp.array(belief, jnp.float32), jnp.asarray(grid)))
    share = np.bincount(drawn, minlength=len(belief)) / n
    assert np.abs(share - belief).max() <= 2 / n
    assert (share[np.array(belief) == 0] == 0).all()


# ---- paths ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def law() -> dict[str, np.ndarray]:
    """A belief about every factor, with some states out of the question."""
    rng = np.random.default_rng(5)
    out = {}
    for name, matrix in matrices(World.paper()).items():
        p = rng.dirichlet(np.ones(len(matrix))) * (rng.random(len(matrix)) > 0.3)
        out[name] = (p / p.sum()).astype(np.float32)
    return out


_sample = jax.jit(sample_futures, static_argnums=(4, 5))


def sampled(law: dict[str, np.ndarray], futures: int, key: jax.Array = KEY, weeks: int = HORIZON) -> np.ndarray:
    world = World.paper()
    table = move_table(world, {n: jnp.asarray(m, jnp.float32) for n, m in matrices(world).items()})
    belief = {n: jnp.asarray(p) for n, p in law.items()}
    return np.asarray(_sample(table, belief, key, jnp.int32(weeks), futures, HORIZON))


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """The p-value of a table against its expectation, rare cells taken together."""
    counts, expected = counts.ravel().astype(np.float64), expected.ravel()
    assert (counts[expected == 0] == 0).all()
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 5:
        counts, expected = np.append(counts[:-2], counts[-2:].sum()), np.append(expected[:-2], expected[-2:].sum())
    return float(stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue)


def test_marginals_and_moves_follow_the_chain(law: dict[str, np.ndarray]) -> None:
    futures = 20_000
    paths = sampled(law, futures)
    p_values = []
    for i, (name, matrix) in enumerate(matrices(World.paper()).items()):
        for week in (0, 1, 5, 25):
            wanted = law[name].astype(np.float64) @ np.linalg.matrix_power(matrix, week + 1)
            counts = np.bincount(paths[week, i], minlength=len(matrix))
            p_values.append(chi_square(counts, futures * wanted / wanted.sum()))
        # The moves themselves, pooled over all weeks.
        pairs = np.zeros_like(matrix)
        np.add.at(pairs, (paths[:-1, i].ravel(), paths[1:, i].ravel()), 1)
        p_values.append(chi_square(pairs, pairs.sum(1, keepdims=True) * matrix))
    assert len(p_values) == 30 and min(p_values) > 0.05 / 30 / 5
    assert np.mean(p_values) > 0.3


def test_factors_move_independently(law: dict[str, np.ndarray]) -> None:
    paths = sampled(law, 20_000)
    p_values = []
    for i in range(len(FACTORS)):
        for j in range(i):
            table = np.zeros((paths[0, i].max() + 1, paths[0, j].max() + 1))
            np.add.at(table, (paths[0, i], paths[0, j]), 1)
            table = table[table.sum(1) > 300][:, table.sum(0) > 300]
            p_values.append(stats.chi2_contingency(table).pvalue)
    assert len(p_values) == 15 and min(p_values) > 0.05 / 15 / 5


def test_futures_do_not_depend_on_the_batch(law: dict[str, np.ndarray]) -> None:
    whole = sampled(law, 200)
    assert (sampled(law, 50) == whole[:, :, :50]).all()
    assert (sampled(law, 200, weeks=10)[:10] == whole[:10]).all()
    assert not (sampled(law, 200, KEY + np.uint32(1)) == whole).all((0, 1)).any()

    # Beside other episodes, too.
    world = World.paper()
    table = move_table(world, {n: jnp.asarray(m, jnp.float32) for n, m in matrices(world).items()})
    beliefs = {n: jnp.stack([jnp.asarray(p)[::-1], jnp.asarray(p), jnp.ones_like(p) / len(p)]) for n, p in law.items()}
    keys = jnp.stack([KEY + np.uint32(5), KEY, KEY + np.uint32(6)])
    many = jax.jit(jax.vmap(lambda b, k: sample_futures(table, b, k, jnp.int32(HORIZON), 200, HORIZON)))(beliefs, keys)
    assert (np.asarray(many)[1] == whole).all()
