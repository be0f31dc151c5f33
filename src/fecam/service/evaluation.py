"""Accuracy, counts per class and confusions of predicted labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from fecam.results import Label


def evaluation(
    truths: Sequence[Label], predicted: Sequence[Label], classes: Collection[Label]
) -> dict[str, Any]:
    """Return the body of an evaluation; labels that are not in ``classes`` count as wrong.

    >>> result = evaluation(["tit", "tit", "owl"], ["tit", "wren", "tit"], {"tit", "wren"})
    >>> result["accuracy"], result["unknown_labels"], result["confusions"]
    (0.3333333333333333, ['owl'], [['owl', 'tit', 1], ['tit', 'wren', 1]])
    """
    pairs, counts = Counter(zip(truths, predicted, strict=True)), Counter(truths)
    right = {label: pairs[label, label] for label in counts}
    wrong = [(truth, other, n) for (truth, other), n in pairs.items() if truth != other]
    wrong.sort(key=lambda confusion: (-confusion[2], str(confusion[0]), str(confusion[1])))
    return {
        "accuracy": sum(right.values()) / len(truths) if truths else None,
        "count": len(truths),
        "unknown_labels": sorted(set(counts) - set(classes), key=str),
        "per_class": {
            str(label): {"count": counts[label], "right": right[label]}
            for label in sorted(counts, key=str)
        },
        "confusions": list(map(list, wrong)),
    }
