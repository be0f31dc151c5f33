"""Left-out errors that are read from losses, against the distances themselves."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fecam.core.calibration_rows import N_SCORES, left_out_errors, pack_rows
from fecam.core.temperature import left_out_losses


@given(seed=st.integers(0, 10_000), n_classes=st.integers(2, 5))
def test_errors_are_the_rows_with_a_nearer_rival(seed, n_classes):
    distances = np.random.default_rng(seed).uniform(0, 4, size=(30, n_classes))
    ordered = np.sort(np.sqrt(distances), axis=1)
    distances = distances[ordered[:, 1] - ordered[:, 0] > 0.02]  # no ties
    losses = left_out_losses(distances, 1, 1.0)
    rows = pack_rows(10, n_classes, np.zeros((len(distances), N_SCORES)), losses)
    np.testing.assert_array_equal(left_out_errors(rows), distances.argmin(axis=1) != 1)
