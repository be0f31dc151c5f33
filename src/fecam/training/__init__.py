"""Training of networks: the loop, its plan and hooks, and the training on the base classes."""

from fecam.training.augmentation import Augmentation
from fecam.training.base_training import plan_for, scale_schedule, train_base_classes
from fecam.training.hooks import Hooks
from fecam.training.images import TrainingImages
from fecam.training.loop import evaluate, train
from fecam.training.plan import TrainingPlan

__all__ = [
    "Augmentation",
    "Hooks",
    "TrainingImages",
    "TrainingPlan",
    "evaluate",
    "plan_for",
    "scale_schedule",
    "train",
    "train_base_classes",
]
