"""What the buyer can do: the books, contracts, observations and the agent's episode."""

from stocktake_jax.desk.books import (
    CAPE,
    ROUTES,
    SUEZ,
    Bill,
    Books,
    Decision,
    Flow,
    Ships,
    Shocks,
    decision_error,
    shocks,
    step,
    step_jit,
)
from stocktake_jax.desk.contracts import (
    ACTIONS,
    BACKUP,
    QUALIFIED,
    RULES,
    SPOT,
    SUPPLIERS,
    TERMS,
    Contracts,
    Rules,
)
from stocktake_jax.desk.episode import Episode
from stocktake_jax.desk.observation import Observation, observe, readings_from, shown_values
from stocktake_jax.desk.replay import Replayed, replay
from stocktake_jax.desk.tools import TOOLS, Argument, Refusal, Tool, tools

__all__ = [
    "ACTIONS",
    "BACKUP",
    "CAPE",
    "QUALIFIED",
    "ROUTES",
    "RULES",
    "SPOT",
    "SUEZ",
    "SUPPLIERS",
    "TERMS",
    "TOOLS",
    "Argument",
    "Bill",
    "Books",
    "Contracts",
    "Decision",
    "Episode",
    "Flow",
    "Observation",
    "Refusal",
    "Replayed",
    "Rules",
    "Ships",
    "Shocks",
    "Tool",
    "decision_error",
    "observe",
    "readings_from",
    "replay",
    "shocks",
    "shown_values",
    "step",
    "step_jit",
    "tools",
]
