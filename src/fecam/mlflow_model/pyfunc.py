"""`PyfuncModel`, and how to save it. The model is a file beside it and the code is imported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd

import fecam
from fecam.errors import InputError
from fecam.model.model import Model

ARTIFACT = "model"
_SCRIPT = Path(__file__).with_name("script.py")


class PyfuncModel(mlflow.pyfunc.PythonModel):
    """Predicts a label, its probability and the novelty of each row of a data frame.

    Rows are features, or have one column of texts, paths or bytes of images. The parameter
    ``reject`` is the share of known items that may be rejected: their label is None.
    """

    def load_context(self, context: Any) -> None:
        """Open the model file."""
        self._model = Model(context.artifacts[ARTIFACT], readonly=True)

    # MLflow derives checks from annotations, and warns of those that it cannot check.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Return a row per item with the columns ``label``, ``probability`` and ``novelty``."""
        options = params or {}
        found = self._model.predict_detailed(self._items(model_input), reject=options.get("reject"))
        return pd.DataFrame(
            {
                "label": [one.label for one in found],
                "probability": [one.nearest[0].probability for one in found],
                "novelty": [one.novelty for one in found],
            }
        )

    def _items(self, rows: Any) -> Any:
        if self._model.kind == "features":
            return np.asarray(rows, np.float32)
        if isinstance(rows, pd.DataFrame):
            if rows.shape[1] != 1:
                raise InputError(
                    f"the model takes {self._model.kind}, so the data frame must have one column; "
                    f"it has {rows.shape[1]}."
                )
            return rows.iloc[:, 0].tolist()
        return list(rows)


def save_model(model: str | os.PathLike[str], path: str | os.PathLike[str], **options: Any) -> None:
    """Save a model file as an MLflow model in a folder.

    No object is pickled: the folder has a copy of the file and a script that imports this package.

    Parameters
    ----------
    model : path-like
        A ``.fecam`` file.
    path : path-like
        The folder to create.
    **options : object
        Further arguments of `mlflow.pyfunc.save_model`, such as ``metadata``.

    Raises
    ------
    ModelFileError
        If the model file cannot be read.
    """
    Model(model, readonly=True).close()  # raises before anything is written
    requirements = [f"fecam=={fecam.__version__}"]
    mlflow.pyfunc.save_model(
        os.fspath(path),
        python_model=os.fspath(_SCRIPT),
        artifacts={ARTIFACT: os.fspath(model)},
        **{"pip_requirements": requirements, **options},
    )
