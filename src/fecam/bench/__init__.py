"""From a spec through a runner, a generator of records, to metrics and results."""
