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
    """The images of a data set, 8-bit and of one size: in memory if they fit, else read each time.

    An image that cannot be read is left out, and ``skipped`` says which and why.
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
                f"the data set {dataset.name!r} holds {dataset.kind}: a network is trained on "
                "images. Choose a data set of images."
            )
        self.name, self.preprocessing = dataset.name, preprocessing
        self.labels = torch.from_numpy(dataset.labels.copy())
        self.label_names = dataset.label_names
        self._fingerprint = dataset.fingerprint
        self.skipped: dict[int, str] = {}
        self._items = _Decoded(dataset.items, preprocessing)
        # Processes pay where decoding is work; small arrays are read faster than handed over.
        usual = min(4, cpu_count()) if preprocessing.resize > 96 else 0
        self._workers = usual if workers is None else workers
        self.rows = torch.arange(len(dataset))
        self._pixels: Tensor | None = None
        if len(dataset) * 3 * preprocessing.resize**2 <= memory:
            self._pixels = self._read_all()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def fingerprint(self) -> str:
        """Changes with the data set and with what is done to its images."""
        return fingerprint_of([self._fingerprint, self.preprocessing.fingerprint])

    def batches(self, chunks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """For each chunk of rows: the rows that can be read, and their images (n, 3, h, w)."""
        if self._pixels is None:
            yield from self._read(chunks)
        else:
            for rows in chunks:
                yield rows, self._pixels[rows]

    def plain(self, batch_size: int, device: Any = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
        """All images in order as an encoder sees them, with their rows: nothing left to chance."""
        for rows, images in self.batches(self.rows.split(batch_size)):
            if not len(rows):
                continue
            yield rows, self.normalised(centre(images.to(device), self.preprocessing.size) / 255)

    def normalised(self, images: Tensor) -> Tensor:
        """Images from 0 to 1 with the mean and spread that the network knows."""
        factor, offset = (
            torch.tensor(values, device=images.device)[:, None, None]
            for values in self.preprocessing.affine
        )
        shown = images * (255 * factor) + offset
        return shown.contiguous(memory_format=torch.channels_last)

    def _read(self, chunks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            self._items,
            batch_sampler=[rows.tolist() for rows in chunks],
            num_workers=self._workers,
            collate_fn=_collate,
            generator=Generator(),  # else it draws from everybody's
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
        self.rows = torch.tensor(
            [row for row in self.rows.tolist() if row not in self.skipped], dtype=torch.int64
        )
        return pixels


def centre(images: Tensor, size: int) -> Tensor:
    """The middle of each image, ``size`` by ``size`` pixels."""
    top, left = ((side - size) // 2 for side in images.shape[2:])
    return images[:, :, top : top + size, left : left + size]


class _Decoded:
    """Items by row as 8-bit tensors (3, h, w), or why one cannot be read; in a worker's process."""

    def __init__(self, items: Any, preprocessing: ImagePreprocessing) -> None:
        self._items = items
        # The margin around the centre is kept: augmentation may cut elsewhere.
        self._steps = replace(preprocessing, size=preprocessing.resize)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, row: int) -> tuple[int, Tensor | str]:
        try:
            return row, torch.from_numpy(np.array(self._steps.pixels(self._items[row])))
        except ItemError as error:
            return row, str(error)


def _collate(read: Sequence[tuple[int, Tensor | str]]) -> tuple[Tensor, Tensor, dict[int, str]]:
    good = [(row, image) for row, image in read if not isinstance(image, str)]
    bad = {row: image for row, image in read if isinstance(image, str)}
    rows = torch.tensor([row for row, _ in good], dtype=torch.int64)
    return rows, torch.stack([image for _, image in good]) if good else torch.empty(0), bad
