"""The world: six factors, what things cost, how long ships take; as one pytree, and as a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stocktake_jax.errors import InputError
from stocktake_jax.models.canal import Canal
from stocktake_jax.models.demand import Demand
from stocktake_jax.models.factor import (
    Factor,
    Parameter,
    check_ranges,
    nonnegative,
    param,
    parameters,
    positive,
    real,
    unit_interval,
)
from stocktake_jax.models.freight import Freight
from stocktake_jax.models.port import Port
from stocktake_jax.models.quality import Quality
from stocktake_jax.models.supplier import Supplier

HORIZON = 26
"""Decisions in an episode; its weeks are 0 .. HORIZON."""

FACTORS = ("canal", "supplier", "demand", "freight", "port", "quality")
"""The factors in the order in which a tape draws them and in which every table lists them."""


class Costs(eqx.Module):
    """What is billed (paper, Appendix A), in dollars."""

    base_suez: Float[Array, ""] = param(4.0, nonnegative, "sea freight via Suez, before the multiplier", unit="$/unit")
    base_cape: Float[Array, ""] = param(
        6.0, nonnegative, "sea freight via the Cape, before the multiplier", unit="$/unit"
    )
    delta_qualified: Float[Array, ""] = param(1.0, real, "price delta of the qualified supplier", unit="$/unit")
    delta_spot: Float[Array, ""] = param(-1.5, real, "price delta of spot", unit="$/unit")
    delta_backup: Float[Array, ""] = param(0.3, real, "price delta of backup", unit="$/unit")
    surcharge: Float[Array, ""] = param(2.0, nonnegative, "ship diverted from Suez around the Cape", unit="$/unit")
    crisis: Float[Array, ""] = param(60.0, nonnegative, "unit shorted by spot during a canal event", unit="$/unit")
    demurrage: Float[Array, ""] = param(2.0, nonnegative, "unit held at a blocked port", unit="$/unit-week")
    rework: Float[Array, ""] = param(15.0, nonnegative, "defective unit landed", unit="$/unit")
    stockout: Float[Array, ""] = param(20.0, nonnegative, "unit of demand lost", unit="$/unit")
    holding: Float[Array, ""] = param(1.0, nonnegative, "unit on the shelf at the end of a week", unit="$/unit-week")
    in_transit: Float[Array, ""] = param(1.0, nonnegative, "unit at sea at the end of a week", unit="$/unit-week")
    briefing: Float[Array, ""] = param(30.0, nonnegative, "canal briefing", unit="$")
    audit: Float[Array, ""] = param(25.0, nonnegative, "spot audit", unit="$")
    inspection: Float[Array, ""] = param(40.0, nonnegative, "inspection of the week's arrivals", unit="$")
    air: Float[Array, ""] = param(15.0, nonnegative, "unit flown in", unit="$/unit")
    dual_source: Float[Array, ""] = param(4.0, nonnegative, "two or more suppliers under contract", unit="$/week")


class Logistics(eqx.Module):
    """Quantities and lead times. Whole numbers are static: they shape arrays and loops, and cannot be traced."""

    defects_passed: Float[Array, ""] = param(0.3, unit_interval, "share of the defects that an inspection lets pass")
    mean_demand: Float[Array, ""] = param(20.0, positive, "mean demand that the floor plans for", unit="units/week")
    demand_sd: Float[Array, ""] = param(4.0, nonnegative, "sd of demand that safety stocks plan for", unit="units/week")
    start_inventory: int = eqx.field(static=True, default=80)
    order_cap: int = eqx.field(static=True, default=100)
    air_cap: int = eqx.field(static=True, default=20)
    lead_suez: int = eqx.field(static=True, default=3)
    lead_cape: int = eqx.field(static=True, default=4)


class World(eqx.Module):
    """Every number of the task. `World()` and `World.paper()` are the published one.

    All parameters are leaves (float64 numpy until a jax transformation takes them), so worlds can be vmapped; horizon,
    lead times and caps are static.
    """

    canal: Canal = eqx.field(default_factory=Canal)
    supplier: Supplier = eqx.field(default_factory=Supplier)
    demand: Demand = eqx.field(default_factory=Demand)
    freight: Freight = eqx.field(default_factory=Freight)
    port: Port = eqx.field(default_factory=Port)
    quality: Quality = eqx.field(default_factory=Quality)
    costs: Costs = eqx.field(default_factory=Costs)
    logistics: Logistics = eqx.field(default_factory=Logistics)

    @classmethod
    def paper(cls) -> Self:
        """The published world."""
        return cls()

    @property
    def factors(self) -> dict[str, Factor]:
        """The six factors by name, in their fixed order."""
        return {name: getattr(self, name) for name in FACTORS}

    def cast(self, dtype: Any) -> Self:
        """The same world with every parameter as a jax array of this type."""
        return jax.tree.map(lambda x: jnp.asarray(x, dtype), self)

    # -- parameters by dotted name

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Every parameter by dotted name (`port.congest_persist`)."""
        return {
            f"{section.name}.{name}": p
            for section in dataclasses.fields(self)
            for name, p in parameters(getattr(self, section.name)).items()
        }

    def get(self, name: str) -> Any:
        """The value of a parameter by dotted name."""
        return self._find(name).value

    def replace(self, values: Mapping[str, Any]) -> Self:
        """A world with some parameters replaced, by dotted name. Host values are checked; traced ones cannot be.

        Whole numbers of the logistics (`logistics.order_cap`) can be replaced as well.

        Raises:
            InputError: for an unknown name, a value that is no number, has a wrong shape or is out of range.
        """
        new = self
        for name, value in values.items():
            section, _, field = name.partition(".")
            static = self._statics.get(name)
            leaf = static.checked(name, value) if static else self._leaf(name, value)
            part = dataclasses.replace(getattr(new, section), **{field: leaf})
            new = dataclasses.replace(new, **{section: part})
        new.check()
        return new

    def _leaf(self, name: str, value: Any) -> Any:
        p = self._find(name)
        wanted = "a number" if np.ndim(p.value) == 0 else f"a list of {np.size(p.value)} numbers"
        try:
            if _looks_like_a_number(value):
                raise TypeError("numpy would take it for one")
            leaf = value if isinstance(value, jax.Array) else np.asarray(value, np.float64)
            if np.shape(leaf) != np.shape(p.value):
                raise ValueError("wrong shape")
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"{name} is {value!r}; it must be {wanted} in {p.constraint} ({p.doc})") from None
        return leaf

    def perturb(self, name: str, factor: float) -> Self:
        """A world with one parameter misspecified by a factor.

        A probability has its odds multiplied, and competing events of the same row shrink in proportion to make room
        (or grow, if room is made); any other parameter is multiplied itself.

        Raises:
            InputError: for an unknown name, a factor that is not positive, or a result out of range.
        """
        p = self._find(name)
        if not (np.isfinite(factor) and factor > 0):
            raise InputError(f"the factor on {name} must be a positive number, not {factor!r}")
        if p.constraint is not unit_interval:
            return self.replace({name: np.asarray(p.value) * factor})
        old = np.asarray(p.value, np.float64)
        new = old * factor / (1.0 - old + old * factor)
        values = {name: new}
        if p.row:
            section = name.split(".")[0]
            room = np.where(old < 1.0, (1.0 - new) / np.where(old < 1.0, 1.0 - old, 1.0), 1.0)
            for other, q in self.parameters.items():
                if other != name and other.split(".")[0] == section and q.row == p.row:
                    values[other] = np.asarray(q.value) * room
        return self.replace(values)

    def check(self) -> None:
        """Refuse values out of range, naming the key, the value and the range.

        Raises:
            InputError: see above.
        """
        for factor in self.factors.values():
            factor.check()
        check_ranges("costs", self.costs)
        check_ranges("logistics", self.logistics)

    def _find(self, name: str) -> Parameter:
        known = self.parameters
        if name not in known:
            hint = _hint(name, [*known, *self._statics], "`stocktake world show` lists them")
            raise InputError(f"unknown parameter {name!r}; {hint}")
        return known[name]

    @property
    def _statics(self) -> dict[str, Whole]:
        """The whole numbers of the logistics by dotted name."""
        return {f"logistics.{name}": whole for name, whole in WHOLE.items()}

    # -- files

    def to_toml(self) -> str:
        """The world as a TOML document, every parameter with its meaning, unit and range."""
        lines = ["# A world of stocktake_jax. Keys that are left out keep their published value."]
        for section in dataclasses.fields(self):
            part = getattr(self, section.name)
            lines += ["", f"[{section.name}]"]
            for name, p in parameters(part).items():
                unit = "" if p.unit == "1" else f", {p.unit}"
                lines.append(f"{name} = {_toml_number(p.value)}  # {p.doc}{unit}, in {p.constraint}")
            if part is self.logistics:
                lines += [f"{name} = {getattr(part, name)}  # {whole}" for name, whole in WHOLE.items()]
        return "\n".join(lines) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the world to a TOML file."""
        Path(path).write_text(self.to_toml(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a world from a TOML file; keys that are left out keep their published value.

        Raises:
            InputError: naming the file, and the key, value and allowed range where a key is at fault.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the world {path}: {error}") from None
        try:
            return cls.from_toml(text)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Read a world from a TOML document.

        Raises:
            InputError: see `load`.
        """
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"not a TOML document: {error}") from None
        world = cls()
        values: dict[str, Any] = {}
        sections = [f.name for f in dataclasses.fields(world)]
        for section, table in document.items():
            if section not in sections:
                hint = _hint(section, sections, f"a world has {', '.join(sections)}")
                raise InputError(f"unknown section {section!r}; {hint}")
            if not isinstance(table, dict):
                raise InputError(f"{section} must be a table like [{section}], not {table!r}")
            for key, value in table.items():
                values[f"{section}.{key}"] = value
        return world.replace(values)


class Whole(NamedTuple):
    """A whole number of the logistics: its meaning and the largest value allowed (the smallest is 1)."""

    doc: str
    most: int

    def checked(self, name: str, value: Any) -> int:
        """The value as an int.

        Raises:
            InputError: if it is none, or out of range.
        """
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or not 1 <= value <= self.most:
            raise InputError(f"{name} is {value!r}; it must be a whole number in [1, {self.most}] ({self.doc})")
        return int(value)

    def __str__(self) -> str:
        return f"{self.doc}, a whole number in [1, {self.most}]"


WHOLE = {
    "start_inventory": Whole("units on the shelf in week 0", 1_000_000),
    "order_cap": Whole("largest order, units", 1_000_000),
    "air_cap": Whole("most units that fly in a week", 1_000_000),
    "lead_suez": Whole("weeks via Suez", HORIZON),
    "lead_cape": Whole("weeks via the Cape", HORIZON),
}
"""The whole numbers of `Logistics`."""


def _hint(name: str, known: Sequence[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else otherwise


def _looks_like_a_number(value: Any) -> bool:
    """Whether the value has entries that are none but that numpy would turn into numbers: truth values, text, None."""
    entries = value if isinstance(value, (list, tuple)) else [value]
    return any(v is None or isinstance(v, (bool, str, bytes)) or getattr(v, "dtype", None) == np.bool_ for v in entries)


def _toml_number(value: Any) -> str:
    v = np.asarray(value, np.float64)
    return repr(float(v)) if v.ndim == 0 else "[" + ", ".join(repr(float(x)) for x in v) + "]"
