"""Batch quality: a drift whose hazard grows with its age, seen through an inspection band."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Array, Float

from stocktake_jax.models.channels import Channel, Discrete, Gamma, columns
from stocktake_jax.models.factor import (
    STAY,
    Factor,
    Node,
    Regime,
    branch,
    minimum,
    param,
    positive,
    stack,
    unit_interval,
)

DRIFT_AGES = 25
"""Ages of drifting told apart: 0 .. 23, and 24 or more."""

RESULTS = ("accept", "marginal", "reject")
"""Inspection results; a reading of `aql_result` is an index into them."""


class Quality(Factor):
    """In control, drifting, out of control (paper, section 3.2 and Appendix A)."""

    name: ClassVar[str] = "quality"

    drift_onset: Float[Array, ""] = param(0.04, unit_interval, "P(in control -> drifting)")
    hazard_base: Float[Array, ""] = param(0.05, unit_interval, "P(drifting -> out of control) at age 0")
    hazard_slope: Float[Array, ""] = param(0.04, unit_interval, "growth of that probability per week of age")
    drift_repair: Float[Array, ""] = param(0.20, unit_interval, "P(drifting -> in control), if the hazard leaves room")
    repair: Float[Array, ""] = param(0.25, unit_interval, "P(out of control -> in control)")
    accept_control: Float[Array, ""] = param(0.90, unit_interval, "P(accept | in control)", row="in control")
    marginal_control: Float[Array, ""] = param(0.09, unit_interval, "P(marginal | in control)", row="in control")
    accept_drifting: Float[Array, ""] = param(0.30, unit_interval, "P(accept | drifting)", row="drifting")
    marginal_drifting: Float[Array, ""] = param(0.50, unit_interval, "P(marginal | drifting)", row="drifting")
    accept_out: Float[Array, ""] = param(0.05, unit_interval, "P(accept | out of control)", row="out of control")
    marginal_out: Float[Array, ""] = param(0.25, unit_interval, "P(marginal | out of control)", row="out of control")
    defect_control: Float[Array, ""] = param(0.001, unit_interval, "mean defect fraction, in control")
    defect_drifting: Float[Array, ""] = param(0.02, unit_interval, "mean defect fraction, drifting")
    defect_out: Float[Array, ""] = param(0.06, unit_interval, "mean defect fraction, out of control")
    defect_shape: Float[Array, ""] = param(2.0, positive, "gamma shape of the defect fraction around its mean")

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """See `Factor.regimes`."""
        return (
            Regime("in_control"),
            Regime("drifting", DRIFT_AGES, brewing=True),
            Regime("out_of_control", stress=True),
        )

    def moves(self, regime: str, age: int) -> Node:
        """See `Factor.moves`."""
        match regime:
            case "in_control":
                return branch((self.drift_onset, "drifting"), otherwise=STAY)
            case "drifting":
                hazard = minimum(self.hazard_base + self.hazard_slope * age, 1.0)
                repair = minimum(self.drift_repair, 1.0 - hazard)
                return branch((hazard, "out_of_control"), (repair, "in_control"), otherwise=STAY)
            case _:
                return branch((self.repair, "in_control"), otherwise=STAY)

    @property
    def defect_means(self) -> Float[Array, " state"]:
        """(state,) mean defect fraction."""
        return self.by_regime(
            in_control=self.defect_control, drifting=self.defect_drifting, out_of_control=self.defect_out
        )

    def channels(self) -> tuple[Channel, ...]:
        """The defect fraction, which nobody sees, and the inspection result."""
        accept = self.by_regime(
            in_control=self.accept_control, drifting=self.accept_drifting, out_of_control=self.accept_out
        )
        marginal = self.by_regime(
            in_control=self.marginal_control, drifting=self.marginal_drifting, out_of_control=self.marginal_out
        )
        codes = (stack([float(i)] * len(self.states)) for i in range(len(RESULTS)))
        return (
            Gamma("defect_fraction", self.defect_means, self.defect_shape, shown=False, start=0.0),
            Discrete("aql_result", columns(*codes), columns(accept, marginal, 1.0 - accept - marginal), start=0.0),
        )
