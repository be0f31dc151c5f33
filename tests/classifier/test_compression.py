"""`FeCAMClassifier.compress`: exact in the projected space, and clear about what it cannot do."""

from __future__ import annotations

import numpy as np
import pytest

from fecam import FeCAMClassifier
from fecam.core.compression import compressed, directions, leading_components
from fecam.core.scatter import to_dense
from fecam.errors import InputError, SettingsError

N_FEATURES, N_CLASSES, PER_CLASS = 24, 6, 30


@pytest.fixture(scope="module")
def data():
    """Features of six classes that differ in eight directions."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(N_FEATURES, N_FEATURES)) / N_FEATURES**0.5
    centers = np.zeros((N_CLASSES, N_FEATURES))
    centers[:, :8] = 3 * rng.normal(size=(N_CLASSES, 8))
    y = np.repeat(np.arange(N_CLASSES), PER_CLASS)
    X = (centers[y] + rng.normal(size=(len(y), N_FEATURES))) @ mixing
    return X.astype(np.float32), y


SETTINGS = {
    "default": {},
    "float64": {"dtype": "float64"},
    "transform-of-mean": {"prototype": "transform-of-mean"},
    "pooled": {"covariance": "pooled"},
    "common": {"covariance": "common"},
    "no l2": {"l2": None, "normalization": None},
    "average": {"domains": "average"},
}


def equal_statistics(a: FeCAMClassifier, b: FeCAMClassifier, tolerance: float = 1e-4) -> None:
    assert list(a.state_.classes) == list(b.state_.classes)
    for label, ours in a.state_.classes.items():
        theirs = b.state_.classes[label]
        assert ours.count == theirs.count
        np.testing.assert_allclose(ours.mean, theirs.mean, atol=tolerance)
        np.testing.assert_allclose(ours.raw_mean, theirs.raw_mean, atol=tolerance)
        scale = np.abs(to_dense(ours.scatter)).max() + 1
        np.testing.assert_allclose(
            to_dense(ours.scatter) / scale, to_dense(theirs.scatter) / scale, atol=tolerance
        )


@pytest.mark.parametrize("name", SETTINGS)
def test_compress_then_learn_is_learn_then_compress(data, name):
    X, y = data
    first = FeCAMClassifier(tukey=None, **SETTINGS[name]).fit(X[y < 3], y[y < 3]).compress(10)
    whole = FeCAMClassifier(tukey=None, **SETTINGS[name]).fit(X[y < 3], y[y < 3])
    whole.partial_fit(X[y >= 3], y[y >= 3]).compress(like=first)
    first.partial_fit(X[y >= 3], y[y >= 3])
    equal_statistics(first, whole)
    assert first.n_features_in_ == N_FEATURES
    assert first.state_.n_features == 10
    assert np.mean(first.refresh().predict(X) == whole.refresh().predict(X)) > 0.99


def test_samples_of_a_learned_class_are_added_and_removed_exactly(data):
    X, y = data
    some, extra = np.arange(len(y)) % 3 > 0, np.arange(len(y)) % 3 == 0
    clf = FeCAMClassifier(dtype="float64").fit(X[some], y[some]).compress(6)
    before = clf.copy()
    clf.partial_fit(X[extra], y[extra]).unlearn(X[extra], y[extra])
    equal_statistics(clf, before, 1e-8)
    np.testing.assert_allclose(clf.decision_function(X), before.refresh().decision_function(X))


def test_merge_needs_the_same_projection(data):
    X, y = data
    a = FeCAMClassifier().fit(X[y < 3], y[y < 3])
    b = FeCAMClassifier().fit(X[y >= 3], y[y >= 3])
    small = a.copy().compress(8)
    for other in (b, b.copy().compress(8), b.copy().compress(5)):
        with pytest.raises(SettingsError, match=r"same projection.*compress\(like="):
            small.copy().merge(other)
        with pytest.raises(SettingsError, match="same projection"):
            other.copy().merge(small)
    merged = small.copy().merge(b.copy().compress(like=small))
    equal_statistics(merged, a.copy().merge(b).compress(like=small))
    assert FeCAMClassifier().merge(small).n_features_in_ == N_FEATURES


def test_forget_removes_a_class_only(data):
    X, y = data
    clf = FeCAMClassifier().fit(X, y).compress(8)
    rest = clf.copy().forget(2)
    assert rest.classes_.tolist() == [0, 1, 3, 4, 5]
    assert all(rest.state_.classes[k] is clf.state_.classes[k] for k in rest.classes_.tolist())


@pytest.mark.parametrize(
    "settings", [{"normalization": None, "pooling": 20}, {"covariance": "pooled"}]
)
def test_all_directions_keep_all_distances_without_normalization(data, settings):
    """The columns are orthonormal, and the shrinkage is that of a rotated matrix."""
    X, y = data
    clf = FeCAMClassifier(dtype="float64", **settings).fit(X, y)
    small = clf.copy().compress(N_FEATURES)
    np.testing.assert_allclose(small.decision_function(X), clf.decision_function(X), rtol=1e-5)


def test_all_directions_keep_the_pooled_metric_with_normalization(data):
    """With a strong prior, the distance is the Euclidean one of the chosen coordinates."""
    X, y = data
    clf = FeCAMClassifier(dtype="float64", pooling=1e9).fit(X, y)
    projection = directions(clf.state_, clf.metric_, N_FEATURES)
    squares = ((clf.state_.transform(X)[:, None] - clf.means_) @ projection) ** 2
    np.testing.assert_allclose(
        squares.sum(axis=2) / (1 + 1 / PER_CLASS), -clf.decision_function(X), rtol=1e-4
    )


def test_few_directions_keep_the_labels(data):
    X, y = data
    clf = FeCAMClassifier().fit(X, y)
    small = clf.copy().compress(8)
    assert np.mean(small.predict(X) == clf.predict(X)) > 0.97
    assert clf.state_.n_features == N_FEATURES  # the copy shares nothing that changes


def test_directions_are_nested(data):
    X, y = data
    clf = FeCAMClassifier(dtype="float64").fit(X, y)
    many, few = (directions(clf.state_, clf.metric_, k) for k in (12, 4))
    np.testing.assert_allclose(many[:, :4], few, atol=1e-10)
    first = leading_components(compressed(clf.state_, many), 4)
    same = compressed(clf.state_, many[:, :4])
    np.testing.assert_allclose(first.transform(X), same.transform(X))
    equal_statistics(clf.copy().set_state(first), clf.copy().set_state(same), 1e-10)


def test_estimate_is_what_compress_does(data):
    X, y = data
    clf = FeCAMClassifier().fit(X, y)
    before = clf.state_
    estimate = clf.estimate_compression()
    assert clf.state_ is before
    assert estimate.n_components in (3, 6, 12)
    assert clf.copy().compress().state_.n_features == estimate.n_components
    tiny, large = clf.estimate_compression(1), clf.estimate_compression(12)
    assert tiny.agreement < large.agreement <= 1
    assert tiny.bytes_after < large.bytes_after < large.bytes_before
    assert tiny.n_features == N_FEATURES


def test_one_sample_per_class_can_be_compressed():
    X = np.eye(4, 12)
    clf = FeCAMClassifier(tukey=None).fit(X, np.arange(4)).compress(3)
    assert clf.predict(X).tolist() == [0, 1, 2, 3]


def test_all_answers_work(data):
    X, y = data
    clf = FeCAMClassifier().fit(X, y).compress(8)
    assert clf.predict_proba(X).shape == (len(y), N_CLASSES)
    assert clf.novelty(X).shape == clf.predict(X, reject=0.05, unknown=-1).shape
    assert clf.means_.shape == (N_CLASSES, 8)
    assert clf.covariance_(0).shape == (8, 8)
    with pytest.raises(ValueError, match="8 features"):
        clf.predict(X[:, :8])
    again = FeCAMClassifier().fit(X, y)  # fit discards the projection
    assert clf.fit(X, y).state_.n_features == N_FEATURES
    np.testing.assert_array_equal(clf.predict(X), again.predict(X))


def test_torch_tensors(data):
    torch = pytest.importorskip("torch")
    X, y = data
    clf = FeCAMClassifier().fit(X, y).compress(8)
    on_torch = FeCAMClassifier().fit(torch.asarray(X), torch.asarray(y)).compress(8)
    assert isinstance(on_torch.state_.transform.projection, torch.Tensor)
    labels = on_torch.partial_fit(torch.asarray(X), torch.asarray(y)).predict(torch.asarray(X))
    assert np.mean(np.asarray(labels) == clf.predict(X)) > 0.98
    moved = clf.copy().to(torch.zeros(1))
    assert isinstance(moved.state_.transform.projection, torch.Tensor)
    assert np.mean(moved.predict(X) == clf.predict(X)) > 0.99
    assert np.mean(moved.merge(clf).predict(X) == clf.predict(X)) > 0.98


@pytest.mark.parametrize("bad", [0, -1, N_FEATURES + 1, 2.5, True, "some", None])
def test_bad_numbers_of_components(data, bad):
    clf = FeCAMClassifier().fit(*data)
    before = clf.state_
    with pytest.raises(InputError, match="n_components="):
        clf.compress(bad)
    assert clf.state_ is before


def test_models_that_cannot_be_compressed(data):
    X, y = data
    with pytest.raises(ValueError, match="partial_fit"):
        FeCAMClassifier().compress(4)
    with pytest.raises(ValueError, match="partial_fit"):
        FeCAMClassifier().fit(X[:2], y[:2]).forget(0).compress(4)
    with pytest.raises(InputError, match="two classes"):
        FeCAMClassifier().fit(X[:9], y[:9]).compress(4)
    with pytest.raises(SettingsError, match=r"compressed already, to 4 of 24 components"):
        FeCAMClassifier().fit(X, y).compress(4).compress(2)
    for covariance, stored in {"diagonal": "only variances", "identity": "only means"}.items():
        with pytest.raises(SettingsError, match=stored):
            FeCAMClassifier(covariance=covariance).fit(X, y).compress(4)
    with pytest.raises(SettingsError, match="l2='compare' cannot be compressed"):
        FeCAMClassifier(l2="compare").fit(X, y).compress(4)
    clf = FeCAMClassifier(l2="compare").fit(X, y).set_params(l2=None).compress(4)
    with pytest.raises(SettingsError, match="compressed model"):
        clf.set_params(l2="compare")
    with pytest.raises(SettingsError, match="not compressed"):
        FeCAMClassifier().fit(X, y).compress(like=FeCAMClassifier().fit(X, y))
    narrow = FeCAMClassifier().fit(X[:, :16], y).compress(4)
    with pytest.raises(InputError, match="16 features"):
        FeCAMClassifier().fit(X, y).compress(like=narrow)
