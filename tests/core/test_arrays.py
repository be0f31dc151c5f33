"""The same code path for NumPy, torch and the strict array API; the same kind comes out."""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from fecam import FeCAMClassifier
from fecam.core.arrays import accumulation_dtype, cholesky_and_inverse, namespace, to_numpy
from fecam.errors import InputError
from helpers.features import relu_features, signed_features

X, Y = relu_features(4, 12, 8, 0)
Q, _ = relu_features(4, 5, 8, 1)

VARIANTS = {
    "default": {},
    "common": {"covariance": "common"},
    "pooled": {"covariance": "pooled"},
    "diagonal": {"covariance": "diagonal"},
    "identity": {"covariance": "identity"},
    "compare": {"l2": "compare", "prototype": "transform-of-mean", "shrinkage": (1, 1)},
    "public": {"shrinkage": (3, 3), "off_diagonal": "nonzero-twice", "l2": None},
    "variance": {"normalization": "variance"},
    "unnormalized": {"normalization": None},
    "averaged": {"domains": "average"},
    "singular": {"shrinkage": (0, 0), "pooling": 0, "l2": None, "dtype": "float64"},
}
KINDS = {"torch": torch.asarray, "strict": array_api_strict.asarray}


def predictions_after_changes(clf, convert, labels):
    """Return the predictions of a model after learning, unlearning, forgetting and merging."""
    first = Y < 3
    clf.partial_fit(convert(X[first]), labels(Y[first]))
    clf.predict(convert(Q))
    clf.partial_fit(convert(X[~first]), labels(Y[~first]))
    if clf.domains == "pool":
        clf.partial_fit(convert(X[:2]), labels(Y[:2]))
        clf.unlearn(convert(X[:2]), labels(Y[:2]))
    clf.forget(2)
    clf.merge(FeCAMClassifier(**clf.get_params()).fit(convert(X[Y == 2]), labels(Y[Y == 2])))
    return {
        "decision": clf.decision_function(convert(Q)),
        "proba": clf.predict_proba(convert(Q)),
        "novelty": clf.novelty(convert(Q)),
        "predict": clf.predict(convert(Q)),
        "top": clf.predict_top_k(convert(Q), 3),
        "reject": clf.predict(convert(Q), reject=0.3, unknown=-1),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_other_libraries_give_the_results_of_numpy(variant, kind):
    convert = KINDS[kind]
    expected = predictions_after_changes(
        FeCAMClassifier(**VARIANTS[variant]), np.asarray, np.asarray
    )
    got = predictions_after_changes(FeCAMClassifier(**VARIANTS[variant]), convert, convert)
    for name, value in got.items():
        assert type(value) is type(convert(X)), f"{name} came back as {type(value)}"
        plain = np.asarray(value)
        assert plain.dtype == expected[name].dtype
        if plain.dtype.kind == "f":
            np.testing.assert_allclose(plain, expected[name], rtol=2e-3, atol=1e-4)
        else:
            np.testing.assert_array_equal(plain, expected[name])


class NoDoublePrecision(TorchFunctionMode):
    """Raises where a tensor gets double precision, which the GPUs of Apple do not have."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64:
                raise TypeError(f"{func} gave double precision")
        return result


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "singular"])
def test_devices_without_double_precision(variant, monkeypatch):
    def narrow(x):
        return namespace(x).float64 if type(x) is np.ndarray else namespace(x).float32

    monkeypatch.setattr(accumulation_dtype, "__code__", narrow.__code__)
    expected = predictions_after_changes(
        FeCAMClassifier(**VARIANTS[variant]), np.asarray, np.asarray
    )
    with NoDoublePrecision():
        clf = FeCAMClassifier(**VARIANTS[variant])
        got = predictions_after_changes(clf, torch.asarray, torch.asarray)
        clf.explain(torch.asarray(Q[0]))
    np.testing.assert_allclose(got["decision"].numpy(), expected["decision"], 2e-2, 1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_has_the_library_of_the_first_fit_and_results_that_of_the_query(kind):
    convert = KINDS[kind]
    clf = FeCAMClassifier().partial_fit(convert(X), Y.tolist())
    assert type(clf.state_.classes[0].scatter.data) is type(convert(X))
    assert isinstance(clf.predict(Q), np.ndarray)
    assert isinstance(clf.decision_function(Q), np.ndarray)
    back = FeCAMClassifier().partial_fit(X, Y)
    assert type(back.decision_function(convert(Q))) is type(convert(Q))
    assert type(back.predict(convert(Q))) is type(convert(Q))
    both = FeCAMClassifier().partial_fit(X[:20], Y[:20])
    both.merge(FeCAMClassifier().partial_fit(convert(X[20:]), Y[20:]))
    np.testing.assert_allclose(
        both.decision_function(Q), clf.refresh().decision_function(Q), rtol=1e-3
    )


def test_strings_are_returned_as_numpy_arrays():
    clf = FeCAMClassifier().fit(torch.asarray(X), [f"class {k}" for k in Y])
    assert clf.predict(torch.asarray(Q)).dtype.kind == "U"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.uint8])
def test_tensors_of_other_dtypes_are_widened(dtype):
    tensor = torch.asarray(np.round(X * 4)).to(dtype)
    clf = FeCAMClassifier().fit(tensor, Y)
    expected = FeCAMClassifier().fit(np.round(X * 4), Y)
    np.testing.assert_allclose(
        clf.decision_function(tensor).numpy(),
        expected.decision_function(np.round(X * 4)),
        rtol=1e-3,
        atol=1e-5,
    )


def test_a_tensor_that_requires_a_gradient():
    tensor = torch.asarray(X).requires_grad_()
    clf = FeCAMClassifier().fit(tensor, Y)
    assert not clf.state_.classes[0].scatter.data.requires_grad, "it would hold on to the samples"
    assert clf.decision_function(tensor).shape == (48, 4)


def test_tensors_stay_on_their_device():
    """There is no GPU here; a device that computes nothing shows where tensors would go."""
    meta = torch.empty((3, 8), device="meta")
    from fecam.core.arrays import eye, to_backend_of, to_float64, zeros

    assert eye(3, meta).device.type == "meta"
    assert zeros((2, 2), meta).device.type == "meta"
    assert to_float64(meta).device.type == "meta" and to_float64(meta).dtype == torch.float64
    assert to_backend_of(np.ones((2, 2)), meta).device.type == "meta"


@pytest.mark.parametrize("make", [relu_features, signed_features])
def test_float64_in_and_float32_state_agree_with_float64_state(make):
    X, y = make(3, 30, 10, 4)
    X = X.astype(np.float64)
    single = FeCAMClassifier().fit(X, y).decision_function(X)
    double = FeCAMClassifier(dtype="float64").fit(X, y).decision_function(X)
    assert single.dtype == np.float32 and double.dtype == np.float64
    np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_can_be_moved(kind):
    clf = FeCAMClassifier.from_preset("paper").fit(X, Y)
    expected = clf.decision_function(Q)
    clf.to(KINDS[kind](Q))
    assert type(clf.state_.classes[0].scatter.data) is type(KINDS[kind](Q))
    np.testing.assert_allclose(clf.decision_function(Q), expected, rtol=1e-4)
    clf.to(Q)
    assert isinstance(clf.state_.classes[0].scatter.data, np.ndarray)


def test_a_label_may_be_a_tensor():
    clf = FeCAMClassifier().fit(X, Y).forget(torch.tensor(3)).forget(np.int64(0))
    assert clf.classes_.tolist() == [1, 2]


def test_a_model_moves_to_a_device_by_name():
    clf = FeCAMClassifier().fit(X, Y)
    expected = clf.predict(Q)
    assert isinstance(clf.to("cpu").state_.like, np.ndarray), "NumPy arrays are on the CPU"
    for device in (torch.device("cpu"), "cpu"):
        assert clf.to(device).state_.like.device == torch.device("cpu")
        np.testing.assert_array_equal(clf.predict(Q), expected)
    absent = ["cuda:99", "nonsense", 1.5, None] + ["cuda"] * (not torch.cuda.is_available())
    for device in absent:
        with pytest.raises(InputError, match=r"the device .* cannot be used: .*Use 'cpu'"):
            clf.to(device)
    np.testing.assert_array_equal(clf.predict(Q), expected)


@pytest.mark.parametrize("to_library", [np.asarray, torch.asarray, array_api_strict.asarray])
@pytest.mark.parametrize("size", [1, 64, 65, 150])
def test_a_cholesky_factor_and_its_inverse(size, to_library):
    rows = np.random.default_rng(size).normal(size=(size + 9, size))
    matrix = rows.T @ rows + np.eye(size)
    factors = cholesky_and_inverse(to_library(matrix))
    assert factors is not None
    lower, inverse = map(to_numpy, factors)
    np.testing.assert_allclose(lower, np.linalg.cholesky(matrix), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(inverse @ lower, np.eye(size), atol=1e-10)
    matrix[-1, -1] = -1
    assert cholesky_and_inverse(to_library(matrix)) is None
