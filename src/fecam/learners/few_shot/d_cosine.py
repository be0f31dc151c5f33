"""D-Cosine: cosine cross-entropy in the first task, then class means."""

from __future__ import annotations

from dataclasses import dataclass

from fecam.learners.few_shot.frozen_learner import FrozenLearner


@dataclass(kw_only=True, eq=False)
class DCosine(FrozenLearner):
    r"""Decoupled learning with cosines (the base of CEC, Zhang et al., CVPR 2021).

    .. math:: L = \mathrm{CE}(s \cos(f, W), y)

    over the classes of the first task. Afterwards the rows of W are the means of the features, also
    those of the first task.

    Parameters
    ----------
    scale : float
        s, 16 in the authors' code.
    """
