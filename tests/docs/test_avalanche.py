"""The Avalanche strategy of the docs, where Avalanche can be imported."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("avalanche", reason="Avalanche needs torchvision, which has no build here")

import torch

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "other-libraries.md"


def test_the_strategy_learns_class_by_class():
    from avalanche.benchmarks import tensors_benchmark
    from sklearn.datasets import load_digits

    (code,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    scope: dict = {}
    exec(code, scope)
    X, y = load_digits(return_X_y=True)
    X, y = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y)
    parts = [np.flatnonzero(np.isin(y, task)) for task in ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])]
    tensors = [(X[rows], y[rows]) for rows in parts]
    benchmark = tensors_benchmark(
        train_tensors=tensors,
        test_tensors=tensors,
        task_labels=[0, 0],
        complete_test_set_only=False,
    )
    strategy = scope["FeCAMStrategy"](model=torch.nn.Identity(), n_classes=10, evaluator=None)
    for experience in benchmark.train_stream:
        strategy.train(experience)
    assert strategy.classifier.score(X, y) > 0.9
