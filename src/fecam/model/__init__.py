"""An encoder, a classifier and a file in one, so that raw items go in."""

from fecam.model.answers import Candidate, LearnResult, Prediction, predictions_of
from fecam.model.model import Model, open_model

__all__ = ["Candidate", "LearnResult", "Model", "Prediction", "open_model", "predictions_of"]
