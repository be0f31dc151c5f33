"""Transforms of features."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fecam.core import transforms
from helpers import literal

seeds = st.integers(0, 1000)


@given(seed=seeds, power=st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0]))
def test_tukey_is_equation_9(seed, power):
    x = np.random.default_rng(seed).uniform(0.01, 5, size=(4, 3))
    np.testing.assert_allclose(transforms.tukey(x, power), literal.power(x, power))
    assert not transforms.outside_domain(x, power).any()
    assert transforms.outside_domain(np.array(-1.0), power)
    assert bool(transforms.outside_domain(np.array(0.0), power)) == (power <= 0)


def test_a_row_of_zeros_stays_zero():
    np.testing.assert_array_equal(transforms.unit_length(np.zeros((1, 3))), np.zeros((1, 3)))
