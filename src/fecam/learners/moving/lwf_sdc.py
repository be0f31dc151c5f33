"""LwF with means that follow the drift near them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fecam.heads.head import Floats
from fecam.learners.mechanisms.drift import check_sigma, semantic_drift
from fecam.learners.mechanisms.moving_means import Drift, Transform
from fecam.learners.moving.moving_learner import MovingLwF
from fecam.learners.task import LearningTask


@dataclass(kw_only=True, eq=False)
class LwFSDC(MovingLwF):
    r"""Semantic drift compensation (Yu et al. 2020) on a network that is trained as LwF.

    .. math:: L = \mathrm{CE}(z_{new}, y) + \lambda\, \mathrm{KD}_2(z^{old}, z), \qquad
        \mu_c \leftarrow \mu_c + \frac{\sum_i w_{ci} (f_i - f^{old}_i)}{\sum_i w_{ci}}

    with the weights of `semantic_drift`. This is the row "LwF + SDC" of the papers of LDC, ADC and
    AdaGauss; the published method, `sdc`, trains an embedding with triplets. The mean with the
    largest cosine predicts.

    Parameters
    ----------
    weight : float
        :math:`\lambda`, 10 in public code.
    temperature : float
        Of the distillation.
    sigma : float
        The width of the kernel, in units of the mean norm of a feature; 0.3 in public code.
    """

    sigma: float = 0.3

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_sigma(self.sigma)

    def estimate(self, task: LearningTask, old: Floats, new: Floats) -> Drift:
        """Return the drift near each mean."""

        def drift(means: Floats, transform: Transform) -> Floats:
            before, after = transform(old), transform(new)
            return np.asarray(semantic_drift(means, before, after, self.sigma))

        return drift
