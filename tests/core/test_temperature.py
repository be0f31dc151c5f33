"""The sharpness of the softmax and the losses that it is fitted to, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fecam.core import calibration_rows, softmax, temperature


def test_the_temperature_by_hand():
    sharpness = temperature.reference_sharpness(0.24)
    assert sharpness == pytest.approx(2 / np.sqrt(0.24 * temperature.REFERENCE_REL_VARIANCE))
    assert temperature.softmax_temperature([2.0, 4.0], 5.0) == pytest.approx(np.sqrt(3) / 5)


def test_without_a_temperature_the_softmax_sum_is_zero():
    """Also where the first class was pruned."""
    distances = np.array([[np.inf, 1.0], [2.0, np.inf]])
    assert softmax.softmax_sum(distances, 0.0).tolist() == [0, 0]
    assert softmax.softmax_sum(distances, 1.0).tolist() == [1, 1]


def test_the_losses_are_those_of_the_softmax():
    distances = np.array([[4.0, 9.0, 1.0]])
    losses = temperature.left_out_losses(distances, 0, 2.0)[0]
    for kappa, loss in zip(calibration_rows.SHARPNESS_GRID, losses, strict=True):
        logits = -kappa * np.sqrt(distances[0] / 2)
        assert loss == pytest.approx(
            np.log(np.exp(logits - logits.max()).sum()) - (logits[0] - logits.max())
        )


def rows_with(losses, n_classes=5):
    losses = np.asarray(losses, np.float64)
    scores = np.zeros((len(losses), calibration_rows.N_SCORES))
    return calibration_rows.pack_rows(100, n_classes, scores, losses)


def test_the_sharpness_has_the_smallest_loss():
    grid = np.log(calibration_rows.SHARPNESS_GRID)
    best = np.log(30.0)
    classes = [rows_with(np.tile((grid - best) ** 2, (500, 1))) for _ in range(4)]
    assert temperature.fitted_sharpness(classes, 30.0) == pytest.approx(30.0, rel=0.05)
    assert temperature.fitted_sharpness(classes, 90.0) == pytest.approx(30.0, rel=0.1)
    assert temperature.fitted_sharpness([None], 17.0) == 17.0
    few = [rows_with(np.tile((grid - best) ** 2, (1, 1)))]
    assert temperature.fitted_sharpness(few, 90.0) > 60, "one row does not decide"


def test_a_row_counts_with_the_number_of_classes_of_its_model():
    grid = np.log(calibration_rows.SHARPNESS_GRID)

    def rows(sharpness, n_classes):
        return rows_with(np.tile((grid - np.log(sharpness)) ** 2, (2000, 1)), n_classes)

    fitted = temperature.fitted_sharpness([rows(60.0, 5), rows(20.0, 10)], 30.0)
    assert fitted == pytest.approx(60 ** (1 / 3) * 20 ** (2 / 3), rel=0.002)
