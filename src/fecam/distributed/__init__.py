"""Learning and answering on a cluster: the only room that imports ray.

Statistics are sums, so a cluster can learn in parallel and the result is the same model.
"""

from fecam.distributed.answering import Answered, evaluate, predict
from fecam.distributed.learning import Learnt, learn, teach

__all__ = ["Answered", "Learnt", "evaluate", "learn", "predict", "teach"]
