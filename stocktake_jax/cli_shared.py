"""What the commands share: options, checks of arguments, tables.

Heavy imports stand inside the functions, so that help is quick.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stocktake_jax.errors import InputError

if TYPE_CHECKING:
    import jax
    from rich.console import Console

    from stocktake_jax.models import World

SeedList = Annotated[str | None, typer.Option("--seeds", help="Seeds such as 1,5-9; the published fifty by default.")]
Factors = Annotated[str, typer.Option("--factors", help="Factors, such as port,quality; all six by default.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, to standard output.")]
TrueFile = Annotated[Path | None, typer.Option("--true-world", help="TOML file: the world of tapes and books.")]
ALL = "all"


class Interrupted(Exception):  # noqa: N818 (no error of anybody's)
    """Ctrl-C, with a line that says what to do."""


def seeds_of(text: str | None) -> tuple[int, ...]:
    """The seeds of a list such as 1,5-9; the published ones where none is given."""
    from stocktake_jax.evaluation.catalog import parse_seeds, published_seeds

    return published_seeds() if text is None else parse_seeds(text)


def factors_of(text: str) -> tuple[str, ...]:
    """The factors of a list such as port,quality, in the fixed order."""
    from stocktake_jax.models import FACTORS

    if text == ALL:
        return FACTORS
    names = [one_of("--factors", name.strip(), *FACTORS) for name in text.split(",")]
    return tuple(n for n in FACTORS if n in names)


def world_of(path: Path | None) -> World:
    """The world of a file; the paper's where none is given."""
    from stocktake_jax.models import World

    return World.paper() if path is None else World.load(path)


def one_of(flag: str, value: str, *allowed: str) -> Any:
    """The value, if it is one of those allowed."""
    if value not in allowed:
        *others, last = allowed
        raise InputError(f"{flag} must be {', '.join(others)} or {last}, not {value!r}")
    return value


def whole(flag: str, value: int, low: int, high: int) -> None:
    """Refuse a number that is out of range."""
    if not low <= value <= high:
        raise InputError(f"{flag} must be a whole number in [{low}, {high}], not {value}")


def without(flag: str, **others: Any) -> None:
    """Refuse options that were given and would do nothing beside a flag."""
    given = [f"--{name.replace('_', '-')}" for name, value in others.items() if value is not None]
    if given:
        raise InputError(f"{given[0]} does nothing beside {flag}; leave one of them out")


def configure(name: str, value: Any) -> None:
    """Set an option of JAX."""
    import jax

    jax.config.update(name, value)


def devices_of(count: int | None) -> list[jax.Device]:
    """This process's devices to work on."""
    make_cpu_devices(count)
    import jax

    found = jax.local_devices()
    if count is not None and count > len(found):
        raise InputError(f"--devices {count} is more than there are: {len(found)} of kind {found[0].platform}")
    return found[:count]


def make_cpu_devices(count: int | None) -> None:
    """On a CPU-only machine JAX makes one device per core, if it is told so before it starts."""
    if count is not None:
        whole("--devices", count, 1, 4096)
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    # RuntimeError: JAX runs already (the caller is no fresh process), so there is what there is.
    with contextlib.suppress(RuntimeError):
        if not forced:
            configure("jax_num_cpu_devices", count or _cores())


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextlib.contextmanager
def resumable(out: Path | None, what: str) -> Iterator[None]:
    """Say at an interruption what is kept, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        kept = "nothing is kept; with --out DIR what is interrupted can go on"
        if out is not None:
            kept = f"{what} are in {out}; run the same command again to go on"
        raise Interrupted(f"interrupted; {kept}") from None


def new_console() -> Console:
    """Where tables for people go: standard output."""
    from rich.console import Console

    # Not a terminal: a table that was cut to 80 columns for nobody's eyes would lose its numbers.
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 150
    return Console(file=sys.stdout, width=wide, highlight=False, soft_wrap=False)


def new_table(*columns: str, title: str | None = None) -> Any:
    """A table with these columns, the first one of names."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=index == 0)
    return table


def number(value: float | None, decimals: int) -> str:
    """A number for a table; a dash where there is none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{decimals}f}"
