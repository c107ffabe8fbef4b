"""The oracle's choice against plain Python on the same futures; layouts; agreement with the published oracle."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.benchmark import run_benchmark
from stocktake_jax.evaluation.published import published_references
from stocktake_jax.inference import Belief
from stocktake_jax.models import FACTORS, HORIZON, Tape, World
from stocktake_jax.policies import Layout, Oracle, protocol_futures
from stocktake_jax.policies.futures import sample_futures
from stocktake_jax.policies.menu import MENU_WIDTH, risks
from stocktake_jax.policies.protocol import Shown
from stocktake_jax.policies.rollout import Choice, choose, planner, watch

SUPPLIERS, ROUTES = ("qualified", "spot", "backup"), ("suez", "cape")
EPISODES, MOST = 5, 6
LAYOUTS = (Layout(8, 5), Layout(2, MENU_WIDTH), Layout(1, 1))


class Problem(NamedTuple):
    """A batch of decisions, all in one week."""

    week: int
    belief: Belief
    shown: Shown
    keys: jax.Array
    futures: jax.Array


def problem(week: int, seed: int) -> Problem:
    """Beliefs of all kinds, some sure of trouble, and desks of all kinds."""
    rng, world = np.random.default_rng(seed), World.paper()
    beliefs: dict[str, Any] = {}
    for name, factor in world.factors.items():
        p = rng.dirichlet(np.full(len(factor.states), 0.3), EPISODES)
        stressed = factor.stress_mask | (name == "freight") & factor.brewing_mask
        p[: EPISODES // 2] = 0.2 * p[: EPISODES // 2] + 0.8 * stressed / stressed.sum()  # so that levers are offered
        beliefs[name] = jnp.asarray(p, jnp.float32)
    units, eta = np.zeros((EPISODES, 27), np.int32), np.zeros((EPISODES, 27), np.int32)
    for row in range(EPISODES):
        ships = rng.integers(0, 5)
        units[row, 3 : 3 + ships] = rng.integers(1, 60, ships)
        eta[row, 3 : 3 + ships] = week + rng.integers(1, 5, ships)
    live = rng.random((EPISODES, 3)) < 0.6
    live[:, 1] |= ~live.any(axis=1)
    shown = Shown(
        jnp.asarray(rng.integers(0, 120, EPISODES), jnp.int32),
        jnp.asarray(units),
        jnp.asarray(eta),
        jnp.asarray(live),
        jnp.zeros(EPISODES, bool),
    )
    keys = jnp.asarray(rng.integers(0, 2**32, (EPISODES, 2), dtype=np.uint32))
    futures = jnp.asarray([MOST, MOST - 1, 1, MOST, 3], jnp.int32)
    return Problem(week, Belief(beliefs, {}), shown, keys, futures)


PLANNER = planner(World.paper())
_programs: dict[Layout, Any] = {}
_sample = jax.jit(lambda belief, key, weeks: sample_futures(PLANNER.moves, belief, key, weeks, MOST, HORIZON))


def decide(case: Problem, layout: Layout = LAYOUTS[0]) -> Choice:
    def program(belief: Belief, shown: Shown, week: jax.Array, keys: jax.Array, futures: jax.Array) -> Choice:
        r = risks(PLANNER.world, belief)
        return choose(PLANNER, r, belief, shown, week, keys, futures, most_futures=MOST, layout=layout)

    if layout not in _programs:
        _programs[layout] = jax.jit(program)
    return jax.tree.map(
        np.asarray, _programs[layout](case.belief, case.shown, jnp.int32(case.week), case.keys, case.futures)
    )


def plain_states(paths: np.ndarray) -> dict[str, list[list[Any]]]:
    """One future (week, factor) in the words that the plain surrogate reads."""
    out = {}
    for i, (name, factor) in enumerate(World.paper().factors.items()):
        states = [factor.states[s] for s in paths[:, i]]
        out[name] = [[{"short": "disruption", "long": "disruption"}.get(s.regime, s.regime), s.age] for s in states]
    return out


def plain_decision(plain: Any, case: Problem, i: int) -> tuple[list[dict[str, Any]], list[float]]:
    """Every candidate of episode i and its mean cost, by plain Python on the futures that the oracle samples."""
    world, weeks = World.paper(), HORIZON - case.week
    posterior = {name: np.asarray(p[i], np.float64) for name, p in case.belief.posteriors.items()}

    def mass(name: str, regimes: set[str]) -> float:
        return sum(p for p, s in zip(posterior[name], world.factors[name].states, strict=True) if s.regime in regimes)

    expected = float(posterior["demand"] @ np.array(world.demand.means))
    ships = [[int(u), int(e)] for u, e in zip(case.shown.units[i], case.shown.eta[i], strict=True) if u]
    inventory = int(case.shown.inventory[i])
    live = {name for name, is_live in zip(SUPPLIERS, case.shown.live[i], strict=True) if is_live}
    menu = plain.menu(
        expected,
        mass("freight", {"tightening", "spike"}) > 0.3,
        mass("port", {"congested", "customs_hold"}) > 0.3,
        mass("quality", {"out_of_control"}) > 0.5,
        inventory + sum(units for units, _ in ships),
        live,
        any(eta == case.week + 1 for _, eta in ships),
    )
    belief = {name: p[i] for name, p in case.belief.posteriors.items()}
    paths = np.asarray(_sample(belief, case.keys[i], jnp.int32(weeks)))
    count = int(case.futures[i])
    futures = [plain_states(paths[:weeks, :, f]) for f in range(count)]
    costs = [
        sum(plain.cost(case.week, inventory, ships, live, future, candidate) for future in futures) / count
        for candidate in menu
    ]
    return menu, costs


@pytest.mark.parametrize("week", [0, 7, 19, 25])
def test_choice_and_costs_against_plain_python(plain: Any, week: int) -> None:
    """The whole table of mean costs, candidate by candidate, and the candidate taken."""
    case = problem(week, seed=week)
    choice = decide(case)
    levers = 0
    for i in range(EPISODES):
        menu, costs = plain_decision(plain, case, i)
        offered = choice.costs[i][np.isfinite(choice.costs[i])]
        assert offered == pytest.approx(costs, rel=2e-6, abs=1e-3)
        c = {name: value[i].item() for name, value in vars(choice.chosen).items()}
        mine = {
            "qty": c["qty"],
            "route": ROUTES[c["route"]] if c["qty"] else None,
            "supplier": SUPPLIERS[c["supplier"]] if c["qty"] else None,
            "sign_qualified": c["sign"],
            "lock_freight": c["lock"],
            "air_qty": c["air"],
            "inspect": c["inspect"],
        }
        at = menu.index(mine)
        # The cheapest, and of equally cheap ones the first.
        assert costs[at] <= min(costs) + 1e-2
        assert offered[:at].tolist() == [x for x in offered[:at] if x > offered[at]]
        assert choice.costs[i][choice.slot[i]] == np.min(choice.costs[i])
        levers += len(menu) > 30
    assert levers >= 2


def test_a_tie_goes_to_the_first(plain: Any) -> None:
    """In the last week nothing that is ordered arrives, and a lock on no order changes nothing."""
    case = problem(25, seed=25)
    choice = decide(case)
    for i in range(EPISODES):
        _, costs = plain_decision(plain, case, i)
        assert len(set(costs)) < len(costs) or len(costs) < 3
        assert (choice.chosen.qty[i], choice.chosen.lock[i]) == (0, False)


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_layouts_change_nothing(layout: Layout) -> None:
    """No decision, and but for the last bits of a sum over futures no cost; none at all between the layouts in use."""
    for week in (0, 19):
        case = problem(week, seed=week)
        a, b = decide(case), decide(case, layout)
        for name, value in vars(a.chosen).items():
            assert value.tolist() == vars(b.chosen)[name].tolist()
        assert a.slot.tolist() == b.slot.tolist()
        assert b.costs == pytest.approx(a.costs, rel=2e-6, abs=0)
        if layout.block == MENU_WIDTH:
            assert a.costs.tobytes() == b.costs.tobytes()


def test_an_episode_does_not_feel_its_neighbours() -> None:
    """Other episodes in the batch, and another place in it, change no bit."""
    case, other = problem(7, seed=7), problem(7, seed=8)
    turned = jax.tree.map(lambda a, b: jnp.concatenate([b[:2], a[::-1][:3]]), case[1:], other[1:])
    a, b = decide(case), decide(Problem(7, *turned))
    assert a.costs[::-1][:3].tobytes() == b.costs[2:].tobytes()
    assert a.slot[::-1][:3].tolist() == b.slot[2:].tolist()


def test_beliefs_do_not_depend_on_the_size_of_the_batch() -> None:
    """Four weeks of 70 episodes, which are two blocks, and the first 7 of them: no belief differs by a bit."""
    world, weeks = World.paper(), 4
    tapes = Tape.published_batch(range(70), world)
    readings = jax.tree.map(lambda x: np.asarray(x, np.float32), tapes.readings(world))
    run = jax.jit(lambda predicted, now: watch(PLANNER, predicted, now, "paper"))

    def beliefs(count: int) -> list[Any]:
        predicted = {n: np.tile(np.asarray(p), (count, 1)) for n, p in PLANNER.initial.items()}
        out = []
        for week in range(weeks):
            seen = run(predicted, jax.tree.map(lambda x, t=week: x[:count, t], readings))
            predicted = seen.ahead
            out.append(jax.tree.map(np.asarray, seen))
        return out

    for few, many in zip(beliefs(7), beliefs(70), strict=True):
        for a, b in zip(jax.tree.leaves(few), jax.tree.leaves(many), strict=True):
            assert a.tobytes() == b[:7].tobytes()


def test_layout_by_platform() -> None:
    assert Layout.choose("cpu").group * Layout.choose("cpu").block < Layout.choose("gpu").group * MENU_WIDTH
    assert Layout.choose("gpu").block == MENU_WIDTH


def test_the_protocol_and_what_is_refused() -> None:
    assert [protocol_futures(r) for r in (1, 20)] == [191, 210]
    for futures in (0, -1, True):
        with pytest.raises(InputError, match="futures must be"):
            Oracle(futures=futures)
    assert set(FACTORS) == set(PLANNER.transition)


@pytest.mark.slow
def test_agreement_with_the_published_oracle() -> None:
    """All fifty seeds, twenty runs each, by the published protocol."""
    result = run_benchmark()
    agreement = result.agreement()
    assert agreement is not None and len(agreement.rows) == 50
    assert abs(agreement.mean) <= 2 * agreement.se
    assert agreement.beyond_3 <= 3
    assert [s.floor for s in result.seeds] == pytest.approx([r.floor for r in published_references()], abs=0.051)
    # The paper counts 49 scoreable seeds; ours agree on which one is not.
    assert result.skill.excluded == (11,)
