"""STOCKTAKE in JAX: a factored world, its exact filters, a fair oracle, and honest scores for agents."""

__version__ = "0.1.0"
