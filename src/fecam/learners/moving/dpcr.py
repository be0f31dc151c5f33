"""DPCR: Gram matrices of classes follow the network, and determine a ridge classifier."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.heads.head import Floats
from fecam.learners.mechanisms.category_maps import ridge_classifier, row_space
from fecam.learners.mechanisms.class_statistics import append_rows, labels_of
from fecam.learners.mechanisms.drift import linear_map, map_covariances
from fecam.learners.mechanisms.moving_means import Drift, Transform
from fecam.learners.moving.moving_learner import MovingLwF
from fecam.learners.task import LearningTask
from fecam.validation import check_number

PUBLISHED_IMAGES = 500
"""Images per class of CIFAR-100, for which the authors publish their ridge of 200."""


@dataclass(kw_only=True, eq=False)
class DPCR(MovingLwF):
    r"""Dual projection shift estimation and classifier reconstruction (He et al., ICML 2025).

    .. math:: P = (F_{old}^T F_{old})^{+} F_{old}^T F, \quad P_c = P U_c U_c^T, \quad
        G_c \leftarrow P_c^T G_c P_c, \quad \mu_c \leftarrow \mu_c P_c, \qquad
        W^T = \Big(\sum_c G_c + \gamma I\Big)^{-1} [n_c \mu_c]_c

    on a network that is trained as LwF, where :math:`G_c` is the uncentred Gram matrix of a class
    and :math:`U_c` its directions. The rows of W have unit length; the largest output predicts.

    Parameters
    ----------
    weight : float
        Of the distillation, 10 in the authors' code.
    temperature : float
        Of the distillation.
    ridge : float
        :math:`\gamma` for 500 images per class, 200 in the authors' code for CIFAR-100; it is
        scaled by the number of images per class.
    tolerance : float
        Directions of a class have an eigenvalue above this share of the largest.
    """

    ridge: float = 200.0
    tolerance: float = 1e-6

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_number("ridge", self.ridge, above=0, error=TrainingError)
        check_number("tolerance", self.tolerance, below=1, error=TrainingError)

    def estimate(self, task: LearningTask, old: Floats, new: Floats) -> Drift:
        """Move the Gram matrices, and return the drift of means by the maps of their classes."""
        statistics = self.kept["statistics"]
        grams = statistics["grams"].double().numpy()
        spaces = np.stack([row_space(gram, self.tolerance) for gram in grams])
        maps = linear_map(old, new, ridge=0, toward_identity=False) @ spaces
        moved = np.stack(
            [map_covariances(gram, linear) for gram, linear in zip(grams, maps, strict=True)]
        )
        statistics["grams"] = torch.from_numpy(moved).float()

        def drift(means: Floats, transform: Transform) -> Floats:
            before, after = transform(old), transform(new)
            if before is old:
                result: Floats = np.einsum("cd,cde->ce", means, maps) - means
            else:  # the directions of a class are those of features that are not transformed
                result = means @ linear_map(before, after, ridge=0, toward_identity=False) - means
            return result

        return drift

    def after_task(self, task: LearningTask) -> None:
        """Move the statistics of old classes, and keep those of the new ones."""
        super().after_task(task)
        features, labels = self.features(task.images).astype(np.float64), labels_of(task)
        rows = [features[labels == label] for label in task.new]
        statistics = self.kept["statistics"]
        grams = np.stack([x.T @ x for x in rows])
        append_rows(statistics, "grams", torch.from_numpy(grams).float())
        append_rows(statistics, "counts", torch.tensor([len(x) for x in rows]))

    def scores(self, features: Tensor) -> Tensor:
        """Return the outputs of the ridge classifier."""
        means, grams, counts = (
            self.kept["statistics"][name].double().numpy() for name in ("means", "grams", "counts")
        )
        ridge = self.ridge * counts.mean() / PUBLISHED_IMAGES
        weights = ridge_classifier(grams, counts[:, None] * means, ridge)
        return functional.linear(features, torch.from_numpy(weights).to(features))
