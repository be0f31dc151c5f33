"""An encoder, a classifier and a file in one, so that raw items go in."""

from fecam.model.answers import Candidate, Judgement, Lesson
from fecam.model.model import Model, open_model

__all__ = ["Candidate", "Judgement", "Lesson", "Model", "open_model"]
