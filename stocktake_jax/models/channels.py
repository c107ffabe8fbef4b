"""Emission channels: what a factor's state shows, how likely a reading is, and how readings are drawn.

Every channel knows two likelihoods. `paper` is the published filters': normal densities at the value shown. `exact` is
the law of what is really shown: a reading that was rounded and clipped has the probability of its interval, and the
clipped ends have their whole tail.
"""

from __future__ import annotations

import abc
import functools
import math
import random
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float, Int

Likelihood = Literal["paper", "exact"]
"""Which law of the readings a filter uses."""


Drawer = Callable[[random.Random, int], float]
"""(generator, state) to a value: a closure over plain numbers, since module attributes are slow to read in a loop."""


class Channel(eqx.Module):
    """One number a week that depends on the state alone.

    Attributes:
        name: the key under which readings of it are given.
        start: its constant reading in week 0; None: nothing special about week 0; nan: nothing is read.
        shown: whether an observer sees it.
        likelihoods: the likelihood kinds that read it.
        frozen: per state, whether the value of the week before stays (and then, exactly, says nothing).
    """

    name: str = eqx.field(static=True)
    start: float | None = eqx.field(static=True, default=None, kw_only=True)
    shown: bool = eqx.field(static=True, default=True, kw_only=True)
    likelihoods: tuple[Likelihood, ...] = eqx.field(static=True, default=("paper", "exact"), kw_only=True)
    frozen: tuple[bool, ...] = eqx.field(static=True, default=(), kw_only=True)

    def speaks(self, likelihood: Likelihood) -> bool:
        """Whether filters with this likelihood read the channel."""
        return likelihood in self.likelihoods

    @abc.abstractmethod
    def log_prob(self, reading: Float[Array, ""], likelihood: Likelihood) -> Float[Array, " state"]:
        """log P(reading | state) - `log_scale(reading)` for every state; zeros for a nan reading."""

    def log_scale(self, reading: Float[Array, ""], likelihood: Likelihood) -> Float[Array, ""]:
        """A part of log P(reading | state) that all states share, kept apart so that float32 keeps its digits: zero."""
        return jnp.zeros_like(reading)

    @abc.abstractmethod
    def sample(self, key: Array, states: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Draw a value in each of these states, independently (before `hold`)."""

    @abc.abstractmethod
    def drawer(self) -> Drawer:
        """A function that draws a value on the host, with exactly the calls the published generator makes."""

    def reading(self, emitted: Any) -> Any:
        """What is shown of an emitted value, in float64 on the host; the value itself unless a channel says otherwise."""
        return emitted

    def snap(self, emitted: Any) -> np.ndarray:
        """Emitted values as the float64 numbers of the channel's own decimals (float32 tapes lose the last digits)."""
        return np.asarray(emitted, np.float64)

    def hold(self, values: Float[Array, " week"], states: Int[Array, " week"]) -> Float[Array, " week"]:
        """Repeat the last value drawn before a run of frozen states."""
        if not any(self.frozen):
            return values
        week = jnp.arange(values.shape[0])
        frozen = jnp.asarray(self.frozen)[states]
        return values[jax.lax.cummax(jnp.where(frozen, jnp.zeros_like(week), week))]


def _silence_missing(reading: Array, log_prob: Array) -> Array:
    return jnp.where(jnp.isnan(reading), jnp.zeros_like(log_prob), log_prob)


def log_interval(low: Float[Array, " state"], high: Float[Array, " state"]) -> Float[Array, " state"]:
    """log(Phi(high) - Phi(low)) for low < high in units of the standard deviation; either end may be infinite.

    The upper tail is reflected into the lower one, where the logarithm of Phi keeps its digits.
    """
    flip = low > 0
    a, b = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    upper = log_ndtr(b)
    open_end = jnp.isneginf(a)
    # Any finite number below b will do where a is not used: log has no gradient at a gap of zero.
    a_safe = jnp.where(open_end, jnp.minimum(b, 0) - 1, a)
    gap = log_ndtr(a_safe) - upper
    return upper + jnp.where(open_end, jnp.zeros_like(gap), jnp.log(-jnp.expm1(gap)))


def _standardised(edge: Array, mean: Array, sd: Array) -> Array:
    """(edge - mean) / sd for a scalar edge that may be infinite; infinity over sd has a nan gradient."""
    finite = jnp.isfinite(edge)
    return jnp.where(finite, (jnp.where(finite, edge, jnp.zeros_like(edge)) - mean) / sd, edge)


class Gaussian(Channel):
    """A normal value, rounded to a number of decimals and clipped.

    Attributes:
        mean, sd: of the value before rounding; mean by state.
        decimals: it is rounded to a multiple of 10^-decimals.
        low, high: it is clipped to this range, whose ends are multiples of the step.
    """

    mean: Float[Array, " state"]
    sd: Float[Array, ""]
    decimals: int = eqx.field(static=True, default=0)
    low: float = eqx.field(static=True, default=-math.inf)
    high: float = eqx.field(static=True, default=math.inf)

    def log_prob(self, reading: Float[Array, ""], likelihood: Likelihood) -> Float[Array, " state"]:
        """See `Channel.log_prob`. Under `exact`, a value off the grid or out of range has probability zero."""
        dtype = reading.dtype
        mean, sd = jnp.asarray(self.mean, dtype), jnp.asarray(self.sd, dtype)
        y = jnp.where(jnp.isnan(reading), jnp.zeros_like(reading), reading)
        scale = self._reading_scale
        if likelihood == "paper":
            # Squared distance over 2 sd^2: one rounding where standardising first would take three.
            return _silence_missing(reading, -((y - scale * mean) ** 2) / (2 * (scale * sd) ** 2))
        low, high, possible = self._interval(y)
        log_p = log_interval(_standardised(low, mean, sd), _standardised(high, mean, sd))
        log_p = jnp.where(possible, log_p, -jnp.inf)
        if any(self.frozen):
            log_p = jnp.where(jnp.asarray(self.frozen), jnp.zeros_like(log_p), log_p)
        return _silence_missing(reading, log_p)

    def log_scale(self, reading: Float[Array, ""], likelihood: Likelihood) -> Float[Array, ""]:
        """See `Channel.log_scale`: the normal density's constant."""
        if likelihood == "exact":
            return jnp.zeros_like(reading)
        sd = jnp.asarray(self.sd, reading.dtype)
        return _silence_missing(reading, -jnp.log(self._reading_scale * sd * math.sqrt(2 * math.pi)))

    @property
    def _reading_scale(self) -> float:
        return 1.0

    def _interval(self, y: Array) -> tuple[Array, Array, Array]:
        """The values before rounding and clipping that are shown as y, and whether any are."""
        unit = 10.0**self.decimals
        k = jnp.round(y * unit)
        low, high = (k - 0.5) / unit, (k + 0.5) / unit
        if math.isfinite(self.low):
            low = jnp.where(k <= round(self.low * unit), -jnp.inf, low)
        if math.isfinite(self.high):
            high = jnp.where(k >= round(self.high * unit), jnp.inf, high)
        on_grid = jnp.abs(y * unit - k) < 1e-3
        inside = (k >= self.low * unit - 0.5) & (k <= self.high * unit + 0.5)
        return low, high, on_grid & inside

    def sample(self, key: Array, states: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
        """See `Channel.sample`."""
        mean = jnp.asarray(self.mean)[states]
        value = mean + jnp.asarray(self.sd) * jax.random.normal(key, mean.shape, mean.dtype)
        unit = 10.0**self.decimals
        return jnp.clip(jnp.round(value * unit) / unit, self.low, self.high) + 0.0  # no negative zero

    def drawer(self) -> Drawer:
        """See `Channel.drawer`: one call of gauss."""
        means, sd, decimals = np.asarray(self.mean).tolist(), float(self.sd), self.decimals
        low, high = self.low, self.high
        # max(low, x), not max(x, low): of two zeros the first is returned, and a value must not be -0.0.
        return lambda rng, state: min(max(low, round(rng.gauss(means[state], sd), decimals)), high)

    def snap(self, emitted: Any) -> np.ndarray:
        """See `Channel.snap`."""
        return np.round(np.asarray(emitted, np.float64), self.decimals)


_INDEX_TABLE = 8192


@functools.cache
def _index_cells() -> np.ndarray:
    """First 4-decimal value, in units of 1e-4, that is shown as index i, for i = 0 .. table size.

    A multiplier lies on a grid of 1e-4 and its index is that binary float times 100, rounded: where 100 m is close to a
    half, the float's own last digit decides. So the cell edges are looked up, not computed.
    """
    half = 100 * np.arange(_INDEX_TABLE + 1) - 50
    index = np.arange(_INDEX_TABLE + 1)
    return np.where(np.round(100.0 * (half / 1e4)) == index, half, half + 1).astype(np.float64)


def _first_shown_as(index: Any, xp: Any) -> Any:
    """The cell edges of an array of indices; above the table, halves are taken to round up."""
    cells = xp.asarray(_index_cells(), index.dtype)
    inside = xp.clip(index, 0, _INDEX_TABLE)
    return xp.where(index <= _INDEX_TABLE, cells[inside.astype(xp.int32)], 100.0 * index - 50.0)


class Index(Gaussian):
    """A multiplier that is charged as it is and shown as a whole-number index, 100 times itself.

    The index rounds what was already rounded to `decimals`; `exact` has the law of both roundings.
    """

    @property
    def _reading_scale(self) -> float:
        return 100.0

    def reading(self, emitted: Any) -> Any:
        """The index of a multiplier: `round(100 m)` of the float64 number, ties to even, whatever the type given."""
        xp: Any = jnp if isinstance(emitted, jax.Array) else np
        k = xp.round(xp.asarray(emitted) * 1e4)
        i = xp.floor((k + 50.0) / 100.0)
        return xp.where(k < _first_shown_as(i, xp), i - 1.0, i)

    def _interval(self, y: Array) -> tuple[Array, Array, Array]:
        k = jnp.round(y)
        # The value before the first rounding: half a step of 1e-4 below the first grid value of the cell.
        low, high = ((_first_shown_as(i, jnp) - 0.5) / 1e4 for i in (k, k + 1))
        floor = round(100 * self.low)
        low = jnp.where(k <= floor, -jnp.inf, low)
        return low, high, (jnp.abs(y - k) < 1e-3) & (k >= floor)


def _draw_one(values: list[list[float]], probs: list[list[float]], rng: random.Random, state: int) -> float:
    """One of a state's values; a certain one takes no random number."""
    options = values[state]
    if len(options) > 1:
        u, cumulative = rng.random(), 0.0
        for value, p in zip(options[:-1], probs[state][:-1], strict=True):
            cumulative += p
            if u < cumulative:
                return float(value)
    return float(options[-1])


class Discrete(Channel):
    """A value out of a short list, with probabilities that depend on the state.

    Attributes:
        values: what can be shown in each state.
        probs: with which probability; rows sum to one. One column: a certain value, drawn without a random number.
    """

    values: Float[Array, "state value"]
    probs: Float[Array, "state value"]

    def log_prob(self, reading: Float[Array, ""], likelihood: Likelihood) -> Float[Array, " state"]:
        """See `Channel.log_prob`."""
        dtype = reading.dtype
        hit = jnp.asarray(self.values, dtype) == reading
        probs = jnp.asarray(self.probs, dtype)
        p = jnp.sum(jnp.where(hit, probs, jnp.zeros_like(probs)), axis=-1)
        seen = p > 0
        log_p = jnp.where(seen, jnp.log(jnp.where(seen, p, jnp.ones_like(p))), -jnp.inf)
        return _silence_missing(reading, log_p)

    def sample(self, key: Array, states: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
        """See `Channel.sample`."""
        values, probs = jnp.asarray(self.values)[states], jnp.asarray(self.probs)[states]
        options = values.shape[-1]
        if options == 1:
            return values[..., 0]
        u = jax.random.uniform(key, (*states.shape, 1), probs.dtype)
        # Rounding can leave the sum short of one: what is above it goes to the last value that is possible.
        last = options - 1 - jnp.argmax(probs[..., ::-1] > 0, axis=-1, keepdims=True)
        chosen = jnp.minimum(jnp.sum(u >= jnp.cumsum(probs, axis=-1), axis=-1, keepdims=True), last)
        return jnp.take_along_axis(values, chosen, axis=-1)[..., 0]

    def drawer(self) -> Drawer:
        """See `Channel.drawer`: one uniform number, none if the value is certain."""
        values, probs = np.asarray(self.values).tolist(), np.asarray(self.probs).tolist()
        return functools.partial(_draw_one, values, probs)

    def snap(self, emitted: Any) -> np.ndarray:
        """See `Channel.snap`: the nearest value of the list, or week 0's."""
        first = [] if self.start is None or math.isnan(self.start) else [self.start]
        listed = np.unique(np.append(np.asarray(self.values, np.float64), first))
        x = np.asarray(emitted, np.float64)
        above = np.clip(np.searchsorted(listed, x), 1, max(len(listed) - 1, 1))
        low, high = listed[above - 1], listed[np.minimum(above, len(listed) - 1)]
        return np.where(np.isnan(x), x, np.where(x - low <= high - x, low, high))


def columns(*vectors: Any) -> Any:
    """(state, value) vectors over states side by side; in numpy unless one of them is a jax value."""
    traced = any(isinstance(v, jax.Array) for v in vectors)
    return jnp.stack([jnp.asarray(v) for v in vectors], axis=-1) if traced else np.stack(vectors, axis=-1)


GAMMA_ROUNDS = 6
"""Proposals per gamma draw. Below 2e-8 (5% each) is the chance that none is accepted: less than float32 can tell."""


def gamma(key: Array, a: Float[Array, ""], shape: tuple[int, ...]) -> Float[Array, "*shape"]:
    """Independent gamma variates of shape parameter a and scale 1 (Marsaglia and Tsang, 2000).

    All proposals are drawn at once: `jax.random.gamma` walks through a batch one by one on CPUs, which took most of the
    time of a batch of tapes.
    """
    # One draw for everything, proposals first: the other order, and more calls of the generator, take seconds more to
    # compile on CPUs.
    uniform = jax.random.uniform(key, (2 * GAMMA_ROUNDS + 1, *shape), a.dtype)
    x = math.sqrt(2.0) * jax.lax.erf_inv(2 * uniform[:GAMMA_ROUNDS] - 1)
    u, boost = uniform[GAMMA_ROUNDS:-1], uniform[-1]
    small = a < 1  # drawn as Gamma(a + 1) times U^(1 / a)
    d = jnp.where(small, a + 1, a) - 1 / 3
    cubed = (1 + x / jnp.sqrt(9 * d)) ** 3
    v = jnp.where(cubed > 0, cubed, jnp.ones_like(cubed))
    accepted = (cubed > 0) & (jnp.log(u) < x**2 / 2 + d * (1 - v + jnp.log(v)))
    value = d * jnp.take_along_axis(v, jnp.argmax(accepted, axis=0)[None], axis=0)[0]
    return jnp.where(small, value * boost ** (1 / a), value)


class Gamma(Channel):
    """A positive value with a mean by state and a gamma law of the given shape, rounded; never shown."""

    mean: Float[Array, " state"]
    shape: Float[Array, ""]
    decimals: int = eqx.field(static=True, default=5)

    def log_prob(self, reading: Float[Array, ""], likelihood: Likelihood) -> Float[Array, " state"]:
        """Zeros: nobody reads it."""
        return jnp.zeros_like(jnp.asarray(self.mean, reading.dtype))

    def sample(self, key: Array, states: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
        """See `Channel.sample`."""
        a, unit = jnp.asarray(self.shape), 10.0**self.decimals
        value = jnp.asarray(self.mean)[states] * gamma(key, a, states.shape) / a
        return jnp.round(value * unit) / unit

    def drawer(self) -> Drawer:
        """See `Channel.drawer`: one call of gammavariate."""
        means, shape, decimals = np.asarray(self.mean).tolist(), float(self.shape), self.decimals
        return lambda rng, state: round(means[state] * rng.gammavariate(shape, 1.0 / shape), decimals)

    def snap(self, emitted: Any) -> np.ndarray:
        """See `Channel.snap`."""
        return np.round(np.asarray(emitted, np.float64), self.decimals)
