"""`Model`: an encoder, a classifier and the file in which what was taught is kept.

Raw items go in. Every verb that changes the model is one transaction on its file: when it returns,
the lesson is on the disk; when it fails, nothing has changed.
"""

from __future__ import annotations

import difflib
import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier, novelty_threshold
from fecam.data.content_hashes import ContentHashes, content_hashes
from fecam.data.dataset import Dataset
from fecam.data.items import as_rows, as_sequence, kind_of
from fecam.encoders.catalogue import load as load_encoder
from fecam.encoders.encoder import Encoder
from fecam.errors import EncoderError, InputError, ModelFileError, UnknownLabelError
from fecam.features.extraction import Report, encode_readable
from fecam.model.changes import add_model, add_samples, take_samples
from fecam.model.material import (
    Material,
    as_labels,
    encoded,
    has_cache,
    listed,
    readable,
)
from fecam.model.provenance import is_fresh, take_provenance
from fecam.model.same_encoder import check_fingerprint, check_same_encoder, record_of
from fecam.model_file import EncoderRecord
from fecam.model_file.creation import create_file
from fecam.model_file.file import ModelFile, translate_errors
from fecam.model_file.snapshot import Snapshot, row_hashes
from fecam.model_file.writing import WorkingCopy
from fecam.results import Candidate, ClassRecord, Label, LearnResult, Prediction, Step

USUAL_ENCODERS = {"images": "efficientnet-lite0", "texts": "minilm"}
"""What a new model looks with, if nothing is said."""


def open_model(
    path: str | os.PathLike[str],
    *,
    encoder: str | Encoder | None = None,
    device: Any = None,
    readonly: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Model:
    """Open a model, or begin one that the first lesson writes to ``path``.

    Parameters
    ----------
    path
        A ``.fecam`` file. Any number of programs may have it open.
    encoder
        A name as `fecam.encoders.load` knows it, or an encoder. A file remembers the name; an
        encoder of your own is given each time, and must have the fingerprint that the file knows.
        A new model takes the usual one for what it is first taught: EfficientNet-Lite0 for images,
        MiniLM for texts, none for features.
    device
        Where the encoder runs; found out if not given.
    readonly
        Refuse to change anything, and to begin a new file.
    settings
        Parameters of `FeCAMClassifier` for a new file, such as ``fecam.presets.preset("paper")``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, open_model(folder + "/m.fecam") as model:
    ...     result = model.learn([[0.0, 1.0], [0.1, 1.0], [1.0, 0.1]], ["tit", "tit", "wren"])
    ...     dict(result.n_learned), model.predict([[0.1, 0.9]])
    ({'tit': 2, 'wren': 1}, ['tit'])
    """
    return Model(path, encoder=encoder, device=device, readonly=readonly, settings=settings)


class Model:
    """A model in a file; made by `fecam.open`."""

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
        self._asked, self._device, self._settings = encoder, device, dict(settings or {})
        self._encoder: Encoder | None = encoder if isinstance(encoder, Encoder) else None
        self._file: ModelFile | None = None
        if self.path.exists():
            self._file = ModelFile(self.path)
            self._check_asked()
        elif readonly:
            raise ModelFileError(
                f"{self.path}: there is no such file. Check the path, or teach a new model: "
                f"fecam learn FOLDER -m {self.path}"
            )
        else:  # what cannot be done is told before the work
            FeCAMClassifier(**self._settings)
            _check_folder(self.path)

    # ------------------------------------------------------------------ what there is

    @property
    def exists(self) -> bool:
        """Whether there is a file: a new model has none before its first lesson."""
        return self._file is not None

    @property
    def classifier(self) -> FeCAMClassifier:
        """What is known now. It is never changed: the next lesson makes another."""
        return self._held.snapshot.classifier

    @property
    def snapshot(self) -> Snapshot | None:
        """All that the file held when it was last looked at; it never changes. None: no file."""
        return None if self._file is None else self._file.snapshot

    @property
    def classes(self) -> list[ClassRecord]:
        """What the file says about each class, in the order of the labels."""
        return [] if self._file is None else self._file.snapshot.classes

    @property
    def version(self) -> int:
        """Grows with every change, whoever makes it; 0 before the first."""
        return 0 if self._file is None else self._file.snapshot.version

    @property
    def steps(self) -> list[Step]:
        """What happened to the model, the last step first."""
        return [] if self._file is None else self._file.steps

    @property
    def encoder_record(self) -> EncoderRecord | None:
        """The encoder that the file names."""
        return None if self._file is None else self._file.snapshot.encoder

    @property
    def kind(self) -> str | None:
        """What goes in: images, texts or features; None if nobody has said yet."""
        if self._file is not None:
            record = self.encoder_record
            return "features" if record is None else record.kind
        return None if self._asked is None else self._new_encoder("images").kind

    @property
    def encoder(self) -> Encoder | None:
        """The encoder, loaded when it is first asked for; None for a model of features."""
        if self._encoder is None and (record := self.encoder_record) is not None:
            found = load_encoder(record.name, device=self._device)
            check_fingerprint(self.path, found, record)
            self._encoder = found
        return self._encoder

    def label_of(self, text: str) -> Label:
        """The label that a person's text names; an error with near ones if there is none."""
        labels = [record.label for record in self.classes]
        by_text = {str(label): label for label in labels}
        if text in by_text:
            return by_text[text]
        near = difflib.get_close_matches(text, list(by_text), n=3)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UnknownLabelError(
            f"{self.path} has no class {text!r}.{hint} `fecam classes -m {self.path}` lists its "
            f"{len(labels)} classes."
        )

    # ------------------------------------------------------------------ learning

    def learn(
        self,
        items: Any,
        labels: Sequence[Any],
        *,
        note: str = "",
        allow_duplicates: bool = False,
        idempotency_key: str = "",
        strict: bool = True,
        kind: str | None = None,
    ) -> LearnResult:
        """Teach items: images (paths, bytes, Pillow images, arrays), texts, or rows of features.

        Items that were learned before under the same label are skipped unless
        ``allow_duplicates``, so a program that was stopped can start over. A second call with the
        same ``idempotency_key`` changes nothing. An item that cannot be read is an error,
        or left out and named if not ``strict``. What comes from strangers should say its
        ``kind``, images, texts or features: else a text may be taken for the path of an image.
        """
        material = self._as_material(items, labels, kind)
        return self._teach(
            material, note, allow_duplicates, strict=strict, idempotency_key=idempotency_key
        )

    def learn_dataset(
        self,
        dataset: Dataset,
        *,
        note: str = "",
        allow_duplicates: bool = False,
        strict: bool = False,
        report: Report | None = None,
    ) -> LearnResult:
        """Teach a data set, without its test part, in one step.

        Features are made through the cache: if it is interrupted, the next call goes on. What
        cannot be read is left out and named, or an error if ``strict``.
        """
        material = self._material(dataset)
        return self._teach(material, note, allow_duplicates, strict=strict, report=report)

    def unlearn(self, items: Any, labels: Sequence[Any]) -> LearnResult:
        """Take items back out, as if they had never come; a class left empty is gone."""
        return self._untaught(self._as_material(items, labels), strict=True)

    def unlearn_dataset(
        self, dataset: Dataset, *, strict: bool = False, report: Report | None = None
    ) -> LearnResult:
        """Take a data set, without its test part, back out."""
        material = self._material(dataset)
        return self._untaught(material, strict=strict, report=report)

    def forget(self, label: Hashable, *, purge: bool = False, note: str = "") -> Step:
        """Remove a class. It can be undone, unless it is ``purge``: then nothing is left."""
        plain: Any = label.item() if hasattr(label, "item") else label

        def change(working: WorkingCopy) -> None:
            working.classifier.forget(plain)

        step = self._writable().write("forget", change, note, purge=purge)
        assert step is not None, "an unknown label is an error"
        return step

    def merge(
        self,
        other: str | os.PathLike[str] | Model,
        *,
        min_count: int = 0,
        allow_duplicates: bool = False,
        note: str = "",
    ) -> Step:
        """Add all that another model was taught, exactly as if it had been taught here.

        Classes of the other with fewer than ``min_count`` samples are left out. Samples that were
        learned by both models are an error unless ``allow_duplicates``.
        """
        theirs = other if isinstance(other, Model) else Model(other, readonly=True)
        name = theirs.path.name.encode(errors="replace").decode()
        try:
            return self._merge(theirs, min_count, allow_duplicates, note or f"merged {name}")
        finally:
            if theirs is not other:
                theirs.close()

    def undo(self, count: int = 1) -> list[Step]:
        """Take back the last steps, exactly."""
        if count < 1:
            raise InputError(f"count={count!r} must be at least 1.")
        file = self._writable()
        possible = sum(step.can_undo for step in file.steps)
        if count > possible > 0:
            raise InputError(
                f"{self.path}: {count} steps are to be taken back, but {possible} can be. "
                "Nothing was changed."
            )
        return [file.undo() for _ in range(count)]

    def reload(self) -> bool:
        """Take over what other programs wrote since; whether there was anything."""
        if self._file is None:
            if not self.path.exists():
                return False
            self._file = ModelFile(self.path)
            self._check_asked()
            return True
        return self._file.reload()

    # ------------------------------------------------------------------ answering

    def encode(self, items: Any) -> NDArray[Any]:
        """The features of items; one that cannot be read is an error."""
        if self.encoder is None:
            return as_rows(items, self._held.snapshot.layout.n_features)
        return readable(encode_readable(as_sequence(items), self.encoder)).features

    def features_of(
        self, dataset: Dataset, *, strict: bool = False, report: Report | None = None
    ) -> Dataset:
        """A data set with features in the place of its items, through the cache."""
        from fecam.features import extract

        if dataset.kind == "features":
            as_rows(dataset.items, self._held.snapshot.layout.n_features)
            return dataset
        encoder = self.encoder
        if encoder is None:
            raise self._takes_features(dataset.kind)
        return extract(dataset, encoder, report=report, strict=strict, cache=has_cache(encoder))

    def predict(self, items: Any, *, reject: float | None = None) -> list[Label | None]:
        """The nearest class of each item; with ``reject=0.05`` None for what fits no class."""
        return list(listed(self.classifier.predict(self.encode(items), reject=reject)))

    def predict_top_k(self, items: Any, k: int) -> list[list[Label]]:
        """The ``k`` nearest classes of each item, nearest first."""
        return [list(row) for row in listed(self.classifier.predict_top_k(self.encode(items), k))]

    def predict_proba(self, items: Any) -> NDArray[Any]:
        """The probability of each class, in the order of ``classes``."""
        return np.asarray(self.classifier.predict_proba(self.encode(items)))

    def novelty(self, items: Any) -> NDArray[Any]:
        """How little each item fits the class nearest to it: see `FeCAMClassifier.novelty`."""
        return np.asarray(self.classifier.novelty(self.encode(items)))

    def predict_detailed(
        self, items: Any, *, k: int = 1, reject: float | None = None
    ) -> list[Prediction]:
        """All that can be said about each item."""
        return predictions_of(self.classifier, self.encode(items), k, reject)

    # ------------------------------------------------------------------ closing

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        about = f"{len(self.classes)} classes" if self.exists else "not written yet"
        return f"<model {self.path}: {about}>"

    # ------------------------------------------------------------------ inside

    @property
    def _held(self) -> ModelFile:
        if self._file is None:
            raise ModelFileError(
                f"{self.path} knows no class yet: teach it first, model.learn(...)"
            )
        return self._file

    @property
    def _width(self) -> int | None:
        return None if self._file is None else self._file.snapshot.layout.n_features

    def _writable(self) -> ModelFile:
        if self.readonly:
            raise ModelFileError(
                f"{self.path} was opened to be read only. Open it without readonly."
            )
        if self._file is not None and not os.access(self.path, os.W_OK) and self.path.exists():
            raise ModelFileError(f"{self.path} may not be written to: change its mode, or copy it.")
        return self._held

    def _write(
        self, what: str, change: Callable[[WorkingCopy], None], note: str, idempotency_key: str = ""
    ) -> Step | None:
        return self._writable().write(what, change, note, idempotency_key=idempotency_key)

    def _check_asked(self) -> None:
        """Refuse an encoder that is not the one the file was taught with."""
        record = self.encoder_record
        if self._asked is None:
            return
        if record is None:
            raise EncoderError(
                f"{self.path} was taught with features, without an encoder. Leave encoder out."
            )
        if isinstance(self._asked, Encoder):
            check_fingerprint(self.path, self._asked, record)
        elif self._asked != record.name:
            found = load_encoder(self._asked, device=self._device)
            check_fingerprint(self.path, found, record)
            self._encoder = found

    def _new_encoder(self, kind: str) -> Encoder:
        if self._encoder is None:
            name = self._asked if isinstance(self._asked, str) else USUAL_ENCODERS[kind]
            self._encoder = load_encoder(name, device=self._device)
        return self._encoder

    def _encoder_for(self, kind: str) -> Encoder | None:
        """The encoder for such items, of this model or of one that is only beginning."""
        if self._file is None:
            if kind == "features" and self._asked is None:
                return None
            encoder: Encoder | None = self._new_encoder(kind)
        else:
            encoder = self.encoder
        if encoder is None:
            if kind != "features":
                raise self._takes_features(kind)
        elif encoder.kind != kind:
            raise InputError(
                f"{self.path} takes {encoder.kind}, by the encoder {encoder.name}; these are "
                f"{kind}. Teach them to another file."
            )
        return encoder

    def _takes_features(self, kind: str) -> InputError:
        return InputError(
            f"{self.path} was taught with features, without an encoder; these are {kind}. Encode "
            "them as you did then, or teach another file."
        )

    def _as_material(self, items: Any, labels: Sequence[Any], kind: str | None = None) -> Material:
        due = self.kind
        if kind is not None and due not in (None, kind):
            raise InputError(f"{self.path} takes {due}; these are {kind}. Teach another file.")
        kind = kind or due or kind_of(items)
        rows = as_rows(items, self._width) if kind == "features" else as_sequence(items)
        named = as_labels(labels)
        if len(named) != len(rows):
            raise InputError(f"there are {len(rows)} items but {len(named)} labels.")
        if not named:
            raise InputError("there are no items. Give at least one.")
        return Material(kind, rows, named, None)

    def _material(self, dataset: Dataset) -> Material:
        """The part of a data set to learn from; its labels as those that are known are."""
        chosen = dataset.subset(dataset.train) if len(dataset.test) else dataset
        names: list[Any] = list(chosen.label_names)
        if any(isinstance(record.label, int) for record in self.classes):
            try:
                names = [int(name) for name in names]
            except ValueError as error:
                raise InputError(
                    f"the classes of {self.path} are whole numbers; {dataset.name!r} has others "
                    f"({error}). Name its classes by numbers, too."
                ) from None
        labels = [names[at] for at in chosen.labels]
        return Material(chosen.kind, chosen.items, labels, chosen)

    def _teach(
        self,
        material: Material,
        note: str,
        allow_duplicates: bool,
        *,
        strict: bool,
        report: Report | None = None,
        idempotency_key: str = "",
    ) -> LearnResult:
        start = time.monotonic()
        if self.readonly or self.exists:
            self._writable()
        self.reload()
        if self._file is not None and (done := self._file.find_step(idempotency_key)) is not None:
            taught = {label: count for label, count in done.counts.items() if count > 0}
            return LearnResult(
                done.number, taught, {}, [], [], time.monotonic() - start, self.version
            )
        encoder = self._encoder_for(material.kind)
        marks = content_hashes(material.items, material.kind)
        known: Counter[Label] = Counter()
        if not allow_duplicates and self._file is not None:
            there = row_hashes(self._file.snapshot.rows)
            fresh = is_fresh(material.labels, marks, there)
            known.update(material.labels[at] for at in np.flatnonzero(~fresh))
            material, marks = material.subset(fresh), marks[fresh]
        before = {} if self._file is None else self._file.snapshot.rows
        step, taught, failed = None, Counter[Label](), list[str]()
        if len(material):
            found = encoded(material, encoder, strict, report, self._width)
            failed = list(found.failed.values())
            lesson = [material.labels[at] for at in found.rows], marks[found.rows]
            if lesson[0]:
                step, fresh = self._learn(
                    found.features, *lesson, encoder, note, idempotency_key, allow_duplicates
                )
                taught.update(lesson[0][at] for at in np.flatnonzero(fresh))
                known.update(lesson[0][at] for at in np.flatnonzero(~fresh))
        new = [label for label in taught if label not in before]
        seconds = time.monotonic() - start
        number = None if step is None else step.number
        return LearnResult(number, dict(taught), dict(known), failed, new, seconds, self.version)

    def _learn(
        self,
        X: NDArray[Any],
        labels: list[Label],
        marks: ContentHashes,
        encoder: Encoder | None,
        note: str,
        idempotency_key: str,
        allow_duplicates: bool,
    ) -> tuple[Step | None, NDArray[np.bool_]]:
        """The step, and which items were learnt in it."""
        fresh = np.ones(len(labels), bool)

        def change(working: WorkingCopy) -> None:
            fresh[:] = add_samples(working, X, labels, marks, allow_duplicates=allow_duplicates)

        if self._file is not None:
            return self._write("learn", change, note, idempotency_key), fresh
        working = WorkingCopy(FeCAMClassifier(**self._settings), encoder=record_of(encoder))
        change(working)
        return self._create(working, "learn", note, idempotency_key), fresh

    def _create(
        self, working: WorkingCopy, what: str, note: str, idempotency_key: str = ""
    ) -> Step:
        if self.readonly:
            self._writable()
        with translate_errors(self.path):
            create_file(
                Path(os.path.realpath(self.path)),
                working,
                what,
                note,
                idempotency_key,
                replace=False,
            )
        self._file = ModelFile(self.path)
        return self._file.steps[0]

    def _untaught(
        self,
        material: Material,
        *,
        strict: bool,
        report: Report | None = None,
    ) -> LearnResult:
        start = time.monotonic()
        self._writable()
        self.reload()
        encoder = self._encoder_for(material.kind)
        found = encoded(material, encoder, strict, report, self._width)
        labels = [material.labels[at] for at in found.rows]
        marks = content_hashes(material.items, material.kind)[found.rows]

        def change(working: WorkingCopy) -> None:
            take_samples(working, found.features, labels, marks, self.path)

        step = self._write("unlearn", change, "") if labels else None
        failed = list(found.failed.values())
        seconds = time.monotonic() - start
        number = None if step is None else step.number
        return LearnResult(number, dict(Counter(labels)), {}, failed, [], seconds, self.version)

    def _merge(self, other: Model, min_count: int, allow_duplicates: bool, note: str) -> Step:
        theirs = other._held.snapshot
        classifier = theirs.classifier.copy()
        held = {
            label: one for label, one in theirs.rows.items() if one.statistics.count >= min_count
        }
        for label in theirs.rows.keys() - held.keys():
            classifier.forget(label)
        if not held:
            raise InputError(
                f"{other.path} holds no class of {max(min_count, 1)} samples to merge."
            )
        if self._file is None:
            working = WorkingCopy(classifier, encoder=theirs.encoder)
            take_provenance(working, held)
            return self._create(working, "merge", note)
        paths = self.path, other.path
        check_same_encoder(self.encoder_record, theirs.encoder, paths)

        def change(working: WorkingCopy) -> None:
            add_model(working, classifier, held, paths, allow_duplicates=allow_duplicates)

        step = self._write("merge", change, note)
        assert step is not None, "something was added"
        return step


def predictions_of(
    classifier: FeCAMClassifier, X: Any, k: int = 1, reject: float | None = None
) -> list[Prediction]:
    """Return a prediction per row of features, with the ``k`` nearest classes or all of them."""
    if type(k) is not int or k < 1:
        raise InputError(f"k={k!r} must be an integer of at least 1.")
    results = classifier.predict_detailed(X, min(k, len(classifier.state_.classes)))
    threshold = np.inf if reject is None else novelty_threshold(reject)
    rows = zip(*(values.tolist() for values in results), strict=True)
    return [
        Prediction(
            None if novelty > threshold else labels[0],
            novelty,
            [Candidate(*values) for values in zip(labels, probabilities, distances, strict=True)],
        )
        for labels, distances, probabilities, novelty in rows
    ]


def _check_folder(path: Path) -> None:
    """Refuse a place where no file can be made."""
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise ModelFileError(f"{path}: there is no folder {folder}. Make it, or give another path.")
    if not os.access(folder, os.W_OK):
        raise ModelFileError(
            f"{path}: the folder {folder} may not be written to. Give another path."
        )
