"""Tables, plots and the single-file HTML report of runs."""
