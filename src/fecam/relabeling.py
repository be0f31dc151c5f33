"""New labels for learned classes: the mappings that `rename` and `join` apply to a state."""

from collections.abc import Hashable, Mapping, Sequence

from fecam.core.state import ClassifierState
from fecam.errors import InputError
from fecam.labels import check_same_kind, kind_of_label
from fecam.validation import counted


def renaming(state: ClassifierState, label: Hashable, new: Hashable) -> Mapping[Hashable, Hashable]:
    """Return the mapping that gives a class another label; raise if another class has it."""
    state.stats_of(label)
    if new in state.classes and new != label:
        raise InputError(
            f"{label!r} cannot be renamed to {new!r}, which is another class. Join the classes, or "
            "choose another label."
        )
    _check_label(state, [label], new)
    return {label: new}


def joining(
    state: ClassifierState, labels: Sequence[Hashable], new: Hashable
) -> Mapping[Hashable, Hashable]:
    """Return the mapping that gives classes one label, with the class that has it already."""
    joined = {label: new for label in labels}
    for label in joined:
        state.stats_of(label)
    if new in state.classes:
        joined[new] = new
    if len(joined) < 2:
        raise InputError(
            f"{counted(len(joined), 'class')} cannot be joined into {new!r}: name two classes or "
            "more. To change a label, rename the class."
        )
    _check_label(state, list(joined), new)
    return joined


def relabeled_priors(
    priors: Mapping[Hashable, float], names: Mapping[Hashable, Hashable]
) -> dict[Hashable, float]:
    """Return prior weights by new labels; a joined class has the weights of its classes together.

    A class without a weight has the weight 1.

    >>> relabeled_priors({"crow": 3.0}, {"crow": "corvid", "raven": "corvid"})
    {'corvid': 4.0}
    """
    weights = {label: weight for label, weight in priors.items() if label not in names}
    if not names.keys() & priors.keys():
        return weights
    for label, name in names.items():
        weights[name] = weights.get(name, 0.0) + priors.get(label, 1.0)
    return weights


def _check_label(state: ClassifierState, replaced: Sequence[Hashable], new: Hashable) -> None:
    """Raise unless the label can stand beside those of the other classes."""
    if kind_of_label(new) is None:
        raise InputError(f"the label {new!r} must be a boolean, an integer or a string.")
    check_same_kind([new], [label for label in state.classes if label not in replaced])
