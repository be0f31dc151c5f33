"""`ReadableModel`: a model file, its encoder and the predictions for raw items."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier
from fecam.core.novelty import novelty_threshold
from fecam.data.dataset import Dataset
from fecam.data.items import as_rows, as_sequence
from fecam.discovery import discover
from fecam.encoders.catalogue import load as load_encoder
from fecam.encoders.encoder import Encoder
from fecam.errors import EncoderError, InputError, ModelFileError, UnknownLabelError
from fecam.features.extraction import Report, encode_dataset, encode_readable, extract
from fecam.labels import first_kind, parse_label
from fecam.model.changes import unseen_mask
from fecam.model.encoder_checks import check_encoder, check_fingerprint, load_recorded
from fecam.model.labeled_items import LabeledItems, label_dataset, label_items, require_readable
from fecam.model_file import EncoderRecord
from fecam.model_file.file import ModelFile
from fecam.model_file.snapshot import Snapshot, row_hashes
from fecam.results import (
    Candidate,
    ClassRecord,
    Discovery,
    Explanation,
    Label,
    Prediction,
    Step,
    Suggestion,
    Suspect,
)
from fecam.suggestion import find_mislabeled, suggest
from fecam.validation import check_int, counted, suggestion

DEFAULT_ENCODERS = {"images": "efficientnet-lite0", "texts": "minilm"}
"""The encoder of a new model, by the kind of its items."""


class ReadableModel:
    """A model in a file, of which nothing changes; the file of a new model does not exist yet."""

    def __init__(
        self, path: Path, *, encoder: str | Encoder | None = None, device: Any = None
    ) -> None:
        self.path = path
        check_encoder(encoder)
        self._requested, self._device = encoder, device
        self._encoder: Encoder | None = encoder if isinstance(encoder, Encoder) else None
        self._file: ModelFile | None = None
        if path.exists():
            self._open_file()

    # ------------------------------------------------------------------ state

    @property
    def exists(self) -> bool:
        """Whether the file exists; that of a new model does not before the first `learn`."""
        return self._file is not None

    @property
    def snapshot(self) -> Snapshot | None:
        """Immutable content of the file when it was last read; None without a file."""
        return None if self._file is None else self._file.snapshot

    @property
    def classifier(self) -> FeCAMClassifier:
        """The current classifier. Changes of the model replace it and do not modify it."""
        return self._opened.snapshot.classifier

    @property
    def classes(self) -> list[ClassRecord]:
        """Facts about each class, in the order of the labels."""
        return [] if self.snapshot is None else self.snapshot.classes

    @property
    def version(self) -> int:
        """Number that grows with every change by any program; 0 before the first."""
        return 0 if self.snapshot is None else self.snapshot.version

    @property
    def steps(self) -> list[Step]:
        """History of the model, the last step first."""
        return [] if self._file is None else self._file.steps

    @property
    def encoder_record(self) -> EncoderRecord | None:
        """Name and fingerprint of the encoder in the file."""
        return None if self.snapshot is None else self.snapshot.encoder

    @property
    def kind(self) -> str | None:
        """Kind of the items: images, texts or features; None if it is not determined yet."""
        if self._file is not None:
            return "features" if self.encoder_record is None else self.encoder_record.kind
        return None if self._requested is None else self._new_encoder("images").kind

    @property
    def encoder(self) -> Encoder | None:
        """The encoder, loaded at the first use; None for a model of features."""
        if self._encoder is None and (record := self.encoder_record) is not None:
            self._encoder = load_recorded(self.path, record, self._load_encoder)
        return self._encoder

    def label_of(self, text: str) -> Label:
        """Return the label whose text this is.

        Parameters
        ----------
        text : str
            The label as a text, such as "7" for the integer 7, or "true".

        Returns
        -------
        str, int or bool
            The label.

        Raises
        ------
        UnknownLabelError
            If no class has it.
        """
        by_text = {str(record.label): record.label for record in self.classes}
        with suppress(InputError):
            label = parse_label(text, first_kind(by_text.values()))
            if label in by_text.values():
                return label
        raise UnknownLabelError(
            f"{self.path} has no class {text!r}.{suggestion(text, by_text)} "
            f"`fecam classes -m {self.path}` lists its {counted(len(by_text), 'class')}."
        )

    def reload(self) -> bool:
        """Read the changes of other programs.

        Returns
        -------
        bool
            Whether there were any.
        """
        if self._file is not None:
            return self._file.reload()
        if not self.path.exists():
            return False
        self._open_file()
        return True

    # ------------------------------------------------------------------ predictions

    def encode(self, items: Any) -> NDArray[Any]:
        """Return the features of items.

        Parameters
        ----------
        items : sequence
            Images, texts or rows of features.

        Returns
        -------
        ndarray of shape (n_items, n_features)
            The features.

        Raises
        ------
        InputError
            If an item cannot be read.
        """
        if self.encoder is None:
            return as_rows(items, self._opened.snapshot.layout.n_features_in)
        return require_readable(encode_readable(as_sequence(items), self.encoder)).features

    def features_of(
        self, dataset: Dataset, *, strict: bool = False, report: Report | None = None
    ) -> Dataset:
        """Return a data set of the features of a data set, through the cache.

        Parameters
        ----------
        dataset : Dataset
            Items of the kind of the model, or features.
        strict : bool, default=False
            Raise for an item that cannot be read.
        report : callable, optional
            Called with the progress.

        Returns
        -------
        Dataset
            The features.
        """
        if dataset.kind == "features":
            as_rows(dataset.items, self._opened.snapshot.layout.n_features_in)
            return dataset
        encoder = self._encoder_for(dataset.kind)
        assert encoder is not None, "the kind was checked"
        return extract(
            dataset, encoder, report=report, strict=strict, cache=bool(encoder.fingerprint)
        )

    def predict(self, items: Any, *, reject: float | None = None) -> list[Label | None]:
        """Return the nearest class of each item.

        Parameters
        ----------
        items : sequence
            Images, texts or rows of features.
        reject : float, optional
            Share of items of known classes that may be rejected by mistake, such as 0.05.

        Returns
        -------
        list
            Labels; None for rejected items.
        """
        return list(self.classifier.predict(self.encode(items), reject=reject).tolist())

    def predict_detailed(
        self, items: Any, *, k: int = 1, reject: float | None = None
    ) -> list[Prediction]:
        """Return label, novelty and the nearest classes of each item, with probabilities.

        Parameters
        ----------
        items : sequence
            Images, texts or rows of features.
        k : int, default=1
            Number of nearest classes.
        reject : float, optional
            As for `predict`.

        Returns
        -------
        list of Prediction
            One per item.
        """
        return predictions_of(self.classifier, self.encode(items), k, reject)

    def explain(
        self, item: Any, *, k: int = 3, label: Hashable = None, n_parts: int = 5
    ) -> Explanation:
        """Return why an item is predicted as its class.

        Parameters
        ----------
        item : image, str or array
            One image, text or row of features.
        k, label, n_parts : see `FeCAMClassifier.explain`
            As for `FeCAMClassifier.explain`.

        Returns
        -------
        Explanation
            Nearest classes, novelty, and what the distances consist of.
        """
        return self.classifier.explain(self.encode([item])[0], k=k, label=label, n_parts=n_parts)

    def discover(self, items: Any, *, reject: float = 0.2, min_size: int = 5) -> Discovery:
        """Group the items that fit no class into candidates for new classes.

        To teach a group, learn its items:
        ``model.learn([items[i] for i in group.items], ["crow"] * len(group.items))``.

        Parameters
        ----------
        items : sequence
            Images, texts or rows of features.
        reject, min_size : see `fecam.discovery.discover`
            As for `fecam.discovery.discover`.

        Returns
        -------
        Discovery
            Groups of positions in ``items``.

        Raises
        ------
        InputError
            If there are no items, or the model cannot tell yet.
        """
        return discover(
            self.classifier, self._features_of_some(items), reject=reject, min_size=min_size
        )

    def suggest(self, items: Any, n: int = 20) -> list[Suggestion]:
        """Return the items to label next.

        Parameters
        ----------
        items : sequence
            Images, texts or rows of features without labels.
        n : int, default=20
            Number of items.

        Returns
        -------
        list of Suggestion
            The most useful items; all of them if there are fewer.

        Raises
        ------
        InputError
            If there are no items.
        """
        return suggest(self.classifier, self._features_of_some(items), n)

    def find_mislabeled(
        self, items: Any, labels: Sequence[Any], *, features: NDArray[Any] | None = None
    ) -> list[Suspect]:
        """Return labeled items whose label looks wrong, the most suspicious first.

        Items that the model has learned under their label are measured as if they had been left
        out.

        Parameters
        ----------
        items : sequence
            Images, texts or rows of features.
        labels : sequence of str, int or bool
            One label per item.
        features : array of shape (n_items, n_features), optional
            Features of the items, if they are encoded already.

        Returns
        -------
        list of Suspect
            Items that another class explains better.
        """
        batch = self._labeled_items(items, labels)
        snapshot = self._opened.snapshot
        unseen = unseen_mask(batch.labels, batch.content_hashes, row_hashes(snapshot.rows))
        features = self.encode(items) if features is None else features
        return find_mislabeled(self.classifier, features, batch.labels, learned=~unseen)

    def encode_readable(
        self, dataset: Dataset, *, report: Report | None = None
    ) -> tuple[NDArray[Any], list[int], list[str]]:
        """Return the features of the readable items of a data set, through the cache.

        Parameters
        ----------
        dataset : Dataset
            Items of the kind of the model.
        report : callable, optional
            Called with the progress.

        Returns
        -------
        tuple
            The features, the index of the item of each row, and why the others cannot be read.
        """
        encoder = self._encoder_for(dataset.kind)
        if encoder is None:
            rows = as_rows(dataset.items, self._opened.snapshot.layout.n_features_in)
            return rows, [*range(len(rows))], []
        encoded = encode_dataset(
            dataset, encoder, strict=False, report=report, cache=bool(encoder.fingerprint)
        )
        return encoded.features, encoded.rows, list(encoded.failed.values())

    # ------------------------------------------------------------------ context

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        content = counted(len(self.classes), "class") if self.exists else "not written yet"
        return f"<model {self.path}: {content}>"

    # ------------------------------------------------------------------ private

    @property
    def _opened(self) -> ModelFile:
        if self._file is None:
            raise ModelFileError(
                f"{self.path} has no class yet: call model.learn(items, labels) first."
            )
        return self._file

    @property
    def _n_features(self) -> int | None:
        return None if self.snapshot is None else self.snapshot.layout.n_features_in

    def _open_file(self) -> None:
        """Open the file; raise if it was learned with another encoder than the requested one."""
        self._file = ModelFile(self.path)
        record, requested = self.encoder_record, self._requested
        if requested is None:
            return
        if record is None:
            raise EncoderError(
                f"{self.path} was learned with features, without an encoder. Leave encoder out."
            )
        if not isinstance(requested, Encoder) and requested != record.name:
            requested = self._encoder = self._load_encoder(requested)
        if isinstance(requested, Encoder):
            check_fingerprint(self.path, requested, record)

    def _load_encoder(self, name: str) -> Encoder:
        return load_encoder(name, device=self._device)

    def _new_encoder(self, kind: str) -> Encoder:
        if self._encoder is None:
            name = self._requested if isinstance(self._requested, str) else DEFAULT_ENCODERS[kind]
            self._encoder = self._load_encoder(name)
        return self._encoder

    def _encoder_for(self, kind: str) -> Encoder | None:
        """Return the encoder of the model, or of a new one; raise if it is for another kind."""
        is_new = self._file is None and (kind != "features" or self._requested is not None)
        encoder = self._new_encoder(kind) if is_new else self.encoder
        if encoder is None and kind != "features":
            raise InputError(
                f"{self.path} was learned with features, without an encoder; these are {kind}. "
                "Encode them with the same encoder, or use another file."
            )
        if encoder is not None and encoder.kind != kind:
            raise InputError(
                f"{self.path} takes {encoder.kind}, by the encoder {encoder.name}; these are "
                f"{kind}. Use another file."
            )
        return encoder

    def _features_of_some(self, items: Any) -> NDArray[Any]:
        """Return the features of items; raise if there are none."""
        if not len(as_sequence(items)):
            raise InputError("there are no items. Give at least one.")
        return self.encode(items)

    def _labeled_items(
        self, items: Any, labels: Sequence[Any] | None, kind: str | None = None
    ) -> LabeledItems:
        learned = [record.label for record in self.classes]
        if isinstance(items, Dataset):
            return label_dataset(items, first_kind(learned), str(self.path))
        expected = self.kind
        if kind is not None and expected not in (None, kind):
            raise InputError(f"{self.path} takes {expected}; these are {kind}. Use another file.")
        return label_items(items, labels, kind or expected, learned, self._n_features)


def predictions_of(
    classifier: FeCAMClassifier, X: Any, k: int = 1, reject: float | None = None
) -> list[Prediction]:
    """Return a prediction per row of features.

    Parameters
    ----------
    classifier : FeCAMClassifier
        The classifier.
    X : array of shape (n_rows, n_features)
        Features.
    k : int, default=1
        Number of nearest classes; all of them if there are fewer.
    reject : float, optional
        Share of rows of known classes that may be rejected by mistake, such as 0.05.

    Returns
    -------
    list of Prediction
        One per row.

    Examples
    --------
    >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [0.2, 1.0], [1.0, 0.0]], ["cat", "cat", "dog"])
    >>> [near.label for near in predictions_of(clf, [[0.1, 0.9]], k=2)[0].nearest]
    ['cat', 'dog']
    """
    check_int("k", k, error=InputError)
    results = classifier.predict_detailed(X, min(k, len(classifier.state_.classes)))
    threshold = np.inf if reject is None else novelty_threshold(reject)
    return [
        Prediction(
            None if novelty > threshold else labels[0],
            novelty,
            [Candidate(*values) for values in zip(labels, probabilities, distances, strict=True)],
        )
        for labels, distances, probabilities, novelty in zip(
            *(values.tolist() for values in results), strict=True
        )
    ]
