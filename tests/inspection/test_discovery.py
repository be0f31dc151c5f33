"""Groups of items that fit no class."""

from __future__ import annotations

import numpy as np
import pytest

from fecam import FeCAMClassifier
from fecam.discovery import discover, stable_partition
from fecam.errors import InputError
from helpers.features import signed_features


@pytest.fixture(scope="module")
def separated():
    """Twelve known classes and three unknown ones; the last samples of each are not learned."""
    X, y = signed_features(15, 60, 24, 5)
    X = X + 2 * np.random.default_rng(1).normal(size=(15, 24))[y].astype(np.float32)
    learned = (y < 12) & (np.arange(len(y)) % 60 < 40)
    return FeCAMClassifier().fit(X[learned], y[learned]), X[~learned], y[~learned]


def test_unknown_classes_become_groups(separated):
    clf, X, y = separated
    found = discover(clf, X)
    groups = {tuple(sorted({*y[group.items]})): group for group in found.groups}
    assert {(12,), (13,), (14,)} <= groups.keys()
    for label in (12, 13, 14):
        group = groups[label,]
        assert len(group.items) > 50 and group.novelty > 1.64 and group.nearest in clf.classes_
        assert 0.8 < group.stability <= 1
    sizes = [len(group.items) for group in found.groups]
    assert sizes == sorted(sizes, reverse=True)
    assert [group.number for group in found.groups] == [*range(1, len(sizes) + 1)]
    listed = [i for group in found.groups for i in group.items] + found.single
    assert len({*listed}) == len(listed) == len(X) - found.n_known


def test_the_first_item_of_a_group_is_the_most_typical(separated):
    clf, X, _ = separated
    largest = discover(clf, X).groups[0]
    center = X[largest.items].mean(axis=0)
    distances = np.linalg.norm(X[largest.items] - center, axis=1)
    assert distances[:5].mean() < distances[-5:].mean()


def test_the_order_of_the_items_has_no_effect(separated):
    clf, X, _ = separated
    order = np.random.default_rng(0).permutation(len(X))
    one = {frozenset(group.items) for group in discover(clf, X).groups}
    two = {frozenset(order[group.items].tolist()) for group in discover(clf, X[order]).groups}
    assert len(one & two) >= len(one) - 1  # resamples may differ


def test_known_items_alone_form_no_group(separated):
    clf, X, y = separated
    found = discover(clf, X[y < 12], reject=0.05)
    assert sum(len(group.items) for group in found.groups) <= 0.05 * np.sum(y < 12)


def test_one_item_and_nothing_rejected(separated):
    clf, X, y = separated
    assert discover(clf, X[y == 12][:1]).single == [0]
    typical = X[y < 12][np.argsort(clf.novelty(X[y < 12]))[:5]]
    found = discover(clf, typical)
    assert (found.groups, found.single, found.n_known) == ([], [], 5)


def test_groups_of_two_items(separated):
    clf, X, y = separated
    few = np.concatenate([X[y == 12][:2], X[y == 13][:2]])
    found = discover(clf, few, min_size=2)
    assert sorted(sorted(group.items) for group in found.groups) == [[0, 1], [2, 3]]


def test_a_model_that_cannot_tell_says_so():
    clf = FeCAMClassifier().fit(np.eye(4), [0, 1, 2, 3])
    with pytest.raises(InputError, match="too few samples to tell"):
        discover(clf, np.ones((6, 4)))
    with pytest.raises(InputError, match="min_size=1"):
        discover(clf, np.ones((6, 4)), min_size=1)


def test_a_partition_separates_what_is_less_alike_than_expected():
    rng = np.random.default_rng(0)
    centers = np.linalg.qr(rng.normal(size=(16, 3)))[0].T
    rows = np.repeat(centers, 20, axis=0) + 0.05 * rng.normal(size=(60, 16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    partition = stable_partition(rows, 0.9, 5)
    assert [*np.bincount(partition.labels)] == [20, 20, 20]
    assert partition.stability == pytest.approx(1)
