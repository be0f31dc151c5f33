"""The handwritten digits of scikit-learn: ten classes."""

import numpy as np

from fecam.data.dataset import Dataset, fingerprint_of

_MAX_INK = 16
_SEED = 0


def load(*, as_features: bool = False) -> Dataset:
    """Return 1,797 digits, half of them for testing.

    Images are dark ink on white paper, (8, 8, 3); with ``as_features`` items are the 64 numbers of
    scikit-learn, from 0 (paper) to 16 (ink).
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    ink, labels = load_digits(return_X_y=True)
    rows = np.arange(len(labels))
    _, test = train_test_split(rows, test_size=0.5, stratify=labels, random_state=_SEED)
    is_test = np.isin(rows, test)
    if as_features:
        items = ink.astype(np.float32)
    else:
        paper = 255 - np.rint(ink * (255 / _MAX_INK)).astype(np.uint8)
        items = np.repeat(paper.reshape(-1, 8, 8, 1), 3, axis=3)
    return Dataset(
        name="digits",
        kind="features" if as_features else "images",
        items=items,
        labels=labels,
        label_names=tuple(str(digit) for digit in range(10)),
        fingerprint=fingerprint_of(["digits", items, labels.astype(np.int64), is_test]),
        is_test=is_test,
    )
