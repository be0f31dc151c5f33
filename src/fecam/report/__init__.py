"""Tables, plots and single-file HTML reports of runs. Writing a report imports matplotlib."""

from fecam.report.page import write_report
from fecam.report.reading import Run, read_run
from fecam.report.tables import Table, summary_table

__all__ = ["Run", "Table", "read_run", "summary_table", "write_report"]
