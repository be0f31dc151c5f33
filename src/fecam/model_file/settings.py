"""The settings of a file: a classifier's parameters, what it found, and what the file is for."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping
from typing import Any

import numpy as np

from fecam.classifier import FeCAMClassifier
from fecam.core.state import ClassifierState
from fecam.core.transforms import Transform
from fecam.model_rows import MAX_TEXT, file_error, parse_json
from fecam.settings import read_metric

MAX_WIDTH = 10_000_000
PARAMETERS = tuple(FeCAMClassifier().get_params())
# As in scikit-learn, what was found while learning ends with an underscore.
FOUND = ("tukey_", "unit_", "form_", "n_features_in_", "feature_names_in_")
RENAMED_SEARCH = {"certified": "exact", "shortlist": "approximate"}
"""Values of ``search`` in files of older versions, and what they are called now."""
ABOUT = ("fecam_", "encoder_", "version_", "prior_", "checksum_")
"""Of the file: who wrote it, for which encoder, how often it changed, and where its prior is."""


def pack_settings(classifier: FeCAMClassifier, known: ClassifierState) -> dict[str, str]:
    """The parameters of a classifier and what it found while learning, each as JSON."""
    from fecam import __version__  # the package is still being imported while this module is

    parameters = classifier.get_params()
    names = getattr(classifier, "feature_names_in_", None)
    values = {name: parameters[name] for name in PARAMETERS} | {
        "tukey_": known.transform.power,
        "unit_": known.transform.unit,
        "form_": known.scatter_kind,
        "n_features_in_": known.n_features,
        "feature_names_in_": None if names is None else list(names),
        "fecam_": __version__,
    }
    return {name: json.dumps(value, default=_plain) for name, value in values.items()}


def _plain(value: Any) -> Any:
    """What JSON cannot write: an array, or a number of another library."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else float(value)


def unpack_settings(settings: Mapping[str, str]) -> tuple[FeCAMClassifier, ClassifierState]:
    """A classifier with these settings, and the empty knowledge that it starts from."""
    values = {name: json.loads(text) for name, text in settings.items()}
    power, width, names = values["tukey_"], values["n_features_in_"], values["feature_names_in_"]
    is_right = {
        "tukey_": power is None or (type(power) in (int, float) and math.isfinite(power)),
        "unit_": isinstance(values["unit_"], bool),
        "form_": values["form_"] in ("full", "diagonal", "none"),
        "n_features_in_": type(width) is int and 1 <= width <= MAX_WIDTH,
        "feature_names_in_": names is None
        or (isinstance(names, list) and len(names) == width and {*map(type, names)} == {str}),
        "fecam_": isinstance(values["fecam_"], str),
        "version_": type(values["version_"]) is int and values["version_"] >= 0,
        "prior_": values["prior_"] is None or type(values["prior_"]) is int,
    }
    for name in is_right:
        if not is_right[name]:
            raise file_error(f"the setting {name!r} cannot be {settings[name][:80]}.")
    parameters: dict[str, Any] = {name: values[name] for name in PARAMETERS}
    if isinstance(parameters["search"], str):
        parameters["search"] = RENAMED_SEARCH.get(parameters["search"], parameters["search"])
    for name, value in parameters.items():
        if isinstance(value, list):
            parameters[name] = tuple(value)
    read_metric(parameters)
    classifier = FeCAMClassifier(**parameters)
    classifier.n_features_in_ = width
    if names is not None:
        classifier.feature_names_in_ = np.asarray(names, dtype=object)
    transform = Transform(None if power is None else float(power), values["unit_"])
    anchor = np.zeros(0, dtype=classifier.dtype)
    return classifier, ClassifierState(transform, values["form_"], width, anchor)


def read_settings(db: sqlite3.Connection) -> dict[str, str]:
    """All settings of a file as JSON, none missing and none unknown."""
    settings: dict[str, str] = {}
    for name, value in db.execute("SELECT name, value FROM settings NOT INDEXED"):
        if name not in PARAMETERS and name not in FOUND and name not in ABOUT:
            what = f"it has a setting {str(name)[:80]!r} that is not known here."
            raise file_error(what, "Upgrade fecam to open it.")
        longest = math.inf if name == "feature_names_in_" else MAX_TEXT
        parse_json(f"setting {name!r}", value, longest=longest)
        if name in settings:
            raise file_error(f"the setting {name!r} comes twice.")
        settings[name] = value
    for name in (*PARAMETERS, *FOUND, *ABOUT):
        if name not in settings:
            raise file_error(f"the setting {name!r} is missing.")
    return settings
