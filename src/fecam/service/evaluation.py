"""The evaluation of predictions on labeled items."""

from collections import Counter
from collections.abc import Collection, Sequence

from fecam.results import Evaluation, Label


def evaluate(
    truths: Sequence[Label],
    predicted: Sequence[Label],
    classes: Collection[Label],
    unreadable: list[str],
) -> Evaluation:
    """Return accuracy and confusions; labels that are not in ``classes`` count as wrong.

    >>> result = evaluate(["tit", "tit", "owl"], ["tit", "wren", "tit"], {"tit", "wren"}, [])
    >>> result.accuracy, result.unknown_labels, result.confusions
    (0.3333333333333333, ['owl'], [['owl', 'tit', 1], ['tit', 'wren', 1]])
    """
    pairs, counts = Counter(zip(truths, predicted, strict=True)), Counter(truths)
    right = {label: pairs[label, label] for label in counts}
    wrong = [[truth, other, n] for (truth, other), n in pairs.items() if truth != other]
    return Evaluation(
        accuracy=sum(right.values()) / len(truths) if truths else None,
        count=len(truths),
        unknown_labels=sorted(set(counts) - set(classes), key=str),
        per_class={
            label: {"count": counts[label], "right": right[label]}
            for label in sorted(counts, key=str)
        },
        confusions=sorted(wrong, key=lambda row: (-int(row[2]), str(row[0]), str(row[1]))),
        unreadable=unreadable,
    )
