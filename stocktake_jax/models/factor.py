"""The declaration of a hidden factor: a Markov chain on (regime, age) and the channels through which it is seen.

A factor is an equinox module whose fields *are* its parameters. It declares three things, its regimes, its moves and its
channels, and everything else (transition matrix, likelihoods, tapes, filters, fits) follows from them.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stocktake_jax.errors import InputError
from stocktake_jax.models.channels import Channel, Likelihood

Initial = Literal["uniform", "baseline"]
"""How a belief starts: `uniform` is the published filters' convention, `baseline` the law of the tapes."""

Scalar = Any
"""A parameter value: a float64 numpy scalar, or a jax array or tracer of rank 0."""


@dataclasses.dataclass(frozen=True)
class Constraint:
    """The interval a parameter may lie in. `low` and `high` belong to it, unless `strict`, which leaves `low` out."""

    low: float
    high: float
    strict: bool = False

    def contains(self, value: Any) -> bool:
        """Whether every entry of `value` is finite and inside."""
        v = np.asarray(value, dtype=np.float64)
        above = v > self.low if self.strict else v >= self.low
        return bool(np.all(np.isfinite(v) & above & (v <= self.high)))

    def __str__(self) -> str:
        if np.isinf(self.low) and np.isinf(self.high):
            return "any finite number"
        left = "(" if self.strict or np.isinf(self.low) else "["
        right = ")" if np.isinf(self.high) else "]"
        return f"{left}{self.low:g}, {self.high:g}{right}"


unit_interval = Constraint(0.0, 1.0)
positive = Constraint(0.0, np.inf, strict=True)
nonnegative = Constraint(0.0, np.inf)
real = Constraint(-np.inf, np.inf)


def as_leaf(value: Any) -> Any:
    """Jax values (tracers among them) as they are, everything else as a float64 numpy array."""
    return value if isinstance(value, jax.Array) or not _is_number(value) else np.asarray(value, dtype=np.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, list, tuple, np.ndarray, np.generic))


def param(default: float | Sequence[float], constraint: Constraint, doc: str, *, unit: str = "1", row: str = "") -> Any:
    """Declare a parameter of a factor, of the costs or of the logistics.

    Args:
        default: the published value, a number or a tuple of numbers, in natural units.
        constraint: the allowed range; readers of files, priors and optimisers all take it from here.
        doc: what the value means.
        unit: its unit; "1" for probabilities and other pure numbers.
        row: parameters of one factor that share a row name are probabilities of competing events.
    """
    metadata = {"constraint": constraint, "doc": doc, "unit": unit, "row": row, "param": True}
    return eqx.field(default_factory=lambda: as_leaf(default), converter=as_leaf, metadata=metadata)


class Parameter(NamedTuple):
    """One declared parameter: what `param` was told, and the value it has in this module."""

    name: str
    value: Any
    constraint: Constraint
    doc: str
    unit: str
    row: str


def parameters(module: eqx.Module) -> dict[str, Parameter]:
    """The declared parameters of a module by field name, in the order of declaration."""
    out = {}
    for f in dataclasses.fields(module):
        m = f.metadata
        if m.get("param"):
            out[f.name] = Parameter(f.name, getattr(module, f.name), m["constraint"], m["doc"], m["unit"], m["row"])
    return out


@dataclasses.dataclass(frozen=True)
class Regime:
    """One regime of a factor.

    Attributes:
        name: unique within the factor.
        ages: how many ages are told apart, 0 .. ages - 1. If the moves let the last one stay, it stands for itself and
            everything older.
        bands: the visible level at each age; the last one repeats. Empty: the regime's own name.
        stress, brewing: what reports count as trouble, and as trouble on its way.
        group: the name under which reports pool it with others (short and long disruptions); empty: its own.
        ageless: reports give age 0 throughout.
    """

    name: str
    ages: int = 1
    bands: tuple[str, ...] = ()
    stress: bool = False
    brewing: bool = False
    group: str = ""
    ageless: bool = False

    def band(self, age: int) -> str:
        """The visible level at this age."""
        return self.bands[min(age, len(self.bands) - 1)] if self.bands else self.name

    @property
    def label(self) -> str:
        """The name in reports."""
        return self.group or self.name


STAY = "(stay)"
"""The outcome of a move that keeps the regime: its age grows by one."""


@dataclasses.dataclass(frozen=True)
class Branch:
    """One random draw: outcomes with their probabilities, and what happens with the probability left over."""

    outcomes: tuple[tuple[Scalar, Node], ...]
    otherwise: Node

    @property
    def rest(self) -> Scalar:
        """The probability left over, at least zero."""
        total = functools.reduce(lambda a, b: a + b, [p for p, _ in self.outcomes])
        return maximum(1.0 - total, 0.0)


Node = Branch | str
"""What becomes of a state: a regime by name (entered at age 0), `STAY`, or a `Branch` over such nodes."""


def branch(*outcomes: tuple[Scalar, Node], otherwise: Node) -> Branch:
    """A draw among `outcomes`, (probability, node) pairs, in the order in which one uniform number is held against them."""
    return Branch(outcomes, otherwise)


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """The smaller value, in numpy unless one of the two is a jax value (so that host code keeps float64)."""
    return jnp.minimum(a, b) if _any_jax((a, b)) else np.minimum(a, b)


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """The larger value, in numpy unless one of the two is a jax value."""
    return jnp.maximum(a, b) if _any_jax((a, b)) else np.maximum(a, b)


def stack(values: Sequence[Scalar]) -> Any:
    """Scalars to a vector, in numpy (float64) unless one of them is a jax value; that one's type is then everyone's."""
    if not _any_jax(values):
        return np.array(values, dtype=np.float64)
    dtype = jnp.result_type(*[v for v in values if isinstance(v, jax.Array)])
    return jnp.stack([jnp.asarray(v, dtype) for v in values])


def _any_jax(values: Sequence[Any]) -> bool:
    return any(isinstance(v, jax.Array) for v in values)


class State(NamedTuple):
    """A state of the chain."""

    regime: str
    age: int


class LogLikelihood(NamedTuple):
    """log P(reading of the week | state) = table + scale.

    Attributes:
        table: (week, state) the part that tells states apart.
        scale: (week,) the part all states share. Apart, both keep digits that float32 would lose in the sum.
    """

    table: Float[Array, "week state"]
    scale: Float[Array, " week"]


class Factor(eqx.Module):
    """A hidden Markov chain on (regime, age) with the channels that show it.

    Subclasses declare parameters with `param` and implement `regimes`, `moves` and `channels`. The methods work on
    numpy parameter values (then in float64 on the host) and on traced ones alike.
    """

    name: ClassVar[str]

    @property
    @abc.abstractmethod
    def regimes(self) -> tuple[Regime, ...]:
        """The regimes; the first one is the baseline, in which every tape starts at age 0."""

    @abc.abstractmethod
    def moves(self, regime: str, age: int) -> Node:
        """What happens next to a factor that is in `regime` at `age`."""

    @abc.abstractmethod
    def channels(self) -> tuple[Channel, ...]:
        """The emission channels in the order in which a tape draws them."""

    # -- what follows from the declaration: the states

    @property
    def states(self) -> tuple[State, ...]:
        """All states, regime by regime in order of age."""
        return tuple(State(r.name, a) for r in self.regimes for a in range(r.ages))

    @property
    def state_regimes(self) -> tuple[Regime, ...]:
        """The regime of each state."""
        return tuple(r for r in self.regimes for _ in range(r.ages))

    @property
    def state_bands(self) -> tuple[str, ...]:
        """The visible band of each state."""
        return tuple(r.band(a) for r in self.regimes for a in range(r.ages))

    @property
    def labels(self) -> tuple[str, ...]:
        """The regime names used in reports (pooled ones once), in order."""
        return tuple(dict.fromkeys(r.label for r in self.regimes))

    def index(self, regime: str, age: int = 0) -> int:
        """The index of a state; ages beyond the last kept one fall on it.

        Raises:
            InputError: for an unknown regime.
        """
        start = 0
        for r in self.regimes:
            if r.name == regime:
                return start + min(age, r.ages - 1)
            start += r.ages
        raise InputError(f"{self.name}: unknown regime {regime!r}; it has {', '.join(r.name for r in self.regimes)}")

    def mask(self, *, label: str | None = None, bands: Sequence[str] | None = None) -> np.ndarray:
        """(state,) True where the state's report label, or its band, is the wanted one."""
        if label is not None:
            if label not in self.labels:
                raise InputError(f"{self.name}: unknown regime {label!r}; it has {', '.join(self.labels)}")
            return np.array([r.label == label for r in self.state_regimes])
        wanted = tuple(bands or ())
        self._require_known("band", wanted, self.state_bands)
        return np.array([b in wanted for b in self.state_bands])

    @property
    def stress_mask(self) -> np.ndarray:
        """(state,) True in stress regimes."""
        return np.array([r.stress for r in self.state_regimes])

    @property
    def brewing_mask(self) -> np.ndarray:
        """(state,) True in regimes in which stress is brewing."""
        return np.array([r.brewing for r in self.state_regimes])

    def by_band(self, **values: Scalar) -> Any:
        """(state,) the value of each state's band; every band of the factor must be named."""
        return self._by("band", self.state_bands, values)

    def by_regime(self, **values: Scalar) -> Any:
        """(state,) the value of each state's regime; every regime must be named."""
        return self._by("regime", tuple(r.name for r in self.state_regimes), values)

    def _by(self, what: str, of_states: tuple[str, ...], values: Mapping[str, Scalar]) -> Any:
        self._require_known(what, tuple(values), of_states)
        missing = sorted(set(of_states) - values.keys())
        if missing:
            raise InputError(f"{self.name}: no value for the {what}(s) {', '.join(missing)}")
        return stack([values[name] for name in of_states])

    def _require_known(self, what: str, names: tuple[str, ...], of_states: tuple[str, ...]) -> None:
        unknown = sorted(set(names) - set(of_states))
        if unknown:
            known = ", ".join(dict.fromkeys(of_states))
            raise InputError(f"{self.name}: unknown {what}(s) {', '.join(unknown)}; it has {known}")

    def regime_probabilities(self, belief: Float[Array, "... state"]) -> Float[Array, "... regime"]:
        """Pool a belief over states into the report's regimes (`labels`)."""
        pool = np.array([[r.label == name for name in self.labels] for r in self.state_regimes], dtype=np.float64)
        return jnp.matmul(belief, jnp.asarray(pool, belief.dtype), precision="highest")

    # -- the chain

    def successors(self, state: int) -> dict[int, Scalar]:
        """The next states of a state with their probabilities."""
        regime, age = self.states[state]
        out: dict[int, Scalar] = {}
        todo: list[tuple[Node, Scalar | None]] = [(self.moves(regime, age), None)]
        while todo:
            node, p = todo.pop()
            if isinstance(node, Branch):
                children = [*node.outcomes, (node.rest, node.otherwise)]
                todo += [(child, q if p is None else p * q) for q, child in reversed(children)]
                continue
            j = self.index(regime, age + 1) if node == STAY else self.index(node)
            q = np.float64(1.0) if p is None else p
            out[j] = out[j] + q if j in out else q
        return out

    def transition_matrix(self) -> Float[Array, "state state"]:
        """A[i, j] = P(next state is j | this state is i)."""
        rows, columns, values = [], [], []
        for i in range(len(self.states)):
            for j, p in self.successors(i).items():
                rows.append(i)
                columns.append(j)
                values.append(p)
        entries, n = stack(values), len(self.states)
        if isinstance(entries, np.ndarray):
            matrix = np.zeros((n, n))
            matrix[rows, columns] = entries
            return matrix  # type: ignore[return-value]
        return jnp.zeros((n, n), entries.dtype).at[jnp.array(rows), jnp.array(columns)].set(entries)

    def initial(self, start: Initial = "baseline") -> Float[Array, " state"]:
        """The law of the state in week 0.

        `baseline` is certain of the first regime at age 0. `uniform` is the published filters' start: every state
        alike, moved once by the transition matrix (they predict before they read week 0).

        Raises:
            InputError: for any other name.
        """
        n = len(self.states)
        if start == "baseline":
            return np.eye(n)[0]
        if start == "uniform":
            weights = self.uniform_weights() / self.uniform_weights().sum()
            matrix = self.transition_matrix()
            if isinstance(matrix, np.ndarray):
                return weights @ matrix
            return jnp.matmul(jnp.asarray(weights, matrix.dtype), matrix, precision="highest")
        raise InputError(f"initial must be 'uniform' or 'baseline', not {start!r}")

    def uniform_weights(self) -> np.ndarray:
        """(state,) the relative weight of each state in the `uniform` start: all alike."""
        return np.ones(len(self.states))

    def check(self) -> None:
        """Refuse parameter values outside their range, and competing events whose probabilities exceed one.

        Raises:
            InputError: naming the parameter, its value and the range.
        """
        check_ranges(self.name, self)
        rows: dict[str, list[Parameter]] = {}
        for p in parameters(self).values():
            if p.row and not is_traced(p.value):
                rows.setdefault(p.row, []).append(p)
        for row, members in rows.items():
            total = np.max(sum(np.asarray(p.value, np.float64) for p in members))
            if total > 1.0 + 1e-9:
                listed = " + ".join(f"{self.name}.{p.name} ({_show(p.value)})" for p in members)
                raise InputError(f"{listed} = {total:g}: competing events from {row!r} must sum to at most 1")

    # -- what is seen

    def shown_channels(self) -> tuple[Channel, ...]:
        """The channels an observer reads."""
        return tuple(c for c in self.channels() if c.shown)

    def log_likelihood(
        self,
        readings: Mapping[str, Float[Array, " week"]],
        likelihood: Likelihood = "paper",
        start: Initial = "uniform",
    ) -> LogLikelihood:
        """log P(the week's readings | state), the sum over the shown channels.

        A nan reading, like a channel that is absent from `readings`, says nothing. With the `baseline` start, channels
        whose week-0 reading is a constant of the world say nothing in week 0.

        Raises:
            InputError: if `readings` has a name that is no shown channel, or none of them, or an unknown likelihood.
        """
        if likelihood not in ("paper", "exact"):
            raise InputError(f"likelihood must be 'paper' or 'exact', not {likelihood!r}")
        if start not in ("uniform", "baseline"):
            raise InputError(f"initial must be 'uniform' or 'baseline', not {start!r}")
        channels = {c.name: c for c in self.shown_channels()}
        unknown = sorted(readings.keys() - channels.keys())
        if unknown or not readings:
            raise InputError(
                f"{self.name}: {'unknown channel(s) ' + ', '.join(unknown) if unknown else 'no readings'}; "
                f"it shows {', '.join(channels)}"
            )
        first = next(iter(readings.values()))
        dtype = (
            jnp.result_type(first) if jnp.issubdtype(jnp.result_type(first), jnp.floating) else jnp.result_type(float)
        )
        weeks = jnp.shape(first)[0]
        table, scale = jnp.zeros((weeks, len(self.states)), dtype), jnp.zeros((weeks,), dtype)
        for name, channel in channels.items():
            if name in readings and channel.speaks(likelihood):
                series = jnp.asarray(readings[name], dtype)
                rows = jax.vmap(lambda y, c=channel: c.log_prob(y, likelihood))(series)
                shared = jax.vmap(lambda y, c=channel: c.log_scale(y, likelihood))(series)
                if start == "baseline" and channel.start is not None:
                    rows, shared = rows.at[0].set(0.0), shared.at[0].set(0.0)
                table, scale = table + rows, scale + shared
        return LogLikelihood(table, scale)

    # -- tapes

    def sample_states(self, weeks: int, *, key: Array) -> tuple[Int[Array, " week"], Int[Array, " week"]]:
        """A path of the chain from the baseline: state indices and true ages of weeks 0 .. weeks - 1."""
        return self.follow(jax.random.uniform(key, (weeks - 1,), jnp.asarray(self.transition_matrix()).dtype))

    def follow(self, uniforms: Float[Array, " move"]) -> tuple[Int[Array, " week"], Int[Array, " week"]]:
        """The path from the baseline that one uniform number per move picks: state indices and true ages."""
        matrix = jnp.asarray(self.transition_matrix(), uniforms.dtype)
        cumulative = jnp.cumsum(matrix, axis=1)
        last = matrix.shape[1] - 1 - jnp.argmax(matrix[:, ::-1] > 0, axis=1)
        regime_of = jnp.asarray([self.regimes.index(r) for r in self.state_regimes])
        # Entered anew from itself, where ages can tell: a regime that stays never goes back to age 0.
        entry = jnp.asarray([s.age == 0 and r.ages > 1 for s, r in zip(self.states, self.state_regimes, strict=True)])

        def step(carry: tuple[Array, Array], u: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
            state, age = carry
            # A uniform number above a row sum that rounding left short of one must not fall on an unreachable state.
            after = jnp.minimum(jnp.sum(u >= cumulative[state]), last[state]).astype(state.dtype)
            stays = (regime_of[after] == regime_of[state]) & ~entry[after]
            age = jnp.where(stays, age + 1, 0)
            return (after, age), (after, age)

        zero = jnp.zeros((), jnp.int32)
        _, (states, ages) = jax.lax.scan(step, (zero, zero), uniforms)
        return jnp.concatenate([zero[None], states]), jnp.concatenate([zero[None], ages])

    def support(self) -> np.ndarray:
        """(state, state) True where the declaration has a move, whatever its probability."""
        n = len(self.states)
        out = np.zeros((n, n), bool)
        for i in range(n):
            out[i, list(self.successors(i))] = True
        return out

    def sample_emissions(self, states: Int[Array, " week"], *, key: Array) -> dict[str, Float[Array, " week"]]:
        """The values of every channel, hidden ones included, along a path of states; week 0 has its constants."""
        return self.emit(states, jax.random.split(key, len(self.channels())))

    def emit(self, states: Int[Array, " week"], keys: Array) -> dict[str, Float[Array, " week"]]:
        """`sample_emissions` with one key for each channel."""
        channels = self.channels()
        out = {}
        for c, k in zip(channels, keys, strict=True):
            values = c.sample(k, states)
            if c.start is not None:
                values = values.at[0].set(c.start)
            out[c.name] = c.hold(values, states)
        return out


def is_traced(value: Any) -> bool:
    """Whether the value is only known inside a jax transformation."""
    return isinstance(value, jax.core.Tracer)


def check_ranges(section: str, module: eqx.Module) -> None:
    """Refuse parameters of a module that are out of range; traced ones cannot be checked and pass.

    Raises:
        InputError: naming the parameter, its value and the range.
    """
    for p in parameters(module).values():
        if not is_traced(p.value) and not p.constraint.contains(p.value):
            raise InputError(f"{section}.{p.name} is {_show(p.value)}; it must lie in {p.constraint} ({p.doc})")


def _show(value: Any) -> str:
    v = np.asarray(value)
    return f"{float(v):g}" if v.ndim == 0 else "[" + ", ".join(f"{x:g}" for x in v.ravel()) + "]"
