"""The destination port: congestion and customs holds that begin alike."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Array, Float

from stocktake_jax.models.channels import Channel, Gaussian
from stocktake_jax.models.factor import STAY, Factor, Node, Regime, branch, nonnegative, param, positive, unit_interval

CONGESTED_WEEKS = 8


class Port(Factor):
    """Clear, building, congested, customs hold (paper, section 3.2 and Appendix A)."""

    name: ClassVar[str] = "port"

    build_onset: Float[Array, ""] = param(0.06, unit_interval, "P(clear -> building)", row="clear")
    customs_onset: Float[Array, ""] = param(0.04, unit_interval, "P(clear -> customs hold)", row="clear")
    congest_onset: Float[Array, ""] = param(0.30, unit_interval, "P(building -> congested)", row="building")
    disperse: Float[Array, ""] = param(0.30, unit_interval, "P(building -> clear)", row="building")
    congest_persist: Float[Array, ""] = param(0.85, unit_interval, "P(congestion lasts another week)")
    customs_persist: Float[Array, ""] = param(0.20, unit_interval, "P(a customs hold lasts another week)")
    wait_clear: Float[Array, ""] = param(1.0, nonnegative, "mean berth wait, clear", unit="days")
    wait_building: Float[Array, ""] = param(4.0, nonnegative, "mean berth wait, building", unit="days")
    wait_slow: Float[Array, ""] = param(14.0, nonnegative, "mean berth wait, first week of a blocked port", unit="days")
    wait_blocked: Float[Array, ""] = param(
        16.0, nonnegative, "mean berth wait, later weeks of a blocked port", unit="days"
    )
    wait_sd: Float[Array, ""] = param(2.0, positive, "sd of the berth wait", unit="days")
    outlook_sd: Float[Array, ""] = param(3.0, positive, "sd of the outlook", unit="days")

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """See `Factor.regimes`."""
        return (
            Regime("clear"),
            Regime("building", brewing=True),
            Regime("congested", CONGESTED_WEEKS, bands=("slow", "blocked"), stress=True),
            Regime("customs_hold", 2, bands=("slow", "blocked"), stress=True),
        )

    def moves(self, regime: str, age: int) -> Node:
        """See `Factor.moves`."""
        match regime:
            case "clear":
                return branch((self.build_onset, "building"), (self.customs_onset, "customs_hold"), otherwise=STAY)
            case "building":
                return branch((self.congest_onset, "congested"), (self.disperse, "clear"), otherwise=STAY)
            case "congested":
                last = age >= CONGESTED_WEEKS - 1
                return "clear" if last else branch((self.congest_persist, STAY), otherwise="clear")
            case _:
                return branch((self.customs_persist, STAY), otherwise="clear")

    def channels(self) -> tuple[Channel, ...]:
        """The week's berth wait and an outlook."""
        wait = self.by_band(
            clear=self.wait_clear, building=self.wait_building, slow=self.wait_slow, blocked=self.wait_blocked
        )
        return (
            Gaussian("berth_wait", wait, self.wait_sd, low=0.0, start=1.0),
            Gaussian("wait_outlook", wait, self.outlook_sd, low=0.0, start=1.0),
        )
