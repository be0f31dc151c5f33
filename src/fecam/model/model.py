"""`Model`: an encoder, a classifier and the file that keeps what it has learned.

Each method that changes the model is one transaction on its file: when it returns, the change is on
the disk; when it raises, nothing has changed.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fecam.classifier import FeCAMClassifier
from fecam.data.dataset import Dataset
from fecam.encoders.encoder import Encoder
from fecam.errors import InputError, ModelFileError
from fecam.features.extraction import Report
from fecam.model import changes
from fecam.model.encoder_checks import check_encoder, check_same_encoder, record_of
from fecam.model.readable import ReadableModel
from fecam.model_file.creation import create_file
from fecam.model_file.file import ModelFile, translate_errors
from fecam.model_file.snapshot import row_hashes
from fecam.model_file.writing import WorkingCopy
from fecam.results import Label, LearnResult, Step
from fecam.validation import check_int, counted

if TYPE_CHECKING:
    from fecam.model.migration import MigrationResult


class Model(ReadableModel):
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
        self.readonly, self._settings = readonly, dict(settings or {})
        super().__init__(Path(path), encoder=encoder, device=device)
        if self.exists:
            return
        if readonly:
            raise ModelFileError(
                f"{self.path}: there is no such file. Check the path, or learn a new model: "
                f"fecam learn FOLDER -m {self.path}"
            )
        FeCAMClassifier(**self._settings)  # raises before the work
        _check_folder(self.path)

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
        step, unreadable = None, list[str]()
        if not allow_duplicates:  # before they are encoded; the transaction checks again
            mask = changes.unseen_mask(batch.labels, batch.content_hashes, row_hashes(before))
            duplicates.update(batch.labels_of(~mask))
            batch = batch.subset(mask)
        if len(batch):
            strict = not isinstance(items, Dataset) if strict is None else strict
            X, batch, unreadable = batch.encode(encoder, strict, report, self._n_features)
        if len(batch):
            mask = np.ones(len(batch), bool)

            def change(working: WorkingCopy) -> None:
                mask[:] = changes.add_samples(
                    working,
                    X,
                    batch.labels,
                    batch.content_hashes,
                    allow_duplicates=allow_duplicates,
                )

            step = self._write(
                "learn",
                change,
                note,
                author,
                idempotency_key=idempotency_key,
                new=lambda: WorkingCopy(
                    FeCAMClassifier(**self._settings), encoder=record_of(encoder)
                ),
            )
            learned.update(batch.labels_of(mask))
            duplicates.update(batch.labels_of(~mask))
        new = [label for label in learned if label not in before]
        return self._result(start, step, learned, duplicates, unreadable, new)

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
            changes.remove_samples(working, X, batch.labels, batch.content_hashes, self.path)

        step = self._write("unlearn", change) if len(batch) else None
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
        change = partial(changes.forget, label=label)
        step = self._write("forget", change, note, author, purge=purge)
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
        change = partial(changes.rename, label=label, new=new)
        step = self._write("rename", change, note, author)
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
        change = partial(changes.join, labels=list(labels), new=new)
        step = self._write("join", change, note, author)
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
        target = self._load_encoder(encoder) if isinstance(encoder, str) else encoder
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

    def _writable(self) -> ModelFile:
        if self.readonly:
            raise ModelFileError(f"{self.path} was opened read only. Open it without readonly.")
        if self._file is not None and not os.access(self.path, os.W_OK) and self.path.exists():
            raise ModelFileError(f"{self.path} may not be written to: change its mode, or copy it.")
        return self._opened

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

    def _write(
        self,
        what: str,
        change: Callable[[WorkingCopy], None],
        note: str = "",
        author: str = "",
        *,
        idempotency_key: str = "",
        purge: bool = False,
        new: Callable[[], WorkingCopy] | None = None,
    ) -> Step | None:
        """Do a change in one transaction; if there is no file, create it from a new model."""
        if self._file is not None or new is None:
            return self._writable().write(
                what, change, note, idempotency_key=idempotency_key, author=author, purge=purge
            )
        working = new()
        change(working)
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
            change = partial(changes.copy_provenance, rows=rows)
        else:
            paths = self.path, other.path
            check_same_encoder(self.encoder_record, theirs.encoder, paths)
            change = partial(
                changes.add_model,
                classifier=classifier,
                rows=rows,
                paths=paths,
                allow_duplicates=allow_duplicates,
            )
        step = self._write(
            "merge", change, note, new=lambda: WorkingCopy(classifier, encoder=theirs.encoder)
        )
        assert step is not None, "classes were added"
        return step


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
