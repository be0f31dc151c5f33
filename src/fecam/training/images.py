"""The images that a network is trained on and tested with: 8-bit, of one size, by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from joblib import cpu_count
from torch import Generator, Tensor
from torch.utils.data import DataLoader

from fecam.data.dataset import Dataset, fingerprint_of
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.errors import ItemError, TrainingError


class TrainingImages:
    """The images of a data set, kept in memory if they fit, else decoded for each batch.

    Unreadable images are left out; ``skipped`` maps their rows to the reasons.

    Parameters
    ----------
    dataset : Dataset
        A data set of images.
    preprocessing : ImagePreprocessing
        The size and normalization of the network's input.
    memory : int, default=2 GiB
        Bytes that the decoded images may use.
    workers : int, optional
        Processes that decode; by default up to 4 for images above 96 pixels, else none.

    Raises
    ------
    TrainingError
        If the data set does not contain images.

    Examples
    --------
    >>> data = Dataset("gray", "images", [np.full((8, 8, 3), 128, np.uint8)], [0], ("gray",), "1")
    >>> len(TrainingImages(data, ImagePreprocessing(size=8)))
    1
    """

    def __init__(
        self,
        dataset: Dataset,
        preprocessing: ImagePreprocessing,
        *,
        memory: int = 2 << 30,
        workers: int | None = None,
    ) -> None:
        if dataset.kind != "images":
            raise TrainingError(
                f"the data set {dataset.name!r} holds {dataset.kind}: choose one of images."
            )
        self.name, self.preprocessing = dataset.name, preprocessing
        self.labels = torch.from_numpy(dataset.labels.copy())
        self.label_names = dataset.label_names
        self._fingerprint = dataset.fingerprint
        self.skipped: dict[int, str] = {}
        self._items = _DecodedItems(dataset.items, preprocessing)
        # For small arrays the transfer between processes takes longer than decoding.
        default = min(4, cpu_count()) if preprocessing.resize > 96 else 0
        self._workers = default if workers is None else workers
        self.rows = torch.arange(len(dataset))
        self._pixels: Tensor | None = None
        if len(dataset) * 3 * preprocessing.resize**2 <= memory:
            self._pixels = self._read_all()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def fingerprint(self) -> str:
        """A hash of the data set and the preprocessing."""
        return fingerprint_of([self._fingerprint, self.preprocessing.fingerprint])

    def batches(self, chunks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images of each chunk of rows.

        Parameters
        ----------
        chunks : sequence of tensors
            Rows of the data set.

        Yields
        ------
        rows : tensor of shape (n,)
            The readable rows of a chunk.
        images : tensor of shape (n, 3, height, width), uint8
            Their images.
        """
        if self._pixels is None:
            yield from self._read(chunks)
        else:
            for rows in chunks:
                yield rows, self._pixels[rows]

    def eval_batches(
        self, batch_size: int, device: Any = "cpu", rows: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images normalized and without augmentation, by default all in order.

        Parameters
        ----------
        batch_size : int
            Images per batch.
        device : {"cpu", "cuda", "mps"}, default="cpu"
            The device of the images.
        rows : tensor of int, optional
            The rows of the images, in any order.

        Yields
        ------
        rows : tensor of shape (n,)
            The readable rows of a batch.
        images : tensor of shape (n, 3, size, size)
            Their images.
        """
        size = self.preprocessing.size
        chosen = self.rows if rows is None else rows
        for rows, images in self.batches(chosen.split(batch_size)):
            if len(rows):
                top, left = ((side - size) // 2 for side in images.shape[2:])
                center = images[:, :, top : top + size, left : left + size]
                yield rows, self.normalize(center.to(device) / 255)

    def normalize(self, images: Tensor) -> Tensor:
        """Return images normalized by the preprocessing's mean and deviation.

        Parameters
        ----------
        images : tensor of shape (n, 3, height, width)
            Values from 0 to 1.

        Returns
        -------
        tensor
            Of the same shape, in channels-last layout.
        """
        factor, offset = (
            torch.tensor(values, device=images.device)[:, None, None]
            for values in self.preprocessing.affine
        )
        normalized = images * (255 * factor) + offset
        return normalized.contiguous(memory_format=torch.channels_last)

    def _read(self, chunks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            self._items,
            batch_sampler=[rows.tolist() for rows in chunks],
            num_workers=self._workers,
            collate_fn=_collate,
            generator=Generator(),  # else it uses the global one
        )
        for rows, images, failures in loader:
            self.skipped.update(failures)
            yield rows, images

    def _read_all(self) -> Tensor:
        side = self.preprocessing.resize
        pixels = torch.empty((len(self.rows), 3, side, side), dtype=torch.uint8)
        for rows, images in self._read(self.rows.split(256)):
            if len(rows):
                pixels[rows] = images
        readable = [row for row in self.rows.tolist() if row not in self.skipped]
        self.rows = torch.tensor(readable, dtype=torch.int64)
        return pixels


class _DecodedItems:
    """Items by row as 8-bit tensors (3, h, w), or the reason why one is unreadable."""

    def __init__(self, items: Any, preprocessing: ImagePreprocessing) -> None:
        self._items = items
        # Keeps the margin around the center, for augmentation.
        self._steps = replace(preprocessing, size=preprocessing.resize)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, row: int) -> tuple[int, Tensor | str]:
        try:
            return row, torch.from_numpy(np.array(self._steps.pixels(self._items[row])))
        except ItemError as error:
            return row, str(error)


def _collate(items: Sequence[tuple[int, Tensor | str]]) -> tuple[Tensor, Tensor, dict[int, str]]:
    images = {row: image for row, image in items if not isinstance(image, str)}
    failures = {row: reason for row, reason in items if isinstance(reason, str)}
    rows = torch.tensor(list(images), dtype=torch.int64)
    return rows, torch.stack(list(images.values())) if images else torch.empty(0), failures
