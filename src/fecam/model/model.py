"""`Model`: an encoder, a classifier and the file that keeps what it has learned.

Each method that changes the model is one transaction on its file: when it returns, the change is on
the disk; when it raises, nothing has changed.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier
from fecam.core.novelty import novelty_threshold
from fecam.data.content_hashes import content_hashes
from fecam.data.dataset import Dataset
from fecam.data.items import as_rows, as_sequence, kind_of
from fecam.discovery import discover
from fecam.encoders.catalogue import load as load_encoder
from fecam.encoders.encoder import Encoder
from fecam.errors import EncoderError, InputError, ModelFileError, UnknownLabelError
from fecam.features.extraction import Report, encode_dataset, encode_readable, extract
from fecam.labels import check_same_kind, first_kind, parse_label
from fecam.model.changes import (
    add_model,
    add_samples,
    copy_provenance,
    move_provenance,
    remove_samples,
    unseen_mask,
)
from fecam.model.encoder_checks import (
    check_encoder,
    check_fingerprint,
    check_same_encoder,
    load_recorded,
    record_of,
)
from fecam.model.labeled_items import LabeledItems, as_labels, require_readable
from fecam.model_file import EncoderRecord
from fecam.model_file.creation import create_file
from fecam.model_file.file import ModelFile, translate_errors
from fecam.model_file.snapshot import Snapshot, row_hashes
from fecam.model_file.writing import WorkingCopy
from fecam.results import (
    Candidate,
    ClassRecord,
    Discovery,
    Explanation,
    Label,
    LearnResult,
    Prediction,
    Step,
    Suggestion,
    Suspect,
)
from fecam.suggestion import find_mislabeled, suggest
from fecam.validation import check_int, counted, suggestion

if TYPE_CHECKING:
    from fecam.model.migration import MigrationResult

DEFAULT_ENCODERS = {"images": "efficientnet-lite0", "texts": "minilm"}
"""The encoder of a new model, by the kind of its items."""


class Model:
    """A model in a file; ``fecam.open`` is this class.

    The file of a new model is created by the first `learn`.

    Parameters
    ----------
    path : path-like
        A ``.fecam`` file. Several programs may have it open.
    encoder : str or Encoder, optional
        A name for `fecam.encoders.load`, or an encoder. A file stores the name. Your own encoder,
        such as one of `fecam.encoders.wrap`, is passed each time and must have the stored
        fingerprint. The default of a new model is
        EfficientNet-Lite0 for images, MiniLM for texts and none for features.
    device : str, optional
        Device of the encoder. Default: a GPU if there is one.
    readonly : bool, default=False
        Raise on changes, and if there is no file.
    settings : mapping, optional
        Parameters of `FeCAMClassifier` for a new file, such as ``fecam.presets.preset("paper")``.

    Raises
    ------
    ModelFileError
        If the file is damaged, missing with ``readonly``, or cannot be created.
    EncoderError
        If ``encoder`` is not the one of the file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Model(folder + "/m.fecam") as model:
    ...     result = model.learn([[0.0, 1.0], [0.1, 1.0], [1.0, 0.1]], ["tit", "tit", "wren"])
    ...     result.n_learned, model.predict([[0.1, 0.9]])
    ({'tit': 2, 'wren': 1}, ['tit'])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        encoder: str | Encoder | None = None,
        device: Any = None,
        readonly: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = Path(path)
        self.readonly = readonly
        check_encoder(encoder)
        self._requested, self._device, self._settings = encoder, device, dict(settings or {})
        self._encoder: Encoder | None = encoder if isinstance(encoder, Encoder) else None
        self._file: ModelFile | None = None
        if self.path.exists():
            self._open_file()
        elif readonly:
            raise ModelFileError(
                f"{self.path}: there is no such file. Check the path, or learn a new model: "
                f"fecam learn FOLDER -m {self.path}"
            )
        else:  # raise before the work
            FeCAMClassifier(**self._settings)
            _check_folder(self.path)

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
            self._encoder = load_recorded(self.path, record, load_encoder, self._device)
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

    # ------------------------------------------------------------------ changes

    def learn(
        self,
        items: Any,
        labels: Sequence[Any] | None = None,
        *,
        note: str = "",
        allow_duplicates: bool = False,
        idempotency_key: str = "",
        author: str = "",
        strict: bool | None = None,
        kind: str | None = None,
        report: Report | None = None,
    ) -> LearnResult:
        """Learn labeled items in one step.

        Parameters
        ----------
        items : sequence or Dataset
            Images (paths, bytes, Pillow images, arrays), texts or rows of features. Of a data set
            the training part is learned, and its features are cached: after an interruption the
            next call continues.
        labels : sequence of str, int or bool
            One label per item, all of one type, which predictions have too. A data set has its
            own; they are converted if the model has another type.
        note : str, default=""
            Kept in the history.
        allow_duplicates : bool, default=False
            Also learn items that were learned before under the same label.
        idempotency_key : str, default=""
            A second call with the same key changes nothing and returns the first step.
        author : str, default=""
            Who makes the change; kept in the history.
        strict : bool, optional
            Raise for an item that cannot be read, instead of listing it in the result. Default:
            True for items, False for a data set.
        kind : {"images", "texts", "features"}, optional
            Set it for items of unknown origin: otherwise a text may be read as an image path.
        report : callable, optional
            Called with the progress of a data set.

        Returns
        -------
        LearnResult
            Counts of learned items and duplicates.

        Raises
        ------
        InputError
            If the items or labels cannot be used.
        ModelFileError
            If the file cannot be written.
        """
        start = time.monotonic()
        batch = self._labeled_items(items, labels, kind)
        if self.readonly or self.exists:
            self._writable()
        self.reload()
        if self._file is not None and (step := self._file.find_step(idempotency_key)) is not None:
            counts = {label: count for label, count in step.counts.items() if count > 0}
            return self._result(start, step, counts)
        encoder = self._encoder_for(batch.kind)
        before = {} if self.snapshot is None else self.snapshot.rows
        learned, duplicates = Counter[Label](), Counter[Label]()
        new_step, unreadable = None, list[str]()
        if not allow_duplicates:  # before they are encoded; the transaction checks again
            mask = unseen_mask(batch.labels, batch.content_hashes, row_hashes(before))
            duplicates.update(_labels_of(batch, ~mask))
            batch = batch.subset(mask)
        if len(batch):
            strict = not isinstance(items, Dataset) if strict is None else strict
            X, batch, unreadable = batch.encode(encoder, strict, report, self._n_features)
        if len(batch):
            mask = np.ones(len(batch), bool)

            def change(working: WorkingCopy) -> None:
                mask[:] = add_samples(
                    working,
                    X,
                    batch.labels,
                    batch.content_hashes,
                    allow_duplicates=allow_duplicates,
                )

            if self._file is not None:
                new_step = self._writable().write(
                    "learn", change, note, idempotency_key=idempotency_key, author=author
                )
            else:
                working = WorkingCopy(FeCAMClassifier(**self._settings), encoder=record_of(encoder))
                change(working)
                new_step = self._create(working, "learn", note, idempotency_key, author)
            learned.update(_labels_of(batch, mask))
            duplicates.update(_labels_of(batch, ~mask))
        new = [label for label in learned if label not in before]
        return self._result(start, new_step, learned, duplicates, unreadable, new)

    def unlearn(
        self,
        items: Any,
        labels: Sequence[Any] | None = None,
        *,
        strict: bool | None = None,
        report: Report | None = None,
    ) -> LearnResult:
        """Remove items from the statistics, exactly; a class without samples is removed.

        Parameters
        ----------
        items, labels, strict, report : see `learn`
            As for `learn`.

        Returns
        -------
        LearnResult
            Counts of unlearned items.

        Raises
        ------
        InputError
            If an item was not learned under its label.
        """
        start = time.monotonic()
        batch = self._labeled_items(items, labels)
        self._writable()
        self.reload()
        strict = not isinstance(items, Dataset) if strict is None else strict
        encoder = self._encoder_for(batch.kind)
        X, batch, unreadable = batch.encode(encoder, strict, report, self._n_features)

        def change(working: WorkingCopy) -> None:
            remove_samples(working, X, batch.labels, batch.content_hashes, self.path)

        step = self._writable().write("unlearn", change) if len(batch) else None
        return self._result(start, step, Counter(batch.labels), unreadable=unreadable)

    def forget(
        self, label: Hashable, *, purge: bool = False, note: str = "", author: str = ""
    ) -> Step:
        """Remove a class.

        Parameters
        ----------
        label : str, int or bool
            The class.
        purge : bool, default=False
            Also remove it from the history, so that it cannot be restored by `undo`.
        note, author : str, default=""
            Kept in the history.

        Returns
        -------
        Step
            The step in the history.

        Raises
        ------
        UnknownLabelError
            If there is no such class.
        """
        plain: Any = label.item() if hasattr(label, "item") else label

        def change(working: WorkingCopy) -> None:
            working.classifier.forget(plain)

        step = self._writable().write("forget", change, note, purge=purge, author=author)
        assert step is not None, "an unknown label is an error"
        return step

    def rename(self, label: Label, new: Label, *, note: str = "", author: str = "") -> Step:
        """Give a class another label.

        Parameters
        ----------
        label : str, int or bool
            The class.
        new : str, int or bool
            A label that no other class has.
        note, author : str, default=""
            Kept in the history.

        Returns
        -------
        Step
            The step in the history.

        Raises
        ------
        UnknownLabelError
            If there is no such class.
        InputError
            If another class has the new label, or it is the old one.
        """

        def change(working: WorkingCopy) -> None:
            working.classifier.rename(label, new)
            move_provenance(working, [label], new)

        step = self._writable().write("rename", change, note, author=author)
        if step is None:
            raise InputError(f"{self.path}: the new label of class {label!r} is the old one.")
        return step

    def join(
        self, labels: Iterable[Label], new: Label, *, note: str = "", author: str = ""
    ) -> Step:
        """Combine classes into one, exactly as if their samples had been learned with one label.

        Parameters
        ----------
        labels : iterable of str, int or bool
            The classes, two or more; one of them may be ``new``.
        new : str, int or bool
            The label of the joined class. If another class has it, that class is joined too.
        note, author : str, default=""
            Kept in the history.

        Returns
        -------
        Step
            The step in the history.

        Raises
        ------
        UnknownLabelError
            If there is no class with one of the labels.
        InputError
            If only one class is named.
        """
        joined = list(labels)

        def change(working: WorkingCopy) -> None:
            working.classifier.join(joined, new)
            move_provenance(working, joined, new)

        step = self._writable().write("join", change, note, author=author)
        assert step is not None, "fewer than two classes are an error"
        return step

    def merge(
        self,
        other: str | os.PathLike[str] | Model,
        *,
        min_count: int = 0,
        allow_duplicates: bool = False,
        note: str = "",
    ) -> Step:
        """Add the classes of another model, as if their samples had been learned here.

        Parameters
        ----------
        other : path-like or Model
            The other model; it does not change.
        min_count : int, default=0
            Skip its classes with fewer samples.
        allow_duplicates : bool, default=False
            Merge although both models have learned the same samples, which then count twice.
        note : str, default=""
            Kept in the history. Default: the name of the other file.

        Returns
        -------
        Step
            The step in the history.

        Raises
        ------
        InputError
            If both have learned the same samples, or no class has ``min_count`` samples.
        EncoderError
            If the encoders differ.
        """
        theirs = other if isinstance(other, Model) else Model(other, readonly=True)
        name = theirs.path.name.encode(errors="replace").decode()
        try:
            return self._merge(theirs, min_count, allow_duplicates, note or f"merged {name}")
        finally:
            if theirs is not other:
                theirs.close()

    def migrate(
        self,
        encoder: str | Encoder,
        items: Any,
        path: str | os.PathLike[str] | None,
        *,
        labeled: Any = None,
        labels: Sequence[Any] | None = None,
        replace: bool = False,
        strict: bool = False,
        report: Report | None = None,
    ) -> MigrationResult:
        """Write a copy of the model for another encoder, learned from unlabeled items.

        The items are encoded by both encoders. The copy keeps classes, counts and notes, but not
        the history; the model itself does not change.

        Parameters
        ----------
        encoder : str or Encoder
            The new encoder, as for a new model.
        items : sequence or Dataset
            Items without labels, best of the kind that will be classified. The labels of a data
            set are not used.
        path : path-like or None
            The file to write; None only returns the estimate.
        labeled : sequence or Dataset, optional
            Items of learned classes whose labels are known.
        labels : sequence of str, int or bool, optional
            Their labels; a data set has its own.
        replace : bool, default=False
            Replace an existing file.
        strict : bool, default=False
            Raise for an item that cannot be read, instead of listing it in the result.
        report : callable, optional
            Called with the progress over both encoders.

        Returns
        -------
        MigrationResult
            The expected accuracy, and the items that could not be read.

        Raises
        ------
        EncoderError
            If the encoder is that of the model, or for another kind of items.
        InputError
            If there are too few items, or the file exists.

        Examples
        --------
        >>> import tempfile
        >>> from fecam.encoders import wrap
        >>> count = lambda letters: lambda texts: np.array(
        ...     [[text.count(letter) for letter in letters] for text in texts], np.float32)
        >>> old = wrap(count("aeiou"), name="vowels", kind="texts", fingerprint="1")
        >>> new = wrap(count("aeioust"), name="letters", kind="texts", fingerprint="2")
        >>> words = ["banana", "papaya", "beet", "leek", "cress"] * 6
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model = Model(f"{folder}/old.fecam", encoder=old)
        ...     _ = model.learn(["banana", "papaya"], ["fruit", "fruit"])
        ...     _ = model.learn(["leek", "beet"], ["leaf", "leaf"])
        ...     done = model.migrate(new, words, f"{folder}/new.fecam")
        ...     model.close()
        ...     with Model(f"{folder}/new.fecam", encoder=new) as migrated:
        ...         migrated.predict(["cassava", "cheese"]), done.estimate.n_items
        (['fruit', 'leaf'], 30)
        """
        from fecam.model.migration import migrate_file

        check_encoder(encoder)
        self._opened.reload()
        target = load_encoder(encoder, device=self._device) if isinstance(encoder, str) else encoder
        batch = None if labeled is None else self._labeled_items(labeled, labels)
        return migrate_file(
            self, target, items, path, batch, replace=replace, strict=strict, report=report
        )

    def undo(self, count: int = 1) -> list[Step]:
        """Undo the last steps, exactly.

        Parameters
        ----------
        count : int, default=1
            Number of steps.

        Returns
        -------
        list of Step
            The undone steps, the last one first.

        Raises
        ------
        InputError
            If fewer steps can be undone; then nothing changes.
        """
        check_int("count", count, error=InputError)
        file = self._writable()
        possible = sum(step.can_undo for step in file.steps)
        if count > possible > 0:
            raise InputError(
                f"{self.path}: count={count} must be an integer from 1 to {possible}, the number "
                "of steps that can be undone."
            )
        return [file.undo() for _ in range(count)]

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
            requested = self._encoder = load_encoder(requested, device=self._device)
        if isinstance(requested, Encoder):
            check_fingerprint(self.path, requested, record)

    def _writable(self) -> ModelFile:
        if self.readonly:
            raise ModelFileError(f"{self.path} was opened read only. Open it without readonly.")
        if self._file is not None and not os.access(self.path, os.W_OK) and self.path.exists():
            raise ModelFileError(f"{self.path} may not be written to: change its mode, or copy it.")
        return self._opened

    def _new_encoder(self, kind: str) -> Encoder:
        if self._encoder is None:
            name = self._requested if isinstance(self._requested, str) else DEFAULT_ENCODERS[kind]
            self._encoder = load_encoder(name, device=self._device)
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
        if isinstance(items, Dataset):
            return self._training_part(items)
        expected = self.kind
        if kind is not None and expected not in (None, kind):
            raise InputError(f"{self.path} takes {expected}; these are {kind}. Use another file.")
        kind = kind or expected or kind_of(items)
        items = as_rows(items, self._n_features) if kind == "features" else as_sequence(items)
        plain = as_labels(labels)
        check_same_kind(plain, [record.label for record in self.classes])
        if len(plain) != len(items):
            raise InputError(
                f"{counted(len(items), 'item')} but {counted(len(plain), 'label')}: give one "
                "label per item."
            )
        if not plain:
            raise InputError("there are no items. Give at least one.")
        return LabeledItems(kind, items, plain, content_hashes(items, kind))

    def _training_part(self, dataset: Dataset) -> LabeledItems:
        """Return the items to learn; their labels are of the kind of the model's."""
        part = dataset.subset(dataset.train) if len(dataset.test) else dataset
        kind = first_kind(record.label for record in self.classes) or part.label_kind
        classes = [parse_label(name, kind, str(self.path)) for name in part.label_names]
        labels = [classes[i] for i in part.labels]
        hashes = content_hashes(part.items, part.kind)
        return LabeledItems(part.kind, part.items, labels, hashes, part)

    def _result(
        self,
        start: float,
        step: Step | None,
        learned: Mapping[Label, int],
        duplicates: Mapping[Label, int] | None = None,
        unreadable: Sequence[str] = (),
        new_classes: Sequence[Label] = (),
    ) -> LearnResult:
        number, seconds = None if step is None else step.number, time.monotonic() - start
        counts = dict(learned), dict(duplicates or {})
        return LearnResult(
            number, *counts, list(unreadable), list(new_classes), seconds, self.version
        )

    def _create(
        self,
        working: WorkingCopy,
        what: str,
        note: str,
        idempotency_key: str = "",
        author: str = "",
    ) -> Step:
        if self.readonly:
            self._writable()
        path = Path(os.path.realpath(self.path))
        with translate_errors(self.path):
            create_file(path, working, what, note, idempotency_key, author, replace=False)
        self._file = ModelFile(self.path)
        return self._file.steps[0]

    def _merge(self, other: Model, min_count: int, allow_duplicates: bool, note: str) -> Step:
        theirs = other._opened.snapshot
        classifier = theirs.classifier.copy()
        rows = {
            label: row for label, row in theirs.rows.items() if row.statistics.count >= min_count
        }
        for label in theirs.rows.keys() - rows.keys():
            classifier.forget(label)
        if not rows:
            raise InputError(
                f"{other.path} has no class of at least {counted(max(min_count, 1), 'sample')} "
                "to merge."
            )
        if self._file is None:
            working = WorkingCopy(classifier, encoder=theirs.encoder)
            copy_provenance(working, rows)
            return self._create(working, "merge", note)
        paths = self.path, other.path
        check_same_encoder(self.encoder_record, theirs.encoder, paths)

        def change(working: WorkingCopy) -> None:
            add_model(working, classifier, rows, paths, allow_duplicates=allow_duplicates)

        step = self._writable().write("merge", change, note)
        assert step is not None, "classes were added"
        return step


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


def _labels_of(batch: LabeledItems, mask: NDArray[np.bool_]) -> Iterable[Label]:
    return (batch.labels[i] for i in np.flatnonzero(mask))


def _check_folder(path: Path) -> None:
    """Raise if no file can be created at ``path``."""
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise ModelFileError(
            f"{path}: there is no folder {folder}. Create it, or give another path."
        )
    if not os.access(folder, os.W_OK):
        raise ModelFileError(
            f"{path}: the folder {folder} may not be written to. Give another path."
        )
