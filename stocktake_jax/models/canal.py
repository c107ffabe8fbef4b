"""The Suez corridor: exact transit counts, and a first week that does not say what has begun."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Array, Float

from stocktake_jax.models.channels import Channel, Discrete, columns
from stocktake_jax.models.factor import STAY, Factor, Node, Regime, branch, nonnegative, param, stack, unit_interval

BANDS = ("calm", "watch", "crash", "blockage", "crisis", "recovery")
"""Order of the entries of the canal's count parameters."""


class Canal(Factor):
    """Calm, watch, a short or a long disruption, recovery, false alarm (paper, section 3.2 and Appendix A)."""

    name: ClassVar[str] = "canal"

    watch_onset: Float[Array, ""] = param(0.08, unit_interval, "P(calm -> watch)")
    disruption_onset: Float[Array, ""] = param(0.50, unit_interval, "P(watch -> disruption)", row="watch")
    false_alarm: Float[Array, ""] = param(0.20, unit_interval, "P(watch -> false alarm)", row="watch")
    stand_down: Float[Array, ""] = param(0.15, unit_interval, "P(watch -> calm)", row="watch")
    short_share: Float[Array, ""] = param(0.70, unit_interval, "P(a disruption that starts is short)")
    short_end: Float[Array, ""] = param(0.50, unit_interval, "P(a short disruption ends this week)")
    long_end: Float[Array, ""] = param(0.08, unit_interval, "P(a long disruption ends this week)")
    recovery_end: Float[Array, ""] = param(0.50, unit_interval, "P(recovery ends this week)")
    cape_local: Float[Array, ""] = param(0.08, unit_interval, "P(local congestion at the Cape), every week")
    suez: Float[Array, " band"] = param(
        (70, 63, 28, 0, 14, 56), nonnegative, "Suez transits by band", unit="ships/week"
    )
    bab: Float[Array, " band"] = param(
        (70, 63, 25, 0, 10, 56), nonnegative, "Bab-el-Mandeb transits", unit="ships/week"
    )
    cape: Float[Array, " band"] = param(
        (60, 60, 66, 72, 96, 69), nonnegative, "Cape transits by band", unit="ships/week"
    )
    cape_extra: Float[Array, ""] = param(21, nonnegative, "Cape transits added by local congestion", unit="ships/week")

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """See `Factor.regimes`: a disruption of either kind looks like a false alarm in its first week."""
        return (
            Regime("calm"),
            Regime("watch", brewing=True),
            Regime("false_alarm", bands=("crash",), brewing=True),
            Regime("short", 2, bands=("crash", "blockage"), stress=True, group="disruption"),
            Regime("long", 2, bands=("crash", "crisis"), stress=True, group="disruption"),
            Regime("recovery", 3),
        )

    def moves(self, regime: str, age: int) -> Node:
        """See `Factor.moves`."""
        match regime:
            case "calm":
                return branch((self.watch_onset, "watch"), otherwise=STAY)
            case "watch":
                begins = branch((self.short_share, "short"), otherwise="long")
                return branch(
                    (self.disruption_onset, begins),
                    (self.false_alarm, "false_alarm"),
                    (self.stand_down, "calm"),
                    otherwise=STAY,
                )
            case "short":
                return "recovery" if age >= 1 else branch((1.0 - self.short_end, STAY), otherwise="recovery")
            case "long":
                return branch((1.0 - self.long_end, STAY), otherwise="recovery")
            case "recovery":
                return "calm" if age >= 2 else branch((1.0 - self.recovery_end, STAY), otherwise="calm")
            case _:
                return "calm"

    def channels(self) -> tuple[Channel, ...]:
        """Three counts, exact but for the coin at the Cape."""
        suez, bab, cape = (
            stack([counts[BANDS.index(b)] for b in self.state_bands]) for counts in (self.suez, self.bab, self.cape)
        )
        ones, coin = (stack([p] * len(self.states)) for p in (1.0, self.cape_local))
        return (
            Discrete("suez_count", columns(suez), columns(ones), start=70.0),
            Discrete("bab_count", columns(bab), columns(ones), start=70.0),
            Discrete(
                "cape_count",
                columns(cape + self.cape_extra, cape),
                columns(coin, 1.0 - coin),
                start=60.0,
            ),
        )
