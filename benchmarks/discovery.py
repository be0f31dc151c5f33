"""Groups of unknown items: purity, NMI and the share of unknown classes found.

    python benchmarks/discovery.py [--quick] [--root FOLDER] [NAME ...]

Sets that are not named keep the results of an earlier run.

A fifth of the classes, at random, is unknown; a default classifier learns the training samples of
the others. The test samples of all classes are then grouped by `fecam.discovery.discover`, and, in
the same run and on raw features: all test samples whose novelty exceeds the threshold of
``reject=0.05`` by k-means, whose number of clusters is the true number of unknown classes, and by
HDBSCAN. The same for the threshold that `discover` uses. Groups below five samples do not count.

Purity is the share of the grouped samples that are of the most frequent class of their group;
known classes count as wrong. NMI is over all unknown samples, each ungrouped one as a group of its
own. An unknown class is found if at least half of a group is of it, and the group has at least a
quarter of its test samples. ``--root`` is the folder of CIFAR-100 (``cifar-100-python``).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.cluster import HDBSCAN, KMeans
from sklearn.metrics import normalized_mutual_info_score

import feature_sets
from fecam import FeCAMClassifier
from fecam.core.novelty import novelty_threshold
from fecam.discovery import CANDIDATES, discover
from reporting import markdown, once, options, read, say, write
from stamps import CLASSIFIER

SETS = ("glyphs", "cifar100")
MIN_SIZE = 5
PER_CLASS, TEST_PER_CLASS = 100, 40
"""Maximum number of training and of test samples per class."""
SEEDS = 3
REJECTS = (0.05, CANDIDATES)


def setting(name: str, seed: int) -> tuple[FeCAMClassifier, Any, Any, Any]:
    """Return a classifier without a fifth of the classes, test samples and the unknown labels."""
    features = feature_sets.load(name)
    labels = np.unique(features.y_train)
    unknown = np.random.default_rng(seed).permutation(labels)[: max(len(labels) // 5, 1)]
    rows = np.concatenate(
        [
            np.flatnonzero(features.y_train == label)[:PER_CLASS]
            for label in labels
            if label not in unknown
        ]
    )
    clf = FeCAMClassifier().fit(features.X_train[rows], features.y_train[rows])
    tested = np.concatenate(
        [np.flatnonzero(features.y_test == label)[:TEST_PER_CLASS] for label in labels]
    )
    return clf, features.X_test[tested], features.y_test[tested], unknown


def scores(groups: np.ndarray, y: np.ndarray, unknown: np.ndarray) -> dict[str, float]:
    """Return purity, NMI, found classes and the number of groups; -1 stands for no group."""
    groups = groups.copy()
    for number in np.unique(groups[groups >= 0]):
        if np.sum(groups == number) < MIN_SIZE:
            groups[groups == number] = -1
    is_unknown = np.isin(y, unknown)
    right, found = 0, set[int]()
    numbers = np.unique(groups[groups >= 0])
    for number in numbers:
        inside = y[groups == number]
        classes, counts = np.unique(inside, return_counts=True)
        label, count = classes[counts.argmax()], counts.max()
        if label not in unknown:
            continue
        right += count
        if count >= len(inside) / 2 and count >= np.sum(y == label) / 4:
            found.add(int(label))
    n_grouped = int(np.sum(groups >= 0))
    alone = np.where(groups < 0, np.arange(len(y)) + len(y), groups)
    return {
        "groups": len(numbers),
        "purity": right / max(n_grouped, 1),
        "nmi": float(normalized_mutual_info_score(y[is_unknown], alone[is_unknown])),
        "found": len(found) / len(unknown),
        "grouped": float(np.mean(groups[is_unknown] >= 0)),
    }


def measure(name: str, seed: int) -> dict[str, dict[str, float]]:
    """Return the scores of all methods for one choice of unknown classes."""
    say(f"{name}, seed {seed}")
    clf, X, y, unknown = setting(name, seed)
    result = {}
    found: list[Any] = []
    seconds = once(lambda: found.append(discover(clf, X, min_size=MIN_SIZE)))
    groups = np.full(len(y), -1)
    for group in found[0].groups:
        groups[group.items] = group.number
    result["discover"] = {**scores(groups, y, unknown), "seconds": seconds}
    novelty = clf.novelty(X)
    for reject in REJECTS:
        rows = np.flatnonzero(novelty > novelty_threshold(reject))
        methods = {
            "k-means": KMeans(min(len(unknown), len(rows)), n_init=3, random_state=0),
            "HDBSCAN": HDBSCAN(min_cluster_size=MIN_SIZE, copy=True),
        }
        for method, model in methods.items():
            groups = np.full(len(y), -1)
            groups[rows] = model.fit_predict(X[rows])
            result[f"{method}, {100 * reject:g} %"] = scores(groups, y, unknown)
    return result


def table(results: dict[str, list[dict[str, dict[str, float]]]]) -> str:
    """One row per set and method: means over seeds."""
    rows = []
    for name, runs in results.items():
        for method in runs[0]:
            mean = {key: np.mean([run[method][key] for run in runs]) for key in runs[0][method]}
            rows.append(
                [
                    name,
                    method,
                    f"{mean['groups']:.0f}",
                    f"{100 * mean['purity']:.1f}",
                    f"{100 * mean['nmi']:.1f}",
                    f"{100 * mean['found']:.1f}",
                    f"{100 * mean['grouped']:.1f}",
                ]
            )
    header = ["features", "method", "groups", "purity %", "NMI %", "unknown classes found %"]
    return markdown([*header, "unknown items grouped %"], rows)


def main() -> None:
    """Measure, print a table, write results."""
    parser = options(__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", choices=[[], *SETS], help="a set")
    parser.add_argument("--root", help="folder of CIFAR-100")
    args = parser.parse_args()
    if args.root:
        os.environ["FECAM_CIFAR100"] = args.root
    names = ["digits"] if args.quick else args.names or SETS
    results = {} if args.quick else dict((read("discovery") or {"results": {}})["results"])
    results |= {name: [measure(name, seed) for seed in range(SEEDS)] for name in names}
    results = {name: results[name] for name in ("digits", *SETS) if name in results}
    told = table(results)
    print(told)
    paths = (*CLASSIFIER, "src/fecam/discovery.py")
    write("discovery", told, {"results": results}, quick=args.quick, measures=paths)


if __name__ == "__main__":
    main()
