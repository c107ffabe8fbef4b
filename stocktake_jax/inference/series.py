"""Observation series to learn from: of a world's tapes, or a user's own weekly readings from a CSV or Parquet file."""

from __future__ import annotations

import csv
import datetime
import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from stocktake_jax.errors import InputError
from stocktake_jax.inference.diagnostics import spot_alive_before
from stocktake_jax.models import FACTORS, Channel, Discrete, Gaussian, Index, Likelihood, Tape, World
from stocktake_jax.models.quality import RESULTS
from stocktake_jax.models.supplier import WORDS

Buying = Literal["idle", "spot20"]
"""What was bought while the series were read: nothing, or 20 units of spot in every week in which its contract was live."""

FIRST_SEED = 5000
"""Seed of the first published training tape."""

LONGEST = 5000
"""Weeks, nearly a century: a file's series that spans more has something else in its week column."""

TEXTS = {"supplier.band": WORDS, "quality.aql_result": RESULTS}
"""Channels whose readings are words: a reading is the word or its index."""


@dataclass(frozen=True)
class Series:
    """Series of weekly readings.

    Attributes:
        readings: factor -> channel -> (series, week) values, nan where there is none; factors without readings left out.
        names: of the series.
        lengths: (series,) number of weeks of each; what follows is nan.
        unusable: what of a file could not be used, in words.
        source: where the series come from, in words.
    """

    readings: dict[str, dict[str, np.ndarray]]
    names: tuple[str, ...]
    lengths: np.ndarray
    unusable: tuple[str, ...] = ()
    source: str = ""

    @property
    def count(self) -> int:
        """The number of series."""
        return len(self.names)


def from_tapes(world: World, tapes: Tape, buying: str = "idle", source: str = "tapes") -> Series:
    """What an observer reads of a batch of tapes along one leading axis.

    Raises:
        InputError: for an unknown policy.
    """
    if buying not in get_args(Buying):
        raise InputError(f"policy must be one of {', '.join(get_args(Buying))}, not {buying!r}")
    tapes = tapes.snapped(world)
    readings = tapes.readings(world, spot_alive_before(world, tapes) if buying == "spot20" else None)
    kept = {n: {c: np.asarray(y, np.float64) for c, y in channels.items()} for n, channels in readings.items()}
    count, weeks = np.shape(tapes.states["canal"])
    return Series(kept, tuple(str(i) for i in range(count)), np.full(count, weeks), source=source)


def training_series(world: World, count: int, buying: str = "idle", first_seed: int = FIRST_SEED) -> Series:
    """The published generator's tapes of seeds `first_seed` .. `first_seed + count - 1`, as read.

    Raises:
        InputError: if the count is not positive, or the policy unknown.
    """
    if count < 1:
        raise InputError(f"the number of training tapes must be at least 1, not {count}")
    tapes = Tape.published_batch(range(first_seed, first_seed + count), world)
    return from_tapes(world, tapes, buying, f"seeds {first_seed} to {first_seed + count - 1}, {buying}")


# -- files


def read_column_map(path: str | os.PathLike[str]) -> dict[str, str]:
    """A TOML file `"port.berth_wait" = "name of the column"`, with `week` and `series` for the two that are no reading.

    Raises:
        InputError: if it is unreadable or has anything else in it.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"cannot read the column map {path}: {error}") from None
    flat = {}
    for key, value in table.items():
        for name, column in value.items() if isinstance(value, dict) else [("", value)]:
            if not isinstance(column, str):
                raise InputError(f"{path}: {key}{name and '.' + name} must be the name of a column, not {column!r}")
            flat[f"{key}.{name}" if name else key] = column
    return flat


@dataclass
class _Report:
    """Collects what could not be used, without repeating a complaint a thousand times."""

    seen: dict[str, list[str]] = field(default_factory=dict)

    def add(self, complaint: str, where: str) -> None:
        self.seen.setdefault(complaint, []).append(where)

    def lines(self) -> tuple[str, ...]:
        return tuple(
            f"{what}: {', '.join(where[:5])}{f' and {len(where) - 5} more' if len(where) > 5 else ''}"
            if where[0]
            else what
            for what, where in self.seen.items()
        )


def read_series(
    path: str | os.PathLike[str],
    columns: Mapping[str, str] | None = None,
    world: World | None = None,
    likelihood: Likelihood = "exact",
) -> Series:
    """Read a user's own weekly readings, one row a week.

    Args:
        path: a `.csv` with a header, or a `.parquet` (needs the extra `fit`).
        columns: what is read -> the column that has it. Keys are channels (`port.berth_wait`), `week` and `series`.
            A channel that is left out is looked for under its own name, with and without its factor (`week` and `series`
            likewise). Without a `series` column the file is one series; without a `week` column its rows are
            consecutive weeks.
        world: tells which readings are possible.
        likelihood: under `exact`, a reading off its channel's grid or range cannot be used either.

    Returns:
        The series; `Series.unusable` says which columns and weeks were not used, and why. Weeks between two rows of a
        series that have no row are missing weeks.

    Raises:
        InputError: if the file cannot be read, a mapped column is not there, no column is a channel, a week is no whole
            number or date, comes twice, or is a century off.
    """
    world = world or World.paper()
    table = _table(Path(path))
    channels = {f"{n}.{c.name}": c for n, f in world.factors.items() for c in f.shown_channels()}
    mapped = _mapped(path, table, columns or {}, channels)
    report = _Report()
    for column in table:
        if column not in mapped.values():
            report.add("columns that are no channel", repr(column))
    rows = len(next(iter(table.values())))
    names = [str(x) for x in table[mapped["series"]]] if "series" in mapped else [""] * rows
    weeks = _weeks(path, table[mapped["week"]], names) if "week" in mapped else _consecutive(names)
    order = {name: i for i, name in enumerate(dict.fromkeys(names))}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for name, week in zip(names, weeks, strict=True):
        first[name] = min(week, first.get(name, week))
        last[name] = max(week, last.get(name, week))
    for name in order:
        if last[name] - first[name] >= LONGEST:
            raise InputError(
                f"{path}: series {name or '1'} goes from week {first[name]} to week {last[name]}; is it the right column?"
            )
    lengths = np.zeros(len(order), np.int64)
    place: dict[tuple[int, int], int] = {}
    for row, (name, week) in enumerate(zip(names, weeks, strict=True)):
        at = order[name], week - first[name]
        if at in place:
            raise InputError(
                f"{path}: week {week} of series {name or '1'} comes twice, in rows {place[at] + 1} and {row + 1}"
            )
        place[at] = row
        lengths[at[0]] = max(lengths[at[0]], at[1] + 1)
    present = np.bincount([i for i, _ in place], minlength=len(order))
    for name, absent in zip(order, lengths - present, strict=True):
        if absent:
            report.add("weeks without a row, taken as weeks without readings", f"{absent} of series {name or '1'}")
    readings: dict[str, dict[str, np.ndarray]] = {}
    for key, channel in channels.items():
        if key not in mapped:
            continue
        values = np.full((len(order), int(lengths.max())), np.nan)
        for (i, t), row in place.items():
            cell = table[mapped[key]][row]
            where = f"{mapped[key]!r} in week {weeks[row]}" + (f" of {names[row]}" if names[row] else "")
            values[i, t] = _reading(cell, key, channel, likelihood, where, report)
        if np.isnan(values).all():
            report.add("columns without any usable reading", repr(mapped[key]))
            continue
        factor, _, name = key.partition(".")
        readings.setdefault(factor, {})[name] = values
    if not readings:
        raise InputError(f"{path}: no column has a usable reading. {'; '.join(report.lines())}")
    for factor in FACTORS:
        if factor not in readings:
            report.add("factors without readings, which cannot be fitted", factor)
    return Series(readings, tuple(n or "1" for n in order), lengths, report.lines(), str(path))


def _table(path: Path) -> dict[str, Sequence[Any]]:
    """column -> cells."""
    if path.suffix.lower() in (".parquet", ".pq"):
        try:
            import pyarrow.parquet as pq
        except ImportError:
            raise InputError(
                f"reading {path} needs pyarrow: pip install 'stocktake-jax[fit]', or save the table as CSV"
            ) from None
        try:
            table = pq.read_table(path).to_pydict()
        except Exception as error:  # pyarrow has its own classes of errors, not all of them documented
            raise InputError(f"cannot read {path}: {error}") from None
    elif path.suffix.lower() == ".csv":
        try:
            with path.open(newline="", encoding="utf-8-sig") as lines:
                table = _columns(path, csv.reader(lines, strict=True))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"cannot read {path}: {error}") from None
    else:
        raise InputError(f"cannot tell what {path} is: its name must end in .csv or .parquet")
    if not table or not len(next(iter(table.values()))):
        raise InputError(f"{path} has no rows")
    return table


def _columns(path: Path, rows: Iterable[list[str]]) -> dict[str, Sequence[Any]]:
    lines = [row for row in rows if row]
    header = [name.strip() for name in lines[0]] if lines else []
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InputError(f"{path}: column {twice!r} comes twice in the header")
    for number, row in enumerate(lines[1:], start=1):
        if len(row) != len(header):
            raise InputError(f"{path}: row {number} has {len(row)} cells, the header has {len(header)}")
    return {name: [row[k] for row in lines[1:]] for k, name in enumerate(header)}


def _mapped(
    path: str | os.PathLike[str], table: Mapping[str, Any], columns: Mapping[str, str], channels: Mapping[str, Channel]
) -> dict[str, str]:
    """channel, `week` or `series` -> its column."""
    keys = [*channels, "week", "series"]
    for key, column in columns.items():
        if key not in keys:
            raise InputError(f"the column map names {key!r}, which is no channel; there are {', '.join(keys)}")
        if column not in table:
            raise InputError(f"{path} has no column {column!r}, which is mapped to {key}; it has {', '.join(table)}")
    mapped = dict(columns)
    for key in keys:
        short = key.rpartition(".")[2]
        for name in (key, short):
            if key not in mapped and name in table and name not in mapped.values():
                mapped[key] = name
    return mapped


def _weeks(path: str | os.PathLike[str], cells: Sequence[Any], names: Sequence[str]) -> list[int]:
    """Week numbers from whole numbers or dates; dates of one series must be whole weeks apart."""
    numbers: list[int] = []
    origin: dict[str, int] = {}
    for row, (cell, name) in enumerate(zip(cells, names, strict=True)):
        day = cell.date() if isinstance(cell, datetime.datetime) else cell
        if not isinstance(day, datetime.date):
            text = str(cell).strip()
            try:
                number = float(text)
                if not number.is_integer():
                    raise ValueError
                numbers.append(int(number))
                continue
            except (ValueError, OverflowError):
                pass
            try:
                day = datetime.date.fromisoformat(text[:10])
            except ValueError:
                raise InputError(
                    f"{path}: row {row + 1} has week {cell!r}; it must be a whole number or a date like 2024-01-29"
                ) from None
        days = day.toordinal()
        apart = days - origin.setdefault(name, days)
        if apart % 7:
            raise InputError(
                f"{path}: row {row + 1} is dated {day}, no whole number of weeks from the first of its series"
            )
        # A number for the whole calendar, so that messages can name it and series can be told apart.
        numbers.append(origin[name] // 7 + apart // 7)
    return numbers


def _consecutive(names: Sequence[str]) -> list[int]:
    seen: dict[str, int] = {}
    out = []
    for name in names:
        out.append(seen.get(name, 0))
        seen[name] = out[-1] + 1
    return out


def _reading(cell: Any, key: str, channel: Channel, likelihood: Likelihood, where: str, report: _Report) -> float:
    """A cell as a reading; nan if it is empty or cannot be used, which is then reported."""
    text = "" if cell is None else str(cell).strip()
    if text == "" or text.lower() in ("nan", "na", "null", "none"):
        return math.nan
    if key in TEXTS and text.lower() in TEXTS[key]:
        return float(TEXTS[key].index(text.lower()))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        wanted = f"one of {', '.join(TEXTS[key])}" if key in TEXTS else "a number"
        report.add(f"readings of {key} that are not {wanted}", where)
        return math.nan
    if isinstance(channel, Discrete):
        listed = np.unique(np.asarray(channel.values, np.float64))
        if not np.any(np.abs(listed - value) < 1e-6):
            report.add(
                f"readings of {key} that no state gives (it can be {', '.join(f'{x:g}' for x in listed)})", where
            )
            return math.nan
    if isinstance(channel, Gaussian):
        scale, decimals = (100.0, 0) if isinstance(channel, Index) else (1.0, channel.decimals)
        low, high = scale * channel.low, scale * channel.high
        if not low - 1e-9 <= value <= high + 1e-9:
            report.add(f"readings of {key} outside [{low:g}, {high:g}]", where)
            return math.nan
        if likelihood == "exact" and abs(value - round(value, decimals)) > 1e-6:
            report.add(
                f"readings of {key} with more than {decimals} decimals, which the 'exact' likelihood cannot explain",
                where,
            )
            return math.nan
    return value
