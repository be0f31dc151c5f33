"""Analyses of features in the paper's figures: spectra of classes, and a t-SNE map."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.bench.preparation import PreparedScenario
from fecam.core.transforms import Transform

N_CLASSES = 10
"""Old classes, and as many new ones."""
N_SAMPLES = 60
"""Samples per class in the map."""
N_VALUES = 100
"""Singular values per class."""


def analyze(name: str, prepared: PreparedScenario) -> dict[str, Any]:
    """Return the record of an analysis, by its name in `fecam.bench.spec.ANALYSES`."""
    scenario = prepared.scenario
    old = scenario.base_classes[:N_CLASSES]
    new = scenario.class_order[len(scenario.base_classes) :][:N_CLASSES]
    data = {"singular-values": _singular_values, "tsne": _tsne}[name](prepared, old, new)
    return {"kind": "analysis", "name": name, "seed": scenario.seed, "data": data}


def _singular_values(
    prepared: PreparedScenario, old: tuple[int, ...], new: tuple[int, ...]
) -> dict[str, Any]:
    """Return the spectra of covariances, relative to the largest value: old ones fall faster."""

    def spectrum(X: NDArray[np.float32]) -> list[float]:
        centered = (X - X.mean(0)).astype(np.float64)
        values = np.linalg.svd(centered, compute_uv=False)[:N_VALUES] ** 2
        shares: list[float] = (values / max(values[0], np.finfo(float).tiny)).round(6).tolist()
        return shares

    return {
        name: [spectrum(_rows(prepared, label)) for label in labels]
        for name, labels in (("old", old), ("new", new))
    }


def _tsne(prepared: PreparedScenario, old: tuple[int, ...], new: tuple[int, ...]) -> dict[str, Any]:
    """Return samples in two dimensions, before and after Tukey's transform."""
    from sklearn.manifold import TSNE

    rows = {label: _rows(prepared, label)[:N_SAMPLES] for label in (*old, *new)}
    labels = [label for label in rows for _ in rows[label]]
    X = np.concatenate([*rows.values()])
    tsne = TSNE(
        perplexity=min(30.0, (len(X) - 1) / 3),
        random_state=prepared.scenario.seed,
        init="pca" if min(X.shape) > 1 else "random",
    )
    maps = {"before": tsne.fit_transform(X).round(3).tolist()}
    if X.min() >= 0:  # a power of a negative feature is not defined
        transformed = np.asarray(Transform(0.5, unit=False)(X))
        maps["after"] = tsne.fit_transform(transformed).round(3).tolist()
    return {**maps, "labels": labels, "is_new": [label in new for label in labels]}


def _rows(prepared: PreparedScenario, label: int) -> NDArray[np.float32]:
    """Return the training samples of a class."""
    labels = prepared.features.labels
    rows = np.concatenate([task.train[labels[task.train] == label] for task in prepared.scenario])
    return np.asarray(np.asarray(prepared.features.items)[rows], np.float32)
