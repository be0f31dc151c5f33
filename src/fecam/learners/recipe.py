"""How networks are made and trained in an experiment: the same for all its learners."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fecam.data.dataset import Dataset
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.resnet import make_network
from fecam.errors import TrainingError
from fecam.training.base_training import base_images, stem_for
from fecam.training.plan import TrainingPlan

HUB = "hf:"
"""How the names of models of `transformers` start."""


@dataclass(frozen=True)
class Recipe:
    """The network, its input, and the training plans.

    Parameters
    ----------
    network : callable
        Returns a new network of images to features, with the attribute ``n_features``.
    preprocessing : ImagePreprocessing
        The input of the network.
    first : TrainingPlan
        For the first task, and for networks that are trained from scratch.
    later : TrainingPlan, optional
        For later tasks; by default as for the first.
    device : {"cpu", "cuda", "mps"}, optional
        By default a GPU if there is one.
    """

    network: Callable[[], nn.Module]
    preprocessing: ImagePreprocessing
    first: TrainingPlan
    later: TrainingPlan | None = None
    device: Any = None

    def plan(self, task: int, *, from_scratch: bool = False) -> TrainingPlan:
        """Return the plan of a task; its seed depends on the task.

        Parameters
        ----------
        task : int
            The index of the task, from 0.
        from_scratch : bool, default=False
            Whether the network is trained from new weights, as for the first task.

        Returns
        -------
        TrainingPlan
            The plan.
        """
        if not task:
            return self.first
        plan = self.first if from_scratch else self.later or self.first
        seed = int(np.random.SeedSequence([plan.seed, task]).generate_state(1)[0])
        return replace(plan, seed=seed)


def recipe_for(
    data: Dataset,
    classes: Sequence[int],
    first: TrainingPlan,
    later: TrainingPlan | None = None,
    *,
    width: int = 64,
    size: int | None = None,
    network_name: str = "resnet18",
    device: Any = None,
) -> Recipe:
    """Return a recipe with a ResNet and the normalization of the first task's images.

    Parameters
    ----------
    data : Dataset
        A data set of images.
    classes : sequence of int
        The labels of the first task.
    first, later : TrainingPlan
        The plans; by default later tasks are trained as the first.
    width : int, default=64
        Channels of the first layer; a ResNet-18 has ``8 * width`` features.
    size : int, optional
        The side of the network's input in pixels; by default that of small images, else 224.
    network_name : {"resnet18", "resnet20", "resnet12"}, default="resnet18"
        The network.
    device : {"cpu", "cuda", "mps"}, optional
        By default a GPU if there is one.

    Returns
    -------
    Recipe
        The recipe.

    Examples
    --------
    >>> from fecam.data import load
    >>> recipe = recipe_for(load("digits"), [0, 1], TrainingPlan(epochs=1), width=2)
    >>> recipe.network().n_features
    16
    """
    preprocessing = base_images(data, classes, size).preprocessing
    network = partial(make_network, network_name, width, stem_for(preprocessing.size))
    return Recipe(network, preprocessing, first, later, device)


def transformer_recipe(
    name: str,
    first: TrainingPlan,
    later: TrainingPlan | None = None,
    *,
    revision: str | None = None,
    device: Any = None,
) -> Recipe:
    """Return a recipe that starts from a pretrained vision transformer or ResNet-18.

    Parameters
    ----------
    name : str
        ``hf:`` and a folder or a model on the hub, as for `fecam.encoders.load`.
    first, later : TrainingPlan
        The plans; by default later tasks are trained as the first.
    revision : str, optional
        A branch or commit on the hub.
    device : {"cpu", "cuda", "mps"}, optional
        By default a GPU if there is one.

    Returns
    -------
    Recipe
        With the preprocessing of the model.

    Raises
    ------
    EncoderError
        If there is no such model, or it is neither a ``ViTModel`` nor a ResNet-18.
    TrainingError
        If the name is that of another encoder.
    """
    if not name.startswith(HUB):
        raise TrainingError(
            f"the encoder {name!r} cannot be trained: learners start from a vision transformer or "
            "a ResNet-18, hf:MODEL or hf:FOLDER, or train a network without [encoder]."
        )
    from fecam.encoders.huggingface import find_folder
    from fecam.encoders.huggingface_images import read_preprocessing
    from fecam.encoders.huggingface_resnet import load_resnet
    from fecam.encoders.transformer_network import load_transformer

    folder = find_folder(name.removeprefix(HUB), revision)
    loaders: dict[str, Callable[[Path], nn.Module]] = {
        "vit": load_transformer,
        "resnet": load_resnet,
    }
    kind = json.loads((folder / "config.json").read_text("utf-8")).get("model_type", "vit")
    if kind not in loaders:
        raise TrainingError(
            f"{name!r} is a model of the type {kind!r}: learners start from a vision transformer "
            "(vit) or a ResNet-18 (resnet)."
        )
    network = partial(loaders[kind], folder)
    return Recipe(network, read_preprocessing(folder), first, later, device)
