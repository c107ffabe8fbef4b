"""Gymnasium environments: one episode on the agent's own desk, and many at once on the batched books.

`make_env` and `make_vector_env` build them; Gymnasium is imported when they are called. Observations and actions are
those of `functional`: a dict of float32 vectors, and nine whole numbers.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from stocktake_jax.agents.extras import require
from stocktake_jax.agents.functional import FIELDS, SHOWN, EnvState, Stocktake, action_sizes, encode
from stocktake_jax.desk import ROUTES, SUPPLIERS, TERMS, Episode, Refusal, Rules
from stocktake_jax.desk.books import check_rules
from stocktake_jax.desk.contracts import ACTIONS
from stocktake_jax.desk.tools import Text, Whole, shown
from stocktake_jax.errors import InputError
from stocktake_jax.models import Tape, World

SEEDS = (1000, 2**31 - 1)
"""Range of the tapes' seeds, unless one is asked for: clear of the published ones."""


def make_env(world: World | None = None, rules: Text = "paper") -> Any:
    """A Gymnasium environment of one episode, exact to the cent.

    `reset(seed=…)` seeds the generator that draws the tape, as usual in Gymnasium; `reset(options={"tape_seed": n})`
    plays the published tape n. The reward is minus the week's dollars; an episode terminates after 26 weeks.

    Raises:
        InputError: if Gymnasium is not installed, or for unknown rules; in `step`, for an action outside the space.
    """
    check_rules(rules)
    return _classes()[0](world, rules)


def make_vector_env(count: Whole, world: World | None = None, rules: Text = "paper") -> Any:
    """A Gymnasium vector environment of `count` episodes in lockstep, on the batched books in float64.

    Its episodes all end together; the step after that begins new ones (next-step autoreset), whatever the action.
    `reset(seed=s)` gives environment i the tapes of a single environment reset with seed s + i, in this episode and in
    those that follow; a list of seeds gives each its own. `reset(options={"tape_seeds": [...]})` plays published tapes,
    one for each.

    Raises:
        InputError: if Gymnasium is not installed, for a count below 1 or unknown rules; in `reset` and `step`, for
            anything but one seed or action for each environment.
    """
    check_rules(rules)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"the number of environments must be a whole number of at least 1, not {shown(count)}")
    return _classes()[1](count, world, rules)


@functools.cache
def _classes() -> tuple[Any, Any]:
    gymnasium = require("gymnasium")
    spaces, vector, batched = gymnasium.spaces, gymnasium.vector, require("gymnasium.vector.utils")
    seeding = require("gymnasium.utils.seeding")

    def observation_space() -> Any:
        boxes = {k: spaces.Box(low, high, (n,), np.float32) for k, (n, low, high) in SHOWN.items()}
        return spaces.Dict(boxes)

    class StocktakeEnv(gymnasium.Env):  # type: ignore[misc, name-defined]
        """See `make_env`."""

        metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's declaration)

        def __init__(self, world: World | None = None, rules: Rules = "paper") -> None:
            self.world, self.rules = world or World.paper(), rules
            self.observation_space = observation_space()
            self.action_space = spaces.MultiDiscrete(action_sizes(self.world))
            self.render_mode = None
            self._episode: Episode | None = None

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            tape = _option(options, "tape_seed")
            if tape is None:
                tape = int(self.np_random.integers(*SEEDS))
            self._episode = Episode(tape, self.world, self.rules)
            return encode(self._episode.observe()), {}

        def step(self, action: Any) -> Any:
            if self._episode is None or self._episode.done:
                raise gymnasium.error.ResetNeeded("reset the environment before its first step and after its last")
            episode, before, sizes = self._episode, self._episode.cost, action_sizes(self.world)
            entry = dict(zip(FIELDS, _checked(action, sizes).tolist(), strict=True))
            if entry["lock_weeks"]:
                episode.lock_freight(entry["lock_weeks"])
            if entry["air"]:
                episode.expedite_air(entry["air"])
            if entry["inspect"]:
                episode.inspect_batch()
            contract: dict[str, Any] = {}
            if entry["action"]:
                kind = ACTIONS[entry["action"] - 1]
                contract = {"contract_action": kind, "contract_supplier": SUPPLIERS[entry["contract_supplier"]]}
                if entry["terms"] and kind != "lapse":
                    contract["contract_terms"] = TERMS[entry["terms"] - 1]
            order = (ROUTES[entry["route"]], SUPPLIERS[entry["supplier"]]) if entry["qty"] else (None, None)
            info: dict[str, Any] = {"refused": False}
            try:
                seen = episode.place_order("action", entry["qty"], *order, **contract)
            except Refusal as refusal:
                info = {"refused": True, "message": str(refusal)}
                seen = episode.place_order("action", 0, **contract)
            info["cost_breakdown"] = seen["cost_breakdown"]
            return encode(seen), before - episode.cost, episode.done, False, info

    class StocktakeVectorEnv(vector.VectorEnv):  # type: ignore[misc, name-defined]
        """See `make_vector_env`."""

        metadata: dict[str, Any] = {"autoreset_mode": vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

        def __init__(self, count: int, world: World | None = None, rules: Rules = "paper") -> None:
            self.num_envs, self.world, self.rules = count, world or World.paper(), rules
            self.single_observation_space = observation_space()
            self.single_action_space = spaces.MultiDiscrete(action_sizes(self.world))
            self.observation_space = batched.batch_space(self.single_observation_space, count)
            self.action_space = batched.batch_space(self.single_action_space, count)
            self.render_mode = None
            env = Stocktake(self.world, rules)
            # The tapes are drawn already: no randomness is left.
            self._step = jax.jit(jax.vmap(lambda state, action: env.step(jax.random.key(0), state, action)))
            self._reset_on = jax.jit(jax.vmap(env.reset_on))
            self._state: EnvState | None = None
            self._generators: list[Any] = [None] * count  # of the tapes: one an environment, as single ones have
            self._over = False

        def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
            count = self.num_envs
            seed = int(seed) if isinstance(seed, np.integer) else seed
            super().reset(seed=seed if isinstance(seed, int) else None)
            seeds = [seed + i for i in range(count)] if isinstance(seed, int) else seed or [None] * count
            tapes = _option(options, "tape_seeds")
            if len(seeds) != count or (tapes is not None and np.shape(tapes) != (count,)):
                raise InputError(f"{count} environments need as many seeds, not {shown(tapes or seeds)}")
            for i, s in enumerate(seeds):
                if s is not None or self._generators[i] is None:
                    self._generators[i] = seeding.np_random(s)[0]
            if tapes is None:
                tapes = [int(g.integers(*SEEDS)) for g in self._generators]
            with jax.enable_x64(True):
                tape = Tape.published_batch([int(t) for t in tapes], self.world)
                observation, self._state = self._reset_on(tape)
            self._over = False
            return _host(observation), {}

        def step(self, actions: Any) -> Any:
            if self._state is None:
                raise gymnasium.error.ResetNeeded("reset the environment before its first step")
            if self._over:
                observation, info = self.reset()
                nothing = np.zeros(self.num_envs, bool)
                return observation, np.zeros(self.num_envs), nothing, nothing.copy(), info
            with jax.enable_x64(True):
                out = self._step(
                    self._state, _checked(actions, action_sizes(self.world), self.num_envs).astype(np.int32)
                )
            self._state = out.state
            terminated = np.array(out.terminated)
            self._over = bool(terminated.all())
            info = {name: np.array(value) for name, value in out.info.items()}
            return _host(out.observation), np.array(out.reward, np.float64), terminated, np.array(out.truncated), info

    return StocktakeEnv, StocktakeVectorEnv


def _checked(action: Any, sizes: tuple[int, ...], *batch: int) -> np.ndarray:
    """An action, or one for each environment of a batch, as an array of whole numbers.

    Raises:
        InputError: if it is not in the space.
    """
    array, shape = np.asarray(action), (*batch, len(sizes))
    whole = np.issubdtype(array.dtype, np.integer)
    if not (whole and array.shape == shape and (array >= 0).all() and (array < np.array(sizes)).all()):
        raise InputError(
            f"an action here is an array of whole numbers of shape {shape}, from 0 and each below {sizes} "
            f"({', '.join(FIELDS)}); this one is {array.dtype} of shape {array.shape}: {shown(array.tolist())}"
        )
    return array


def _option(options: Any, name: str) -> Any:
    """An entry of `reset`'s options. Others are refused, lest a misspelt one pass for none."""
    unknown = set(options or {}) - {name}
    if unknown:
        raise InputError(f"there is no option {unknown.pop()!r} of reset; there is {name!r}")
    return (options or {}).get(name)


def _host(observation: Any) -> dict[str, np.ndarray]:
    return {key: np.array(value) for key, value in observation.items()}
