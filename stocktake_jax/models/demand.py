"""Demand: a promotion and a seasonal lift that open alike, and a decline that stays."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Array, Float

from stocktake_jax.models.channels import Channel, Gaussian
from stocktake_jax.models.factor import STAY, Factor, Node, Regime, branch, nonnegative, param, positive, unit_interval

PROMO_WEEKS, LIFT_WEEKS = 4, 8


class Demand(Factor):
    """Normal, promo spike, seasonal lift, structural decline (paper, section 3.2 and Appendix A)."""

    name: ClassVar[str] = "demand"

    promo_onset: Float[Array, ""] = param(0.03, unit_interval, "P(normal -> promo spike)", row="normal")
    lift_onset: Float[Array, ""] = param(0.015, unit_interval, "P(normal -> seasonal lift)", row="normal")
    decline_onset: Float[Array, ""] = param(0.005, unit_interval, "P(normal -> structural decline)", row="normal")
    lift_persist: Float[Array, ""] = param(0.85, unit_interval, "P(a seasonal lift lasts another week)")
    decline_persist: Float[Array, ""] = param(0.97, unit_interval, "P(a decline lasts another week)")
    mean_normal: Float[Array, ""] = param(20.0, nonnegative, "mean demand, normal", unit="units/week")
    mean_surge: Float[Array, ""] = param(
        26.0, nonnegative, "mean demand, promo or first week of a lift", unit="units/week"
    )
    mean_lift: Float[Array, ""] = param(30.0, nonnegative, "mean demand, later weeks of a lift", unit="units/week")
    mean_decline: Float[Array, ""] = param(14.0, nonnegative, "mean demand, decline", unit="units/week")
    units_sd: Float[Array, ""] = param(4.0, positive, "sd of the week's demand", unit="units/week")
    forecast_sd: Float[Array, ""] = param(6.0, positive, "sd of the forecast", unit="units/week")

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """See `Factor.regimes`."""
        return (
            Regime("normal"),
            Regime("promo_spike", PROMO_WEEKS, bands=("surge",), stress=True),
            Regime("seasonal_lift", LIFT_WEEKS, bands=("surge", "lift"), stress=True),
            Regime("structural_decline", bands=("decline",), stress=True),
        )

    def moves(self, regime: str, age: int) -> Node:
        """See `Factor.moves`."""
        match regime:
            case "normal":
                return branch(
                    (self.promo_onset, "promo_spike"),
                    (self.lift_onset, "seasonal_lift"),
                    (self.decline_onset, "structural_decline"),
                    otherwise=STAY,
                )
            case "promo_spike":
                return "normal" if age >= PROMO_WEEKS - 1 else STAY
            case "seasonal_lift":
                return "normal" if age >= LIFT_WEEKS - 1 else branch((self.lift_persist, STAY), otherwise="normal")
            case _:
                return branch((self.decline_persist, STAY), otherwise="normal")

    @property
    def means(self) -> Float[Array, " state"]:
        """(state,) mean demand in units a week."""
        return self.by_band(
            normal=self.mean_normal, surge=self.mean_surge, lift=self.mean_lift, decline=self.mean_decline
        )

    def channels(self) -> tuple[Channel, ...]:
        """Units sold or wanted, and a forecast: two independent readings of the same mean."""
        return (
            Gaussian("pos_units", self.means, self.units_sd, low=0.0, start=20.0),
            Gaussian("demand_forecast", self.means, self.forecast_sd, low=0.0, start=20.0),
        )
