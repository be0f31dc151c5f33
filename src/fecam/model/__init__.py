"""Models: an encoder, a classifier and the file that keeps them, for raw items."""

from fecam.model.model import Model
from fecam.model.readable import predictions_of
from fecam.results import Candidate, LearnResult, Prediction

__all__ = ["Candidate", "LearnResult", "Model", "Prediction", "predictions_of"]
