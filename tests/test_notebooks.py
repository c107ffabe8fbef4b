"""The notebooks: clean files that run from top to bottom."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]

FORGET = "%reset -f\nimport gc; gc.collect();"
"""Between notebooks that share a kernel: none may live on what another one defined."""

TRY_WIDGET = """
before = bytes(picture.value)
assert before.startswith(b"\\x89PNG")
sliders["week_4"].value = 2
after = bytes(picture.value)
assert after != before  # redrawn by the callback, with nothing else called
sliders["week_4"].value = 15
assert bytes(picture.value) == before
sliders["customs_persist"].value = 0.9
assert bytes(picture.value) not in (before, after)
jam, short = (np.asarray(world.port.regime_probabilities(posterior(week_4=days)))[4] for days in (15, 2))
named = dict(zip(world.port.labels, range(4)))
assert jam[named["congested"]] > 0.5 > short[named["congested"]]
assert short[named["clear"]] + short[named["building"]] > 0.9
"""
"""The widget of notebook 02, moved as a reader would move it."""


def test_there_are_six() -> None:
    assert [name[:2] for name in NAMES] == ["01", "02", "03", "04", "05", "06"]
    listed = re.findall(r"\]\((\w+)\.ipynb\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert listed == NAMES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_files_are_clean(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    nbformat.validate(notebook)
    assert text == json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert notebook["cells"][0]["cell_type"] == "markdown"
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        assert "".join(cell["source"]).strip()
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
    sources = "\n".join("".join(cell["source"]) for cell in notebook["cells"])
    assert not re.search(r"\b(pip|conda|apt(-get)?) install\b|^!", sources, re.M)
    assert not re.search(r"[\"'](/|~|[A-Z]:\\)\w", sources)
    assert "STOCKTAKE_FAST" in sources


def code_of(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code"]


def run(sources: Iterable[str], folder: Path) -> list[Any]:
    """Execute cells in a new kernel and return their outputs; an error in a cell is raised with its traceback."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return [output for cell in notebook.cells for output in cell.outputs]


def check(outputs: list[Any]) -> None:
    """Pictures came out, and nothing failed quietly (a widget's callback, a thread)."""
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "Traceback" not in printed
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not re.search(r"\bnan\b(?!%)", printed), printed


@pytest.mark.parametrize("together", [("01", "02", "03", "06"), ("04", "05")], ids="-".join)
def test_all_run_small(together: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Several in one kernel, one after the other, so that they share its start and compiled programs (the study of 04 is
    that of 05); in two kernels, so that two workers share the work."""
    monkeypatch.setenv("STOCKTAKE_FAST", "1")
    sources = []
    for path in (path for path in NOTEBOOKS if path.stem.startswith(together)):
        sources += code_of(path)
        if path.stem.startswith("02"):
            sources.append(TRY_WIDGET)
        sources.append(FORGET)
    check(run(sources, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_each_runs_at_full_size(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STOCKTAKE_FAST", raising=False)
    outputs = run(code_of(path), tmp_path)
    check(outputs)
    if path.stem.startswith("03"):  # its lesson: one reading changed, and the desk is decided otherwise
        printed = "".join(output.text for output in outputs if output.output_type == "stream")
        decided = re.findall(r"^(?:as it is|short waits) .*(\{.*\})", printed, re.M)
        assert len(decided) == 2 and decided[0] != decided[1]
