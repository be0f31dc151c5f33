"""Tables, plots and the single-file HTML report of runs.

>>> from fecam.report import read_run, summary_table, write_report

matplotlib is loaded when a report is written, not before.
"""

from fecam.report.page import write_report
from fecam.report.reading import Run, read_run
from fecam.report.tables import Table, summary_table

__all__ = ["Run", "Table", "read_run", "summary_table", "write_report"]
