"""Experiments: a spec, a runner that yields records, metrics of them, and results on disk."""

from fecam.bench.evaluation import Evaluation, evaluate, evaluate_classifier
from fecam.bench.metrics import summarize
from fecam.bench.runner import run
from fecam.bench.spec import Spec, available, load

__all__ = [
    "Evaluation", "Spec", "available", "evaluate", "evaluate_classifier", "load", "run",
    "summarize",
]  # fmt: skip
