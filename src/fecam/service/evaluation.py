"""How well answers fit labels: what is right, what is mixed up with what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from fecam.model_file.records import Label


def evaluation(
    truths: Sequence[Label], said: Sequence[Label], known: Collection[Label]
) -> dict[str, Any]:
    """Counts of what was answered; labels that the model does not know cannot be right.

    >>> found = evaluation(["tit", "tit", "owl"], ["tit", "wren", "tit"], {"tit", "wren"})
    >>> found["accuracy"], found["unknown_labels"], found["confusions"]
    (0.3333333333333333, ['owl'], [['owl', 'tit', 1], ['tit', 'wren', 1]])
    """
    pairs = Counter(zip(truths, said, strict=True))
    counts = Counter(truths)
    right = {label: pairs[label, label] for label in counts}
    wrong = [(truth, other, n) for (truth, other), n in pairs.items() if truth != other]
    wrong.sort(key=lambda one: (-one[2], str(one[0]), str(one[1])))
    return {
        "accuracy": sum(right.values()) / len(truths) if truths else None,
        "count": len(truths),
        "unknown_labels": sorted(set(counts) - set(known), key=str),
        "per_class": {
            str(label): {"count": counts[label], "right": right[label]}
            for label in sorted(counts, key=str)
        },
        "confusions": [list(one) for one in wrong],
    }
