"""What the paper's figures show of features: spectra of old and new classes, and a map of some."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.bench.preparation import Prepared
from fecam.core.transforms import Transform

CLASSES = 10
"""So many old and so many new classes are looked at."""
SAMPLES = 60
"""Of each class, for the map."""


def analyse(name: str, prepared: Prepared) -> dict[str, Any]:
    """The record of one analysis, by its name in `fecam.bench.spec.ANALYSES`."""
    data = {"singular-values": spectra, "tsne": maps}[name](prepared)
    return {"kind": "analysis", "name": name, "seed": prepared.scenario.seed, "data": data}


def spectra(prepared: Prepared) -> dict[str, Any]:
    """Singular values of the covariance of some classes, of the largest: old ones fall faster."""
    old, new = _classes(prepared)
    return {
        name: [_singular_values(_rows(prepared, label)).round(6).tolist() for label in labels]
        for name, labels in (("old", old), ("new", new))
    }


def maps(prepared: Prepared) -> dict[str, Any]:
    """Samples of some classes in two dimensions, before and after Tukey's transform."""
    from sklearn.manifold import TSNE

    old, new = _classes(prepared)
    rows, labels = [], []
    for label in (*old, *new):
        some = _rows(prepared, label)[:SAMPLES]
        rows.append(some)
        labels += [label] * len(some)
    X = np.concatenate(rows)
    draw = TSNE(
        perplexity=min(30.0, (len(X) - 1) / 3),
        random_state=prepared.scenario.seed,
        init="pca" if min(X.shape) > 1 else "random",
    )
    found = {"before": draw.fit_transform(X).round(3).tolist()}
    if X.min() >= 0:  # a power of a negative feature is not defined
        transformed = np.asarray(Transform(0.5, unit=False)(X))
        found["after"] = draw.fit_transform(transformed).round(3).tolist()
    return {**found, "labels": labels, "is_new": [label in new for label in labels]}


def _classes(prepared: Prepared) -> tuple[tuple[int, ...], tuple[int, ...]]:
    scenario = prepared.scenario
    later = scenario.class_order[len(scenario.base_classes) :]
    return scenario.base_classes[:CLASSES], later[:CLASSES]


def _rows(prepared: Prepared, label: int) -> NDArray[np.float32]:
    """The training samples of a class in the scenario."""
    labels = prepared.features.labels
    rows = np.concatenate([task.train[labels[task.train] == label] for task in prepared.scenario])
    return np.asarray(np.asarray(prepared.features.items)[rows], np.float32)


def _singular_values(X: NDArray[np.float32], most: int = 100) -> NDArray[np.float64]:
    centred = (X - X.mean(0)).astype(np.float64)
    values: NDArray[np.float64] = np.linalg.svd(centred, compute_uv=False) ** 2
    shares: NDArray[np.float64] = values[:most] / max(values[0], np.finfo(float).tiny)
    return shares
