"""The methods that `alternatives.py` compares, each as its user sees it."""

# ruff: noqa: D102 - `Method` describes the methods of all its subclasses

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fecam import FeCAMClassifier
from fecam.core.transforms import unit_length
from fecam.heads import state_nbytes
from fecam.heads.linear import fit_linear
from fecam.heads.memory import array_nbytes
from fecam.heads.slda import StreamingLDA

Features = NDArray[np.float32]
Labels = NDArray[np.int64]


class Method(ABC):
    """A classifier as its user sees it: everything that has to be kept belongs to it."""

    name: ClassVar[str]
    keeps_samples: ClassVar[bool] = False
    merges: ClassVar[bool] = True
    """Whether two of them become one without training."""
    forgets: ClassVar[bool] = True
    """Whether a class can be removed so that nothing of it is left."""
    least: ClassVar[int] = 1
    """The fewest samples of a class that it can learn from."""

    @abstractmethod
    def learn(self, X: Features, y: Labels) -> None:
        """Learn samples of new or of known classes."""

    def forget(self, label: int) -> None:
        """Remove a class."""
        raise NotImplementedError

    @abstractmethod
    def predict(self, X: Features) -> Labels:
        """Return the labels."""

    @abstractmethod
    def strangeness(self, X: Features) -> NDArray[Any]:
        """Return a score that grows as a sample fits no class."""

    @abstractmethod
    def nbytes(self) -> int:
        """Return the bytes that must be kept to predict and to go on learning."""

    def merge(self, other: Any) -> None:
        """Take over what another one learned."""
        raise NotImplementedError


class Fecam(Method):
    """`FeCAMClassifier` with its defaults."""

    name = "fecam"

    def __init__(self) -> None:
        self.clf = FeCAMClassifier()

    def learn(self, X: Features, y: Labels) -> None:
        self.clf.partial_fit(X, y)

    def forget(self, label: int) -> None:
        self.clf.forget(label)

    def predict(self, X: Features) -> Labels:
        return np.asarray(self.clf.predict(X))

    def strangeness(self, X: Features) -> NDArray[Any]:
        return np.asarray(self.clf.novelty(X))

    def nbytes(self) -> int:
        return state_nbytes(self.clf)

    def merge(self, other: Fecam) -> None:
        self.clf.merge(other.clf)


class StreamedLDA(Method):
    """Streaming LDA: one mean per class and one covariance matrix for all classes."""

    name = "streaming LDA"
    forgets = False  # its matrix keeps what a class contributed

    def __init__(self) -> None:
        self.head = StreamingLDA()

    def learn(self, X: Features, y: Labels) -> None:
        self.head.partial_fit(X, y)

    def predict(self, X: Features) -> Labels:
        return np.asarray(self.head.predict(X))

    def strangeness(self, X: Features) -> NDArray[Any]:
        return doubt(np.asarray(self.head.decision_function(X)))

    def nbytes(self) -> int:
        return state_nbytes(self.head)

    def merge(self, other: StreamedLDA) -> None:
        self.head.merge(other.head)


class Neighbors(Method):
    """The majority of the most similar stored samples, weighted by their cosine similarity."""

    name = "kNN, k = 5"
    keeps_samples = True
    k = 5

    def __init__(self) -> None:
        self.X: Features | None = None
        self.y: Labels = np.empty(0, np.int64)

    def learn(self, X: Features, y: Labels) -> None:
        X = np.asarray(unit_length(X), np.float32)
        self.X = X if self.X is None else np.concatenate([self.X, X])
        self.y = np.concatenate([self.y, y])

    def forget(self, label: int) -> None:
        kept = self.y != label
        self.X, self.y = self._stored()[kept], self.y[kept]

    def predict(self, X: Features) -> Labels:
        similarity = self._similarity(X)
        nearest = np.argsort(-similarity, axis=1)[:, : self.k]
        labels = np.unique(self.y)
        votes = np.zeros((len(X), len(labels)))
        columns = np.searchsorted(labels, self.y[nearest])
        weights = np.take_along_axis(similarity, nearest, axis=1)
        np.add.at(votes, (np.arange(len(X))[:, None], columns), weights)
        return labels[votes.argmax(axis=1)]

    def strangeness(self, X: Features) -> NDArray[Any]:
        return -self._similarity(X).max(axis=1)

    def nbytes(self) -> int:
        return array_nbytes([self._stored(), self.y])

    def merge(self, other: Neighbors) -> None:
        self.X = np.concatenate([self._stored(), other._stored()])
        self.y = np.concatenate([self.y, other.y])

    def _stored(self) -> Features:
        assert self.X is not None
        return self.X

    def _similarity(self, X: Features) -> NDArray[Any]:
        return np.asarray(unit_length(X) @ self._stored().T)


class VectorDatabase(Neighbors):
    """The label of the most similar stored embedding: what an exact index returns."""

    name = "vector database"
    k = 1


class Retrained(Method):
    """A classifier that is trained again on all samples after each change, so it keeps them."""

    keeps_samples = True
    merges = False

    def __init__(self) -> None:
        self.X: Features | None = None
        self.y: Labels = np.empty(0, np.int64)

    @abstractmethod
    def train(self, X: Features, y: Labels) -> None:
        """Train on all samples."""

    @abstractmethod
    def log_odds(self, X: Features) -> NDArray[Any]:
        """Return scores whose softmax is the probabilities, in the order of the sorted labels."""

    def learn(self, X: Features, y: Labels) -> None:
        self.X = X if self.X is None else np.concatenate([self.X, X])
        self.y = np.concatenate([self.y, y])
        self.train(self.X, self.y)

    def forget(self, label: int) -> None:
        assert self.X is not None
        kept = self.y != label
        self.X, self.y = self.X[kept], self.y[kept]
        self.train(self.X, self.y)

    def predict(self, X: Features) -> Labels:
        return np.unique(self.y)[self.log_odds(X).argmax(axis=1)]

    def strangeness(self, X: Features) -> NDArray[Any]:
        return doubt(self.log_odds(X))

    def nbytes(self) -> int:
        return array_nbytes([self.X, self.y]) + self.parameters()

    def parameters(self) -> int:
        """Return the bytes of a linear classifier in single precision."""
        assert self.X is not None
        return 4 * len(np.unique(self.y)) * (self.X.shape[1] + 1)


class Logistic(Retrained):
    """Logistic regression of scikit-learn on features of unit length."""

    name = "logistic regression"

    def train(self, X: Features, y: Labels) -> None:
        self.linear = fit_linear(X, y, "linear")

    def log_odds(self, X: Features) -> NDArray[Any]:
        return self.linear.scores(X)


class LDA(Retrained):
    """Linear discriminant analysis of scikit-learn, with the shrinkage of Ledoit and Wolf."""

    name = "LDA"
    least = 2

    def train(self, X: Features, y: Labels) -> None:
        self.lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(X, y)

    def log_odds(self, X: Features) -> NDArray[Any]:
        return np.asarray(self.lda.decision_function(X))


class LastLayer(Retrained):
    """The last layer of a network, trained by gradient descent as in fine-tuning."""

    name = "fine-tuned last layer"
    epochs = 50
    batch = 64

    def train(self, X: Features, y: Labels) -> None:
        self.layer = descend(None, X, y, np.unique(y), self.epochs, self.batch)

    def log_odds(self, X: Features) -> NDArray[Any]:
        return scores_of(self.layer, X)


class LastLayerWithoutSamples(Method):
    """The same where no sample is kept: each call trains on its own samples only."""

    name = "the same, no sample kept"
    forgets = merges = False

    def __init__(self, n_classes: int) -> None:
        self.layer: Any = None
        self.labels = np.arange(n_classes)

    def learn(self, X: Features, y: Labels) -> None:
        self.layer = descend(self.layer, X, y, self.labels, LastLayer.epochs, LastLayer.batch)

    def predict(self, X: Features) -> Labels:
        return self.labels[scores_of(self.layer, X).argmax(axis=1)]

    def strangeness(self, X: Features) -> NDArray[Any]:
        return doubt(scores_of(self.layer, X))

    def nbytes(self) -> int:
        return sum(4 * weights.numel() for weights in self.layer.parameters())


def doubt(scores: NDArray[Any]) -> NDArray[Any]:
    """Return log(1 / p - 1) of the largest softmax probability p: it orders samples as 1 - p.

    The probability itself is 1.0 for many samples in double precision, and orders them no more.
    """
    ranked = np.sort(np.asarray(scores, float), axis=1)
    return np.asarray(logsumexp(ranked[:, :-1] - ranked[:, -1:], axis=1))


def descend(layer: Any, X: Features, y: Labels, labels: Labels, epochs: int, batch: int) -> Any:
    """Train a linear layer by Adam on features of unit length; from zero if there is none."""
    torch.manual_seed(0)
    inputs = torch.from_numpy(np.asarray(unit_length(X), np.float32))
    targets = torch.from_numpy(np.searchsorted(labels, y))
    if layer is None:
        layer = torch.nn.Linear(X.shape[1], len(labels))
        torch.nn.init.zeros_(layer.weight)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(batch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(layer(inputs[rows]), targets[rows]).backward()
            optimizer.step()
    return layer


def scores_of(layer: Any, X: Features) -> NDArray[Any]:
    """Return the outputs of a layer."""
    with torch.inference_mode():
        inputs = torch.from_numpy(np.asarray(unit_length(X), np.float32))
        return np.asarray(layer(inputs).numpy())


def methods(n_classes: int) -> dict[str, Callable[[], Method]]:
    """What makes each method, in the order of the table."""
    return {
        Fecam.name: Fecam,
        StreamedLDA.name: StreamedLDA,
        LDA.name: LDA,
        Logistic.name: Logistic,
        LastLayer.name: LastLayer,
        LastLayerWithoutSamples.name: lambda: LastLayerWithoutSamples(n_classes),
        Neighbors.name: Neighbors,
        VectorDatabase.name: VectorDatabase,
    }
