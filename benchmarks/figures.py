"""The growth figure, from a table of results: the same table gives the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw_growth(growth: dict[str, Any], path: Path) -> None:
    """Draw how the cost grows, one panel per axis.

    Args:
        growth: what `growth.measure` returned.
        path: the SVG file.

    Raises:
        ImportError: without matplotlib, which the extra `bench` brings.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes = list(dict.fromkeys(row["axis"] for row in growth["rows"]))
    # Text stays text, and identifiers and dates say nothing of when it was drawn.
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "growth", "font.size": 9}):
        figure, panels = pyplot.subplots(2, -(-len(axes) // 2), figsize=(10, 5.6), layout="constrained")
        for axis, panel in zip(axes, panels.flat, strict=False):
            rows = [row for row in growth["rows"] if row["axis"] == axis]
            x = [row["value"] for row in rows]
            wall, cpu = ([row[kind]["median"] for row in rows] for kind in ("wall_s", "cpu_s"))
            low, high = ([row["wall_s"][end] for row in rows] for end in ("low", "high"))
            panel.fill_between(x, low, high, color="tab:blue", alpha=0.2, linewidth=0)
            panel.plot(x, wall, marker="o", color="tab:blue", label="wall, median and range")
            panel.plot(x, cpu, marker=".", linestyle=":", color="tab:orange", label="processor, median")
            panel.set(xlim=(0, None), ylim=(0, None), title=axis, ylabel="seconds")
            panel.set_xlabel(growth["units"][axis], fontsize=7)
            panel.grid(alpha=0.3)
        panels.flat[0].legend(fontsize=7)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
