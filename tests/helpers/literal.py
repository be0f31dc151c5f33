"""The classifiers of the paper and of the public implementations, slow and to the letter.

Nothing here shares a line with the package: each function is a transcription of a description into
plain NumPy in double precision, one class and one step at a time, with a pseudo-inverse and the
N x N product of which only the diagonal is used.
"""

from __future__ import annotations

import numpy as np


def power(x, lam=0.5):
    return np.log(x) if lam == 0 else np.power(x, lam)


def to_unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def shrink(cov, g1, g2, nonzero):
    off = ~np.eye(len(cov), dtype=bool)
    entries = cov[off]
    if nonzero:
        entries = entries[entries != 0]
    v1 = np.mean(np.diag(cov))
    v2 = np.mean(entries) if len(entries) else 0.0
    eye = np.eye(len(cov))
    return cov + g1 * v1 * eye + g2 * v2 * (1 - eye)


def correlation(cov):
    out = np.empty_like(cov)
    deviation = np.sqrt(np.diag(cov))
    for i in range(len(cov)):
        for j in range(len(cov)):
            out[i, j] = cov[i, j] / (deviation[i] * deviation[j])
    return out


def mahalanobis(queries, centre, matrix):
    difference = queries - centre
    return np.diag(difference @ np.linalg.pinv(matrix) @ difference.T)


def by_label(X, y):
    return [(label, X[y == label].astype(np.float64)) for label in np.unique(y)]


def paper(X, y, Q, gammas=(1, 1), passes=1, nonzero=False, mean_of_transforms=False):
    """Algorithm 1, with unit length for query and prototype as in the authors' code."""
    columns = []
    queries = to_unit(power(Q.astype(np.float64)))
    for _, rows in by_label(X, y):
        prototype = power(rows).mean(axis=0) if mean_of_transforms else power(rows.mean(axis=0))
        cov = np.cov(power(rows), rowvar=False)
        for _ in range(passes):
            cov = shrink(cov, *gammas, nonzero)
        columns.append(mahalanobis(queries, to_unit(prototype), correlation(cov)))
    return np.stack(columns, axis=1)


def few_shot(X, y, Q):
    return paper(X, y, Q, gammas=(100, 100))


def official_resnet(X, y, Q):
    return paper(X, y, Q, passes=2, nonzero=True)


def avalanche(X, y, Q):
    return paper(X, y, Q, passes=2, nonzero=True, mean_of_transforms=True)


def vit(X, y, Q, nonzero=False):
    columns = []
    queries = to_unit(Q.astype(np.float64))
    for _, rows in by_label(X, y):
        features = to_unit(rows)
        cov = shrink(np.cov(features, rowvar=False), 1, 0, nonzero)
        columns.append(mahalanobis(queries, features.mean(axis=0), correlation(cov)))
    return np.stack(columns, axis=1)


def official_vit(X, y, Q):
    return vit(X, y, Q, nonzero=True)


def official_vit_domains(visits, Q):
    """Several visits (X, y): means pooled by count, matrices averaged after shrinkage."""
    count, mean, matrix = {}, {}, {}
    for X, y in visits:
        for label, rows in by_label(X, y):
            features = to_unit(rows)
            cov = shrink(np.cov(features, rowvar=False), 1, 0, True)
            if label not in count:
                count[label], mean[label], matrix[label] = len(rows), features.mean(axis=0), cov
                continue
            total = count[label] + len(rows)
            mean[label] = (count[label] * mean[label] + features.sum(axis=0)) / total
            matrix[label] = (matrix[label] + cov) / 2
            count[label] = total
    queries = to_unit(Q.astype(np.float64))
    columns = [mahalanobis(queries, mean[k], correlation(matrix[k])) for k in sorted(count)]
    return np.stack(columns, axis=1)


def ncm(X, y, Q):
    queries = Q.astype(np.float64)
    columns = [((queries - rows.mean(axis=0)) ** 2).sum(axis=1) for _, rows in by_label(X, y)]
    return np.stack(columns, axis=1)


def common(tasks, gammas):
    """Eq. 6 as the recursion it is written as, then Eq. 8; on features as they are."""
    running, seen = None, 0
    for X, y in tasks:
        fresh = len(np.unique(y))
        cov = np.cov(X.astype(np.float64), rowvar=False)
        if running is None:
            running = cov
        else:
            running = running * seen / (seen + fresh) + cov * fresh / (seen + fresh)
        seen += fresh
    return shrink(running, *gammas, False)


PRESETS = {
    "paper": paper,
    "few-shot": few_shot,
    "vit": vit,
    "official-resnet": official_resnet,
    "official-vit": official_vit,
    "avalanche": avalanche,
    "ncm": ncm,
}
