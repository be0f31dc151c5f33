"""Learning and prediction on a Ray cluster; no other package imports ray, except the service.

Statistics are sums: a cluster computes them in parallel, and the result is the same model.
"""

from fecam.distributed.learning import LearnSummary, learn
from fecam.distributed.prediction import PredictionSummary, evaluate, predict

__all__ = ["LearnSummary", "PredictionSummary", "evaluate", "learn", "predict"]
