"""The settings of a file: parameters and fitted values of a classifier, and facts on the file."""

import json
import math
import sqlite3
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from fecam.classifier import FeCAMClassifier
from fecam.core.state import ClassifierState
from fecam.core.transforms import Transform
from fecam.model_file.records import EncoderRecord
from fecam.model_rows import LABEL_RULE, MAX_TEXT, file_error, parse_json
from fecam.settings import read_metric

MAX_WIDTH = 10_000_000
PARAMETERS = tuple(FeCAMClassifier().get_params())
# As in scikit-learn, names of fitted values end with an underscore.
FITTED = ("tukey_", "unit_", "form_", "n_features_in_", "feature_names_in_")
ABOUT = ("fecam_", "encoder_", "version_", "prior_", "projection_", "checksum_")
"""Version of fecam, encoder, number of changes, ids of the prior and of the projection, checksum
over all settings."""
OPTIONAL = {"priors": "null"}
"""Settings that files of any version may lack, and what they stand for there."""
NEW_IN_4 = {"projection_": "null", **OPTIONAL}
"""The same for files of versions before 4."""
RENAMED_SEARCH = {"certified": "exact", "shortlist": "approximate"}
"""Values of ``search`` in older files, and their present names."""


def pack_settings(classifier: FeCAMClassifier) -> dict[str, str]:
    """Return the parameters and fitted values of a classifier, each as JSON."""
    from fecam import __version__  # not defined yet when this module is imported

    parameters, state = classifier.get_params(), classifier.state_
    names = getattr(classifier, "feature_names_in_", None)
    priors = parameters["priors"]
    values = {name: parameters[name] for name in PARAMETERS} | {
        # Pairs, because the names of a JSON object are strings.
        "priors": list(priors.items()) if isinstance(priors, Mapping) else priors,
        "tukey_": state.transform.power,
        "unit_": state.transform.unit,
        "form_": state.scatter_kind,
        "n_features_in_": state.n_features_in,
        "feature_names_in_": None if names is None else list(names),
        "fecam_": __version__,
    }
    return {name: json.dumps(value, default=_plain) for name, value in values.items()}


def _plain(value: Any) -> Any:
    """Return an array or a number of another library as JSON can write it."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else float(value)


def unpack_settings(settings: Mapping[str, str]) -> tuple[FeCAMClassifier, ClassifierState]:
    """Return a classifier with these settings, and the empty state that it starts from."""
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
        "projection_": type(values.get("projection_")) in (int, type(None)),
    }
    for name, right in is_right.items():
        if not right:
            raise file_error(f"the setting {name!r} cannot be {settings[name][:80]}.")
    parameters: dict[str, Any] = {
        name: tuple(values[name]) if isinstance(values[name], list) else values[name]
        for name in PARAMETERS
        if name != "priors"
    }
    parameters["priors"] = _unpack_priors(values.get("priors"))
    if isinstance(parameters["search"], str):
        parameters["search"] = RENAMED_SEARCH.get(parameters["search"], parameters["search"])
    read_metric(parameters)
    classifier = FeCAMClassifier(**parameters)
    classifier.n_features_in_ = width
    if names is not None:
        classifier.feature_names_in_ = np.asarray(names, dtype=object)
    transform = Transform(None if power is None else float(power), values["unit_"])
    like = np.zeros(0, dtype=classifier.dtype)
    return classifier, ClassifierState(transform, values["form_"], width, like)


def _unpack_priors(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if any(not isinstance(pair, list) or len(pair) != 2 for pair in value):
        raise file_error("the setting 'priors' is not a list of pairs.")
    if any(type(label) not in (bool, int, str) for label, _ in value):
        raise file_error(f"the setting 'priors' has a label that cannot be one. {LABEL_RULE}")
    return dict(value)


def unpack_encoder(text: str, width: int) -> EncoderRecord | None:
    """Return the encoder of a model with ``width`` features; None if it has none."""
    value = json.loads(text)
    if value is None:
        return None
    types = {"name": str, "fingerprint": str, "kind": str, "width": int}
    if not isinstance(value, dict) or {name: type(x) for name, x in value.items()} != types:
        raise file_error(f"the setting 'encoder_' cannot be {text[:80]}.")
    if value["width"] != width:
        raise file_error(f"its encoder gives {value['width']} features, its classes have {width}.")
    return EncoderRecord(**value)


def setting_names(version: int) -> list[str]:
    """Return the names of the settings of a file of this version, 3 or newer."""
    missing = NEW_IN_4 if version < 4 else {}
    return [name for name in (*PARAMETERS, *FITTED, *ABOUT) if name not in missing]


def read_settings(db: sqlite3.Connection, names: Collection[str]) -> dict[str, str]:
    """Return the settings of a file as JSON texts, if they have just these names."""
    settings: dict[str, str] = {}
    for name, value in db.execute("SELECT name, value FROM settings NOT INDEXED"):
        if name not in names:
            problem = f"it has a setting {str(name)[:80]!r} that is not known."
            raise file_error(problem, "Upgrade fecam to open it.")
        max_length = math.inf if name in ("feature_names_in_", "priors") else MAX_TEXT
        parse_json(f"setting {name!r}", value, max_length=max_length)
        if name in settings:
            raise file_error(f"the setting {name!r} comes twice.")
        settings[name] = value
    for name in names:
        if name not in settings and name not in OPTIONAL:
            raise file_error(f"the setting {name!r} is missing.")
    return settings
