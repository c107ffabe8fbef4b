"""What all figures share: a palette that reads in grey, figures without global state, files that come out the same.

Colours are Okabe and Ito's, which people with colour-blindness can tell apart. Nothing is told by colour alone: every
series has its own line style, marker or hatch as well, and its name stands beside it or in a legend.
"""

from __future__ import annotations

import functools
import io
import os
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from stocktake_jax.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.figure import SubFigure

    Canvas = Figure | SubFigure
else:
    # matplotlib is an extra, and annotations are looked up by run-time type checkers.
    Axes = Figure = Canvas = Any

P = ParamSpec("P")
T = TypeVar("T")

INSTALL = "figures need matplotlib: pip install 'stocktake-jax[plots]'"

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY, PALE = "#E69F00", "#56B4E9", "#000000", "#777777", "#DDDDDD"


class Look(NamedTuple):
    """How a series is drawn: colour, line style, marker and hatch all tell it from the others."""

    color: str
    line: Any
    marker: str
    hatch: str


LOOKS = (
    Look(BLUE, "-", "o", ""),
    Look(VERMILLION, "--", "s", "////"),
    Look(GREEN, "-.", "^", "...."),
    Look(PURPLE, ":", "D", "xxxx"),
    Look(ORANGE, (0, (6, 1)), "v", "\\\\\\\\"),
    Look(SKY, (0, (3, 1, 1, 1)), "P", "----"),
    Look(BLACK, (0, (1, 1)), "X", "++++"),
)
"""Series take these in turn."""

STRESS, BREWING = "#F7D8C4", "#FBF3D6"
"""Backgrounds of weeks under stress (hatched as well) and of weeks in which stress is brewing."""

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that a figure is the same on every machine
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "figure.facecolor": "white",
    "figure.dpi": 100.0,
    "figure.titlesize": 12.0,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "hatch.linewidth": 0.6,
    "hatch.color": "white",
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "savefig.dpi": 150.0,
    "savefig.bbox": None,
    "svg.hashsalt": "stocktake",
    "svg.fonttype": "path",
    "text.hinting": "none",  # widths that grow with the resolution, so that one layout fits all
    "text.usetex": False,
    "text.parse_math": False,  # a dollar is a dollar
}


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Run a drawing function under `STYLE`, and leave matplotlib's settings as they were."""

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        with in_style():
            return draw(*args, **kwargs)

    return wrapper


def in_style() -> Any:
    """A context in which matplotlib's settings are its defaults with `STYLE` on top.

    Raises:
        InputError: without matplotlib.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise InputError(INSTALL) from None
    settings: Any = {k: v for k, v in mpl.rcParamsDefault.items() if not k.startswith("backend")} | STYLE
    return mpl.rc_context(settings)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, laid out so that nothing overlaps, unknown to pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(INSTALL) from None
    figure = Figure(figsize=(width, height), layout="constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.07, h_pad=0.06)
    return figure


def axes_of(ax: Axes | None, width: float, height: float) -> Axes:
    """The axes that were given, or those of a new figure."""
    return ax if ax is not None else new_figure(width, height).subplots()


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for each name, in their order."""
    return {name: LOOKS[i % len(LOOKS)] for i, name in enumerate(names)}


def all_axes(axes: Any) -> Iterator[Axes]:
    """Every Axes in what a figure function returned."""
    if isinstance(axes, dict):
        for value in axes.values():
            yield from all_axes(value)
    else:
        yield axes


def figure_of(axes: Any) -> Figure:
    """The whole figure that what a figure function returned (or a figure) belongs to."""
    first: Any = next(all_axes(axes))
    return first.figure.figure  # a figure's own figure is itself, a part's is the whole


def save(axes: Any, *paths: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write a figure to files, .png or .svg; a path with neither gets both. The same figure gives the same bytes.

    Where everything stands is settled at the first call: what is added to the figure later moves nothing.

    Args:
        axes: a figure, or what a figure function returned.
        paths: where to.

    Returns:
        The files.

    Raises:
        InputError: for another suffix, no path, or a file that cannot be written.
    """
    files = wanted_files(*paths)
    figure = _settled(axes)
    for file in files:
        content = io.BytesIO()
        kind = file.suffix[1:]
        metadata = {"Date": None, "Creator": "stocktake"} if kind == "svg" else {"Software": "stocktake"}
        with in_style():
            figure.savefig(content, format=kind, metadata=metadata)
        data = content.getvalue()
        if kind == "svg":
            # Some lines end in blanks, which no version control likes.
            data = b"\n".join(line.rstrip() for line in data.splitlines()) + b"\n"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        except OSError as error:
            raise InputError(f"{file} cannot be written ({error.strerror}); give another file") from None
    return files


def _settled(axes: Any) -> Figure:
    """The figure with its layout worked out, once.

    The solver starts from where things are: doing it again would move them by a hair, and at another resolution otherwise.
    """
    figure = figure_of(axes)
    if figure.get_layout_engine() is not None:
        with in_style():
            figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def wanted_files(*paths: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The files that `save` would write.

    Raises:
        InputError: see `save`.
    """
    if not paths:
        raise InputError("say where the figure goes: a file that ends in .png or .svg, or a name for both")
    files: list[Path] = []
    for path in map(Path, paths):
        if path.suffix in (".png", ".svg"):
            files.append(path)
        elif path.suffix == "" and path.name:
            files += [path.with_suffix(".png"), path.with_suffix(".svg")]
        else:
            raise InputError(f"{path}: figures are written as .png or .svg (without a suffix: both)")
    return tuple(dict.fromkeys(files))


def svg_text(axes: Any) -> str:
    """A figure as an SVG element, to be put into a page: without the XML declaration and document type.

    Its text is drawn as shapes, so that it looks the same everywhere.
    """
    content, figure = io.BytesIO(), _settled(axes)
    with in_style():
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": "stocktake"})
    text = content.getvalue().decode("utf-8")
    return text[text.index("<svg") :]


# ---- pieces ---------------------------------------------------------------------------------------------------------


def runs_of(on: Any) -> list[tuple[int, int]]:
    """First and last index of every maximal run of True."""
    out: list[tuple[int, int]] = []
    for i, here in enumerate(on):
        if here:
            if out and out[-1][1] == i - 1:
                out[-1] = (out[-1][0], i)
            else:
                out.append((i, i))
    return out


def first_free(free: list[float], left: float, right: float) -> int:
    """The lowest line on which a text from left to right covers no earlier one; `free` holds where each line ends."""
    line = next((i for i, end in enumerate(free) if end <= left), len(free))
    free[line : line + 1] = [right + 0.2]
    return line


def weeks_axis(ax: Axes, weeks: int, first: int = 0, label: bool = True) -> None:
    """Weeks along x: a tick every second one, and room for a whole week at both ends."""
    ax.set_xlim(first - 0.5, first + weeks - 0.5)
    ax.set_xticks(range(first + first % 2, first + weeks, 2))
    if label:
        ax.set_xlabel("week")


def shade(ax: Axes, on: Any, color: str, hatch: str = "", first: int = 0) -> None:
    """Shade the weeks that are True, behind everything."""
    for a, b in runs_of(on):
        ax.axvspan(
            a + first - 0.5, b + first + 0.5, facecolor=color, edgecolor="white", hatch=hatch, linewidth=0, zorder=0
        )


LETTER = 0.093
"""About what a letter of a figure's title is wide, in inches."""


def headline(figure: Canvas, text: str) -> None:
    """The title of a whole figure, at its left, in as many lines as it takes."""
    wide = figure.bbox.width / figure.get_dpi()
    lines = textwrap.fill(text, max(int(wide / LETTER), 20), break_on_hyphens=False)
    figure.suptitle(lines, x=0.01, ha="left")


def words(name: str) -> str:
    """A name as people write it: without underscores."""
    return name.replace("_", " ")
