"""Reference data and small worlds for the desk's tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stocktake_jax.models import Tape, World

DATA = Path(__file__).parent.parent / "data"


def _rows(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def world() -> World:
    return World.paper()


@pytest.fixture(scope="session")
def reference_episodes() -> list[dict[str, Any]]:
    return _rows("episodes.jsonl.gz")


@pytest.fixture(scope="session")
def reference_floors() -> list[dict[str, Any]]:
    return _rows("floor.jsonl.gz")


@pytest.fixture
def cached_tapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw each published tape once: for tests that open an episode hundreds of times."""
    original = Tape.__dict__["published"]
    table: dict[int, Tape] = {}

    def draw(cls: type[Tape], seed: int, world: World | None = None) -> Tape:
        if seed not in table:
            table[seed] = original.__func__(cls, seed, world)
        return table[seed]

    monkeypatch.setattr(Tape, "published", classmethod(draw))
