"""What the hidden world is: factors, their channels, the world that holds them, and tapes."""

from stocktake_jax.models.canal import Canal
from stocktake_jax.models.channels import Channel, Discrete, Gamma, Gaussian, Index, Likelihood
from stocktake_jax.models.demand import Demand
from stocktake_jax.models.factor import (
    STAY,
    Branch,
    Constraint,
    Factor,
    Initial,
    LogLikelihood,
    Parameter,
    Regime,
    State,
    branch,
    nonnegative,
    param,
    parameters,
    positive,
    real,
    unit_interval,
)
from stocktake_jax.models.freight import Freight
from stocktake_jax.models.port import Port
from stocktake_jax.models.quality import Quality
from stocktake_jax.models.supplier import Supplier
from stocktake_jax.models.tape import Readings, Tape
from stocktake_jax.models.world import FACTORS, HORIZON, Costs, Logistics, World

__all__ = [
    "FACTORS",
    "HORIZON",
    "STAY",
    "Branch",
    "Canal",
    "Channel",
    "Constraint",
    "Costs",
    "Demand",
    "Discrete",
    "Factor",
    "Freight",
    "Gamma",
    "Gaussian",
    "Index",
    "Initial",
    "Likelihood",
    "LogLikelihood",
    "Logistics",
    "Parameter",
    "Port",
    "Quality",
    "Readings",
    "Regime",
    "State",
    "Supplier",
    "Tape",
    "World",
    "branch",
    "nonnegative",
    "param",
    "parameters",
    "positive",
    "real",
    "unit_interval",
]
