"""Every Python example of the README runs as it stands, in order, from an empty folder."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_example_runs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("readme")
    monkeypatch.setitem(sys.modules, "readme", module)
    exec(compile(block, "README.md", "exec", dont_inherit=True), module.__dict__)
    if "print(" in block:
        assert capsys.readouterr().out.strip()


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 4
    assert sum("class " in b and "Factor" in b for b in BLOCKS) == 1
