"""The report page: a benchmark's results, and agents' episodes beside them, as one HTML file that needs nothing else."""

from stocktake_jax.report.document import episodes
from stocktake_jax.report.labels import read_labels, relabelled
from stocktake_jax.report.page import Report, make_report, write_report

__all__ = ["Report", "episodes", "make_report", "read_labels", "relabelled", "write_report"]
