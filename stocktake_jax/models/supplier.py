"""The spot supplier: a scorecard that is milder than the truth, and what deliveries tell."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from jaxtyping import Array, Float

from stocktake_jax.models.channels import Channel, Discrete, Gaussian, columns
from stocktake_jax.models.factor import STAY, Factor, Node, Regime, branch, nonnegative, param, positive, unit_interval

WORDS = ("ontime", "slipping", "failing", "defunct")
"""Scorecard words and true bands; a reading of `band` is an index into them."""

SCORECARD = {"ontime": ("ontime", 98, 14), "slipping": ("ontime", 96, 15), "failing": ("slipping", 86, 19)}
"""True band to the row shown (word, OTIF in %, lead in days); a defunct supplier's row has no numbers."""

NO_NUMBER = -1.0
"""Reading that stands for a number missing from the row of a defunct supplier."""


class Supplier(Factor):
    """The spot supplier: reliable, wobbling, degraded, defunct (paper, section 3.2 and Appendix A).

    A defunct supplier has two states, the week of its death and later ones: only the first still draws a lead slip and a
    fill. Reports give age 0 in both.
    """

    name: ClassVar[str] = "supplier"

    wobble_onset: Float[Array, ""] = param(0.10, unit_interval, "P(reliable -> wobbling)")
    degrade: Float[Array, ""] = param(0.45, unit_interval, "P(wobbling -> degraded)", row="wobbling")
    steady: Float[Array, ""] = param(0.35, unit_interval, "P(wobbling -> reliable)", row="wobbling")
    death: Float[Array, ""] = param(0.06, unit_interval, "P(degraded -> defunct)")
    degraded_persist: Float[Array, ""] = param(0.70, unit_interval, "P(degraded lasts another week | it lives)")
    slip_reliable: Float[Array, ""] = param(0.0, nonnegative, "mean lead slip, reliable", unit="days")
    slip_wobbling: Float[Array, ""] = param(3.0, nonnegative, "mean lead slip, wobbling", unit="days")
    slip_degraded: Float[Array, ""] = param(7.0, nonnegative, "mean lead slip, degraded", unit="days")
    slip_defunct: Float[Array, ""] = param(0.0, nonnegative, "mean lead slip in the week of death", unit="days")
    slip_sd: Float[Array, ""] = param(2.5, positive, "sd of the lead slip", unit="days")
    fill_reliable: Float[Array, ""] = param(0.95, unit_interval, "mean fill, reliable", unit="fraction of an order")
    fill_wobbling: Float[Array, ""] = param(0.60, unit_interval, "mean fill, wobbling", unit="fraction of an order")
    fill_degraded: Float[Array, ""] = param(0.15, unit_interval, "mean fill, degraded", unit="fraction of an order")
    fill_defunct: Float[Array, ""] = param(
        0.0, unit_interval, "mean fill in the week of death", unit="fraction of an order"
    )
    fill_sd: Float[Array, ""] = param(0.12, positive, "sd of the fill", unit="fraction of an order")

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """See `Factor.regimes`."""
        return (
            Regime("reliable", bands=("ontime",)),
            Regime("wobbling", bands=("slipping",), brewing=True),
            Regime("degraded", 4, bands=("slipping", "failing"), stress=True),
            Regime("defunct", 2, stress=True, ageless=True),
        )

    def moves(self, regime: str, age: int) -> Node:
        """See `Factor.moves`."""
        match regime:
            case "reliable":
                return branch((self.wobble_onset, "wobbling"), otherwise=STAY)
            case "wobbling":
                return branch((self.degrade, "degraded"), (self.steady, "reliable"), otherwise=STAY)
            case "degraded":
                recovers = "reliable" if age >= 3 else branch((self.degraded_persist, STAY), otherwise="reliable")
                return branch((self.death, "defunct"), otherwise=recovers)
            case _:
                return STAY

    def channels(self) -> tuple[Channel, ...]:
        """The scorecard row (the published filters read its word alone), lead slip, and fill when spot was sourced."""
        bands = self.state_bands
        rows = [SCORECARD.get(b, ("defunct", NO_NUMBER, NO_NUMBER)) for b in bands]
        ones = np.ones(len(bands))
        dead_for_weeks = tuple(s.regime == "defunct" and s.age > 0 for s in self.states)
        slip = self.by_regime(
            reliable=self.slip_reliable,
            wobbling=self.slip_wobbling,
            degraded=self.slip_degraded,
            defunct=self.slip_defunct,
        )
        fill = self.by_regime(
            reliable=self.fill_reliable,
            wobbling=self.fill_wobbling,
            degraded=self.fill_degraded,
            defunct=self.fill_defunct,
        )
        word, otif, lead = (columns(np.array(v, np.float64)) for v in zip(*rows_as_numbers(rows), strict=True))
        row = columns(ones)
        return (
            Discrete("band", word, row, start=0.0),
            Discrete("otif", otif, row, start=98.0, likelihoods=("exact",)),
            Discrete("lead_days", lead, row, start=14.0, likelihoods=("exact",)),
            Gaussian("realized_lead_slip", slip, self.slip_sd, decimals=1, low=0.0, start=0.0, frozen=dead_for_weeks),
            Gaussian(
                "realized_fill",
                fill,
                self.fill_sd,
                decimals=2,
                low=0.0,
                high=1.0,
                start=float("nan"),
                frozen=dead_for_weeks,
            ),
        )

    def uniform_weights(self) -> np.ndarray:
        """The published filters know one defunct state; the later weeks of death carry no weight of their own."""
        return np.array([0.0 if s.regime == "defunct" and s.age > 0 else 1.0 for s in self.states])


def rows_as_numbers(rows: list[tuple[str, float, float]]) -> list[tuple[float, float, float]]:
    """Scorecard rows with the word as its index in `WORDS`."""
    return [(float(WORDS.index(word)), float(otif), float(lead)) for word, otif, lead in rows]
