"""The freight market: a multiplier on shipping, shown as an index."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Array, Float

from stocktake_jax.models.channels import Channel, Index
from stocktake_jax.models.factor import STAY, Factor, Node, Regime, branch, param, positive, unit_interval

TIGHTENING_WEEKS, SPIKE_WEEKS = 6, 6
LOWEST = 0.1
"""The multiplier never falls below this."""


class Freight(Factor):
    """Slack, normal, tightening, spike (paper, section 3.2 and Appendix A)."""

    name: ClassVar[str] = "freight"

    slack_persist: Float[Array, ""] = param(0.93, unit_interval, "P(slack lasts another week)")
    tighten_onset: Float[Array, ""] = param(0.06, unit_interval, "P(normal -> tightening)", row="normal")
    slack_onset: Float[Array, ""] = param(0.04, unit_interval, "P(normal -> slack)", row="normal")
    spike_onset: Float[Array, ""] = param(0.18, unit_interval, "P(tightening -> spike)", row="tightening")
    ease: Float[Array, ""] = param(0.25, unit_interval, "P(tightening -> normal)", row="tightening")
    spike_persist: Float[Array, ""] = param(0.80, unit_interval, "P(a spike lasts another week)")
    rate_slack: Float[Array, ""] = param(0.7, positive, "mean multiplier, slack")
    rate_normal: Float[Array, ""] = param(1.0, positive, "mean multiplier, normal")
    rate_tight: Float[Array, ""] = param(1.8, positive, "mean multiplier, tightening or first week of a spike")
    rate_spike: Float[Array, ""] = param(4.0, positive, "mean multiplier, later weeks of a spike")
    realized_sd: Float[Array, ""] = param(0.15, positive, "sd of the week's multiplier")
    outlook_sd: Float[Array, ""] = param(0.25, positive, "sd of the outlook")

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """See `Factor.regimes`."""
        return (
            Regime("normal"),
            Regime("slack"),
            Regime("tightening", TIGHTENING_WEEKS, bands=("tight",), brewing=True),
            Regime("spike", SPIKE_WEEKS, bands=("tight", "spike"), stress=True),
        )

    def moves(self, regime: str, age: int) -> Node:
        """See `Factor.moves`."""
        match regime:
            case "slack":
                return branch((self.slack_persist, STAY), otherwise="normal")
            case "normal":
                return branch((self.tighten_onset, "tightening"), (self.slack_onset, "slack"), otherwise=STAY)
            case "tightening":
                last = age >= TIGHTENING_WEEKS - 1
                return branch((self.spike_onset, "spike"), (self.ease, "normal"), otherwise="normal" if last else STAY)
            case _:
                return "normal" if age >= SPIKE_WEEKS - 1 else branch((self.spike_persist, STAY), otherwise="normal")

    @property
    def means(self) -> Float[Array, " state"]:
        """(state,) mean multiplier."""
        return self.by_band(
            slack=self.rate_slack, normal=self.rate_normal, tight=self.rate_tight, spike=self.rate_spike
        )

    def channels(self) -> tuple[Channel, ...]:
        """The multiplier that is charged and an outlook, both shown as whole numbers times 100."""
        return (
            Index("freight_index", self.means, self.realized_sd, decimals=4, low=LOWEST, start=1.0),
            Index("freight_outlook", self.means, self.outlook_sd, decimals=4, low=LOWEST, start=1.0),
        )
