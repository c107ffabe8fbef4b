"""Contracts: terms, which ones are live or open, and what signing and lapsing do to them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from stocktake_jax.models import HORIZON

Rules = Literal["paper", "strict"]
"""`paper`: what the published numbers were made with. `strict`: the later corrections; see `Contracts.resolve`."""

RULES: tuple[Rules, ...] = ("paper", "strict")

QUALIFIED, SPOT, BACKUP = 0, 1, 2
SUPPLIERS = ("qualified", "spot", "backup")
"""A supplier is an index into this."""

ACTIONS = ("sign", "switch", "renew", "lapse")
"""A contract action is 1 + an index into this, 0 is none."""

LAPSE = 4


class Terms(NamedTuple):
    """What one entry of the menu of terms says."""

    weeks: int
    price: float
    otif_floor: int
    break_fee: float


TERMS = ("short", "long", "strict", "lenient")
"""The menu of terms. Terms are 1 + an index into this, 0 is none."""

TERM_TABLE = (
    Terms(8, 1.0, 85, 10.0),
    Terms(4, 0.97, 80, 5.0),
    Terms(12, 1.06, 85, 20.0),
    Terms(8, 1.03, 92, 10.0),
    Terms(8, 0.95, 70, 10.0),
)
"""The terms by number; entry 0 is a contract signed without any (paper, Appendix A)."""

ONBOARDING = (0, 0, 1)
"""Weeks from a supplier's first contract until it can take an order; enforced under strict rules only."""

EVERGREEN = 1 << 20
"""The end week of a contract that never ends."""

SLOTS = HORIZON + 1
"""One contract can be signed at each decision, and spot's is there at the start."""


def namespace(*values: Any) -> Any:
    """jax.numpy if one of the values is a jax value, numpy otherwise: host code must not pay for jax's dispatch."""
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


def host(value: Any, dtype: Any = np.int32) -> Any:
    """A numpy array; typed as anything, since the annotations say `Array` for host values and traced ones alike."""
    return np.asarray(value, dtype)


class Contracts(eqx.Module):
    """All contracts ever signed, in the order of signing: slot 0 is spot's at the start, slot t + 1 is of decision t.

    Attributes:
        supplier: (..., slot) index into `SUPPLIERS`; -1 in an empty slot.
        start, end: (..., slot) first week, and first week no longer covered (`EVERGREEN`: none).
        terms: (..., slot) index into `TERM_TABLE`.
        listed: (..., slot) True until the contract is dropped or replaced.
        since: (..., supplier) first week of the latest time under contract without a gap; -1: never.
    """

    supplier: Int[Array, "*batch slot"]
    start: Int[Array, "*batch slot"]
    end: Int[Array, "*batch slot"]
    terms: Int[Array, "*batch slot"]
    listed: Bool[Array, "*batch slot"]
    since: Int[Array, "*batch supplier"]

    @classmethod
    def first(cls) -> Self:
        """Week 0: one evergreen contract, with spot."""
        first = np.arange(SLOTS) == 0
        return cls(
            supplier=host(np.where(first, SPOT, -1)),
            start=host(np.zeros(SLOTS)),
            end=host(np.where(first, EVERGREEN, 0)),
            terms=host(np.zeros(SLOTS)),
            listed=host(first, np.bool_),
            since=host([-1, 0, -1]),
        )

    def open(self, week: Int[Array, ""], defunct: Bool[Array, ""]) -> Bool[Array, " slot"]:
        """(slot,) True where a listed contract's end has come, or its supplier is gone."""
        return self.listed & ((self.end <= week) | ((self.supplier == SPOT) & defunct))

    def live(self, week: Int[Array, ""], defunct: Bool[Array, ""]) -> Bool[Array, " slot"]:
        """(slot,) True where a listed contract can be sourced from."""
        return self.listed & ~self.open(week, defunct)

    def suppliers(self, slots: Bool[Array, " slot"]) -> Bool[Array, " supplier"]:
        """(supplier,) True for every supplier who has one of these contracts."""
        xp = namespace(self.supplier, slots)
        names = xp.arange(len(SUPPLIERS), dtype=np.int32)[:, None]
        return (slots[None, :] & (self.supplier[None, :] == names)).any(axis=-1)

    def price(self, supplier: Int[Array, ""], live: Bool[Array, " slot"]) -> Float[Array, ""]:
        """What a supplier's latest live contract multiplies the route base by; 1 without one."""
        xp = namespace(self.supplier, supplier, live)
        latest = xp.max(xp.where(live & (self.supplier == supplier), xp.arange(SLOTS, dtype=np.int32), -1))
        table = xp.asarray(np.array([t.price for t in TERM_TABLE]), xp.result_type(float))
        return xp.where(latest >= 0, table[self.terms[latest]], table[0])

    def resolve(
        self,
        week: Int[Array, ""],
        defunct: Bool[Array, ""],
        action: Int[Array, ""],
        supplier: Int[Array, ""],
        terms: Int[Array, ""],
        rules: Rules,
    ) -> tuple[Contracts, Float[Array, ""]]:
        """What a contract action does, and the break fee it costs ($).

        Paper rules: sign, switch and renew drop that supplier's open contracts and add one that starts now; lapse drops
        the open ones and leaves live ones alone; fees are never billed. Strict rules: the new contract replaces all of
        that supplier's, and lapse ends all of them at the break fee of those still live.

        Args:
            week: of the decision.
            defunct: whether spot is gone by then.
            action: 0 none, else 1 + index into `ACTIONS`.
            supplier: of the contract; -1 with no action.
            terms: index into `TERM_TABLE`.
            rules: which rules hold.
        """
        xp = namespace(self.supplier, week, defunct, action, supplier, terms)
        acts, lapses = action > 0, action == LAPSE
        signs = acts & ~lapses
        own = self.supplier == supplier
        dropped = acts & own & (self.listed if rules == "strict" else self.open(week, defunct))
        fees = xp.asarray(np.array([t.break_fee for t in TERM_TABLE]), xp.result_type(float))
        broken = lapses & own & self.live(week, defunct)
        fee = xp.where(broken, fees[self.terms], 0.0).sum() if rules == "strict" else fees[0] * 0.0

        # A renewal in the very week in which the old contract ends leaves no gap; a lapsed contract is not listed.
        unbroken = (own & self.listed & (self.end >= week)).any()
        mine = xp.arange(len(SUPPLIERS), dtype=np.int32) == supplier
        since = xp.where(mine & signs & ~unbroken, week, self.since)

        slot = signs & (xp.arange(SLOTS, dtype=np.int32) == week + 1)
        weeks = xp.asarray(np.array([t.weeks for t in TERM_TABLE], np.int32))[terms]
        end = xp.where(supplier == QUALIFIED, EVERGREEN, week + weeks)
        contracts = Contracts(
            supplier=xp.where(slot, supplier, self.supplier).astype(np.int32),
            start=xp.where(slot, week, self.start).astype(np.int32),
            end=xp.where(slot, end, self.end).astype(np.int32),
            terms=xp.where(slot, terms, self.terms).astype(np.int32),
            listed=(self.listed & ~dropped) | slot,
            since=since.astype(np.int32),
        )
        return contracts, xp.asarray(fee)
