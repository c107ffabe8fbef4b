"""Which parameters of a factor can be learned from what was read, under which prior, and on which scale.

Everything is derived from the declaration. A probability is uniform on its interval, competing events of a row are uniform
on their simplex; other positive numbers are log-normal around the base world's value, wide by a factor of e. Any of these
laws can be replaced by name.

Labels cannot switch: where states are told apart by the level of a channel (a mean, or the probability of its first
result), the levels keep the order that they have in the base world. The order is part of the prior, and of the change of
variables, so no sampler or optimiser can leave it. Levels that the base world gives one value are not ordered among
themselves. (`--learn transitions` anchors labels outright: emissions stay as they are.)
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float
from scipy.special import expit

from stocktake_jax.errors import InputError
from stocktake_jax.inference.evidence import generic
from stocktake_jax.models import Channel, Constraint, Discrete, Factor, Gaussian, parameters

Learn = Literal["transitions", "emissions", "all"]
"""Groups of parameters that can be asked for."""


class Entry(NamedTuple):
    """One number of a factor's parameters.

    Attributes:
        name: dotted (`port.congest_persist`); an entry of a list has its position in brackets (`canal.suez[2]`).
        field, position: where it sits; no position for a parameter that is one number.
        base: its value in the base world.
        constraint, row, doc, unit: as declared.
    """

    name: str
    field: str
    position: int | None
    base: float
    constraint: Constraint
    row: str
    doc: str
    unit: str


def entries(factor: Factor) -> dict[str, Entry]:
    """Every number among the parameters of a factor, by dotted name."""
    out = {}
    for p in parameters(factor).values():
        v = np.asarray(p.value, np.float64)
        for index in [None] if v.ndim == 0 else range(v.size):
            name = f"{factor.name}.{p.name}" + ("" if index is None else f"[{index}]")
            base = float(v if index is None else v.ravel()[index])
            row = p.row if index is None or not p.row else f"{p.row}[{index}]"
            out[name] = Entry(name, p.name, index, base, p.constraint, row, p.doc, p.unit)
    return out


def value_of(factor: Factor, entry: Entry) -> float:
    """The value of an entry in a factor."""
    v = np.asarray(getattr(factor, entry.field), np.float64)
    return float(v if entry.position is None else v.ravel()[entry.position])


def _with(factor: Factor, entry: Entry, value: Any) -> Factor:
    if entry.position is None:
        return dataclasses.replace(factor, **{entry.field: value})
    old = getattr(factor, entry.field)
    new: Any
    if isinstance(old, jax.Array):
        new = old.at[entry.position].set(value)
    else:
        new = np.array(old, np.float64)
        new[entry.position] = value
    return dataclasses.replace(factor, **{entry.field: new})


class Roles(NamedTuple):
    """What the parameters of a factor are for.

    Attributes:
        transitions, emissions: names of the entries that move the chain, and that shape readings which were made.
        fixed: the other entries -> why no reading that was made can tell them.
    """

    transitions: tuple[str, ...]
    emissions: tuple[str, ...]
    fixed: dict[str, str]


def roles(factor: Factor, channels: Sequence[str]) -> Roles:
    """Sort the parameters by what they do, given which channels have readings.

    Found by moving each parameter of a generic factor a little and looking at what changes.
    """
    read = set(channels)
    transitions, emissions, fixed = [], [], {}
    probe = generic(factor)
    chain, laws = probe.transition_matrix(), _laws(probe)
    shown = {c.name for c in probe.shown_channels()}
    for name, entry in entries(factor).items():
        moved = _with(probe, entry, value_of(probe, entry) * 0.93)
        changed = {c: _difference(laws[c], law) for c, law in _laws(moved).items()}
        heard = [c for c, kind in changed.items() if kind == "law" and c in read]
        if not np.array_equal(chain, moved.transition_matrix()):
            transitions.append(name)
        elif heard:
            emissions.append(name)
        else:
            fixed[name] = _reason(changed, shown)
    return Roles(tuple(transitions), tuple(emissions), fixed)


def _reason(changed: Mapping[str, str], shown: set[str]) -> str:
    seen = [c for c, kind in changed.items() if kind and c in shown]
    hidden = [c for c, kind in changed.items() if kind and c not in shown]
    if any(changed[c] == "position" for c in seen):
        return "says which exact readings there are, not how often they come"
    if seen:
        return f"shapes {', '.join(seen)} alone, of which there is no reading"
    if hidden:
        return f"shapes {', '.join(hidden)} alone, which nobody sees"
    return "changes nothing"


def _laws(factor: Factor) -> dict[str, Channel]:
    return {c.name: c for c in factor.channels()}


def _difference(a: Channel, b: Channel) -> str:
    """What differs: nothing (""), the readings that are possible at all ("position"), or their probabilities ("law")."""
    if isinstance(a, Discrete) and isinstance(b, Discrete):
        if not np.array_equal(np.asarray(a.probs), np.asarray(b.probs)):
            return "law"
        return "" if np.array_equal(np.asarray(a.values), np.asarray(b.values)) else "position"
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return "law" if any(not np.array_equal(np.asarray(x), np.asarray(y)) for x, y in pairs) else ""


Ladder = tuple[tuple[str, ...], ...]
"""Entries in falling order of their base value, rung by rung; entries of one rung are not ordered among themselves."""


def ladders(factor: Factor, channels: Sequence[str]) -> tuple[Ladder, ...]:
    """The levels of the read channels that keep their order: means, and probabilities of a channel's first result."""
    probe, known = generic(factor), entries(factor)
    by_value = {value_of(probe, e): name for name, e in known.items()}
    out: dict[frozenset[str], Ladder] = {}
    for c in probe.shown_channels():
        if c.name not in channels:
            continue
        level = c.mean if isinstance(c, Gaussian) else c.probs[:, 0] if isinstance(c, Discrete) else ()
        names = dict.fromkeys(by_value[v] for v in np.asarray(level, np.float64).ravel().tolist() if v in by_value)
        if len(names) > 1:
            rungs: dict[float, list[str]] = {}
            for name in names:
                rungs.setdefault(known[name].base, []).append(name)
            out[frozenset(names)] = tuple(tuple(rungs[b]) for b in sorted(rungs, reverse=True))
    return tuple(out.values())


def select(factor: Factor, learn: Learn | Sequence[str], found: Roles) -> tuple[str, ...]:
    """The names of the entries to learn, in the order of declaration.

    Args:
        factor: the factor.
        learn: a group, or names of parameters, with or without the factor's own name in front.
        found: see `roles`.

    Raises:
        InputError: for an unknown name or group, or a named parameter that no reading can tell.
    """
    groups = {
        "transitions": found.transitions,
        "emissions": found.emissions,
        "all": found.transitions + found.emissions,
    }
    known = entries(factor)
    if isinstance(learn, str):
        if learn not in groups:
            raise InputError(f"learn must be one of {', '.join(groups)} or a list of parameter names, not {learn!r}")
        return tuple(n for n in known if n in groups[learn])
    wanted = []
    for given in learn:
        name = full_name(factor, given)
        if name in found.fixed:
            raise InputError(f"{name} cannot be learned: it {found.fixed[name]}")
        wanted.append(name)
    return tuple(n for n in known if n in wanted)


def of_factor(factor: Factor, learn: Learn | Sequence[str]) -> Learn | tuple[str, ...]:
    """What to learn of one factor, given what to learn of a world: a group, or the dotted names that are the factor's."""
    if isinstance(learn, str):
        return learn  # type: ignore[return-value]
    return tuple(name for name in learn if name.startswith(f"{factor.name}."))


def require_known(factors: Mapping[str, Factor], learn: Learn | Sequence[str]) -> None:
    """Refuse a list of what to learn of a world with a name in it that none of the factors has.

    Raises:
        InputError: naming it.
    """
    for name in [] if isinstance(learn, str) else learn:
        factor, _, rest = name.partition(".")
        if factor not in factors or not rest:
            raise InputError(f"{name!r} is no parameter of a factor; give dotted names such as port.congest_persist")
        full_name(factors[factor], name)


def full_name(factor: Factor, given: str) -> str:
    """The dotted name of an entry that may have been given without its factor.

    Raises:
        InputError: if there is none of that name.
    """
    known = entries(factor)
    name = given if given.startswith(f"{factor.name}.") else f"{factor.name}.{given}"
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        raise InputError(f"unknown parameter {given!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return name


LAWS = ("Beta", "Exponential", "Gamma", "HalfNormal", "LogNormal", "Normal", "Uniform")
"""The names that `read_law` knows: numpyro's distributions of one number, with numpyro's arguments in its order."""


def read_law(text: str) -> Any:
    """A numpyro distribution from text such as `Beta(8, 2)`.

    Raises:
        InputError: for an unknown name, or arguments that it does not take.
    """
    found = re.fullmatch(r"\s*(\w+)\s*\(([^()]*)\)\s*", text)
    if found is None or found[1] not in LAWS:
        raise InputError(f"a prior looks like Beta(8, 2), with one of {', '.join(LAWS)}; not {text!r}")
    try:
        return getattr(dist, found[1])(*(float(x) for x in found[2].split(",")), validate_args=True)
    except (TypeError, ValueError) as error:
        raise InputError(f"the prior {text!r} cannot be used: {error}") from None


def _narrowed(e: Entry, law: Any) -> Constraint:
    """The part of the entry's range that its law can give.

    Raises:
        InputError: for anything but a continuous law of one number, or if nothing is left.
    """
    support = getattr(law, "support", None)
    low, high = getattr(support, "lower_bound", -math.inf), getattr(support, "upper_bound", math.inf)
    shape = (*getattr(law, "batch_shape", (0,)), *getattr(law, "event_shape", ()))
    if shape or support is None or support.is_discrete or np.ndim(low) or np.ndim(high):
        raise InputError(f"the prior for {e.name} must be a continuous numpyro distribution of one number, not {law!r}")
    c = e.constraint
    narrowed = Constraint(max(c.low, float(low)), min(c.high, float(high)), c.strict)
    if narrowed == c:
        return c
    if not narrowed.low < narrowed.high:
        raise InputError(f"the prior for {e.name} lies outside of {c}")
    return narrowed


class Prior:
    """The learned numbers of a factor: their prior, and the change of variables to the whole real line.

    On the real line the numbers are independent of all bounds: each is a logistic or exponential stretch of the room that
    its constraint, its row and its ladder leave to it, given the numbers placed before it (top of a ladder first, a row in
    the order of declaration: stick breaking). A vector `u` of them has one entry per learned number, in `names`' order.

    Attributes:
        factor: the base; numbers that are not learned keep its values.
        names: of the learned entries, in the order of declaration.
        laws: name -> numpyro distribution. The prior is their product, restricted to rows that sum to at most one and to
            ladders in order (the constant that this restriction costs is left out).
    """

    def __init__(
        self,
        factor: Factor,
        names: Sequence[str],
        ladders: Sequence[Ladder] = (),
        priors: Mapping[str, Any] | None = None,
    ) -> None:
        known = entries(factor)
        self.factor, self.names, self.ladders = factor, tuple(names), tuple(ladders)
        self._fixed = {n: e.base for n, e in known.items() if n not in self.names}
        self._members: dict[str, list[str]] = {}
        for n, e in known.items():
            if e.row:
                self._members.setdefault(e.row, []).append(n)
        given = {full_name(factor, n): law for n, law in (priors or {}).items()}
        for n in given.keys() - set(self.names):
            raise InputError(f"there is a prior for {n}, which is not learned here")
        self.laws = {n: given[n] if n in given else self._default(known[n]) for n in self.names}
        # A law on a part of the range narrows the range: outside of it numpyro's densities cannot be relied on.
        self.entries = tuple(known[n]._replace(constraint=_narrowed(known[n], self.laws[n])) for n in self.names)
        self._order = self._placing_order()

    def _default(self, e: Entry) -> Any:
        c = e.constraint
        if math.isfinite(c.low) and math.isfinite(c.high):
            return dist.Uniform(c.low, c.high)
        peers = [abs(entries(self.factor)[n].base) for ladder in self.ladders for rung in ladder for n in rung]
        size = abs(e.base) or (max(peers) if any(e.name in rung for la in self.ladders for rung in la) else 1.0) or 1.0
        if c.low == 0.0:
            return dist.LogNormal(math.log(e.base), 1.0) if e.base > 0 else dist.HalfNormal(size)
        return dist.Normal(e.base, size)

    @property
    def standard_deviations(self) -> Float[np.ndarray, " entry"]:
        """Of each number's own law, rows and ladders aside."""
        return np.array([math.sqrt(float(self.laws[n].variance)) for n in self.names])

    def _above(self, name: str) -> list[str]:
        """The entries of the rungs right above this one."""
        return [n for la in self.ladders for k, rung in enumerate(la) if k and name in rung for n in la[k - 1]]

    def _below(self, name: str) -> list[str]:
        """The entries of all rungs below."""
        rungs = [rung for la in self.ladders for k, r in enumerate(la) if name in r for rung in la[k + 1 :]]
        return [n for rung in rungs for n in rung]

    def _before_in_row(self, e: Entry) -> list[str]:
        """Learned members of the row that are placed earlier: those on ladders first, then in order of declaration."""
        if not e.row:
            return []
        climbing = {n for la in self.ladders for rung in la for n in rung}
        members = sorted((n for n in self._members[e.row] if n in self.names), key=lambda n: n not in climbing)
        return members[: members.index(e.name)]

    def _placing_order(self) -> tuple[int, ...]:
        after = {
            e.name: {*self._before_in_row(e), *(n for n in self._above(e.name) if n in self.names)}
            for e in self.entries
        }
        order: list[str] = []
        while len(order) < len(self.names):
            ready = [n for n in self.names if n not in order and after[n] <= set(order)]
            assert ready, "rows and ladders ask for a circular order"
            order.append(ready[0])
        return tuple(self.names.index(n) for n in order)

    def _room(self, e: Entry, placed: Mapping[str, Any], least: Any, largest: Any) -> tuple[Any, Any]:
        """The open interval left to an entry, given values of those placed before it; None where it has no end."""
        low = max([e.constraint.low, *(self._fixed[n] for n in self._below(e.name) if n in self._fixed)])
        ends = [self._fixed[n] if n in self._fixed else placed[n] for n in self._above(e.name)]
        if math.isfinite(e.constraint.high):
            ends.append(e.constraint.high)
        if e.row:
            taken = sum(self._fixed[n] for n in self._members[e.row] if n in self._fixed)
            for n in self._before_in_row(e):
                taken = taken + placed[n]
            ends.append(1.0 - taken)
        high = None
        for end in ends:
            high = end if high is None else least(high, end)
        if high is not None and math.isfinite(low):
            high = largest(high, low + 1e-12)  # rounding must not turn the interval over
        return (low if math.isfinite(low) else None), high

    def constrain(self, u: Float[Array, " entry"]) -> tuple[Float[Array, " entry"], Float[Array, ""]]:
        """The numbers at a point of the real space, and the log determinant of the change of variables there."""
        placed: dict[str, Array] = {}
        log_det = jnp.zeros((), u.dtype)
        for k in self._order:
            e, x = self.entries[k], u[k]
            low, high = self._room(e, placed, jnp.minimum, jnp.maximum)
            if high is None:
                placed[e.name] = x if low is None else low + jnp.exp(x)
                log_det = log_det if low is None else log_det + x
            elif low is None:
                placed[e.name] = high - jnp.exp(x)
                log_det = log_det + x
            else:
                width = jnp.asarray(high - low, u.dtype)
                placed[e.name] = low + width * jax.nn.sigmoid(x)
                log_det = log_det + jnp.log(width) + jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x)
        return jnp.stack([placed[n] for n in self.names]), log_det

    def values_at(self, u: Float[np.ndarray, "point entry"]) -> Float[np.ndarray, "point entry"]:
        """The numbers at many points of the real space, in numpy (nothing to compile)."""
        placed: dict[str, np.ndarray] = {}
        for k in self._order:
            e, x = self.entries[k], u[:, k]
            low, high = self._room(e, placed, np.minimum, np.maximum)
            if high is None:
                placed[e.name] = x if low is None else low + np.exp(x)
            else:
                placed[e.name] = high - np.exp(x) if low is None else low + (high - low) * expit(x)
        return np.stack([placed[n] for n in self.names], axis=1)

    def inside(self) -> Float[np.ndarray, " entry"]:
        """The base world's values, moved off the bounds a little: where every move and reading has a chance."""
        return self._squeezed(np.array([e.base for e in self.entries]))[1]

    def unconstrain(self, values: Float[np.ndarray, " entry"]) -> Float[np.ndarray, " entry"]:
        """A point of the real space near these values: bounds are kept at a distance of a ten-thousandth."""
        return self._squeezed(values)[0]

    def _squeezed(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        out = np.zeros(len(self.names))
        placed: dict[str, Any] = {}
        for k in self._order:
            e = self.entries[k]
            value = float(values[k])
            low, high = self._room(e, placed, min, max)
            if high is None:
                size = max(abs(e.base), 1.0)
                placed[e.name] = value if low is None else max(value, low + 1e-4 * size)
                out[k] = value if low is None else math.log(placed[e.name] - low)
            elif low is None:
                placed[e.name] = min(value, high - 1e-4 * max(abs(high), 1.0))
                out[k] = math.log(high - placed[e.name])
            else:
                share = min(max((value - low) / (high - low), 1e-4), 1 - 1e-4)
                placed[e.name] = low + (high - low) * share
                out[k] = math.log(share) - math.log1p(-share)
        return out, np.array([placed[n] for n in self.names])

    def log_density(self, values: Float[Array, " entry"]) -> Float[Array, ""]:
        """log of the prior's density at these values, up to a constant, if they are in the order and the rows' room."""
        terms = [jnp.asarray(self.laws[n].log_prob(values[k]), values.dtype) for k, n in enumerate(self.names)]
        return jnp.sum(jnp.stack(terms))

    def build(self, values: Float[Array, " entry"]) -> Factor:
        """The factor with these values, and all its parameters of their type."""
        out = jax.tree.map(lambda x: jnp.asarray(x, values.dtype), self.factor)
        for k, e in enumerate(self.entries):
            out = _with(out, e, values[k])
        return out

    def build_host(self, values: Float[np.ndarray, " entry"]) -> Factor:
        """The factor with these values in float64 on the host, as worlds hold it."""
        out = self.factor
        for k, e in enumerate(self.entries):
            out = _with(out, e, np.asarray(values[k], np.float64))
        return out

    def admits(self, values: Float[np.ndarray, "draw entry"]) -> Bool[np.ndarray, " draw"]:
        """Which draws are in their constraints, leave their rows at most one, and keep every ladder's order."""
        column = {n: values[:, k] for k, n in enumerate(self.names)} | {
            n: np.full(len(values), b) for n, b in self._fixed.items()
        }
        ok = np.ones(len(values), bool)
        for e in self.entries:
            ok &= (column[e.name] >= e.constraint.low) & (column[e.name] <= e.constraint.high)
        for members in self._members.values():
            if set(members) & set(self.names):
                ok &= np.sum([column[n] for n in members], axis=0) <= 1.0 + 1e-6
        for ladder in self.ladders:
            for upper, lower in itertools.pairwise(ladder):
                pairs = [(a, b) for a in upper for b in lower if {a, b} & set(self.names)]
                for a, b in pairs:
                    ok &= column[a] >= column[b]
        return ok

    def sample(self, count: int, *, key: Array) -> Float[np.ndarray, "draw entry"]:
        """Independent draws from the prior, by rejection.

        Raises:
            InputError: if fewer than one in a hundred thousand is admitted.
        """
        kept: list[np.ndarray] = []
        tried = 0
        while sum(map(len, kept)) < count:
            keys = jax.random.split(jax.random.fold_in(key, tried), len(self.names))
            block = [
                np.asarray(self.laws[n].sample(k, (20_000,)), np.float64) for n, k in zip(self.names, keys, strict=True)
            ]
            draws = np.stack(block, axis=1)
            kept.append(draws[self.admits(draws)])
            tried += 1
            if tried > 100 and sum(map(len, kept)) < 20:
                raise InputError(f"{self.factor.name}: the priors hardly ever agree with the order of the levels")
        return np.concatenate(kept)[:count]
