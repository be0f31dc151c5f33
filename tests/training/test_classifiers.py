"""The classifier layers."""

from __future__ import annotations

import pytest
import torch

from fecam.errors import TrainingError
from fecam.training.classifiers import (
    CosineClassifier,
    LinearClassifier,
    expand_classifier,
    make_classifier,
)


def test_cosine_logits_ignore_length_and_stay_within_the_scale():
    classifier = CosineClassifier(8, 3, scale=5.0)
    features = torch.randn(10, 8)
    torch.testing.assert_close(classifier(features), classifier(7 * features))
    assert classifier(features).abs().max() <= 5
    assert classifier(classifier.weight)[1, 1].item() == pytest.approx(5)
    assert len(list(classifier.parameters())) == 2  # the scale is learned


@pytest.mark.parametrize("kind", [CosineClassifier, LinearClassifier])
def test_an_expanded_classifier_keeps_the_old_logits(kind):
    old = kind(8, 3)
    larger = expand_classifier(old, 5)
    features = torch.randn(4, 8)
    assert larger(features).shape == (4, 5)
    torch.testing.assert_close(larger(features)[:, :3], old(features))
    with pytest.raises(TrainingError, match="classes=2 must be at least 3"):
        expand_classifier(old, 2)
    assert make_classifier("cosine", 8, 3, scale=4.0).scale.item() == 4
    with pytest.raises(TrainingError, match="round"):
        make_classifier("round", 8, 3)
