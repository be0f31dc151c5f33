"""A classifier as an ONNX graph, alone or behind its encoder, for programs without this package.

The graph holds what a prediction needs: prototypes, the inverse Cholesky factors of the class
matrices, and the temperature of the softmax. It cannot learn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular

import fecam
from fecam.classifier import FeCAMClassifier
from fecam.core.arrays import to_numpy
from fecam.core.metric import distance_scale
from fecam.errors import InputError, ModelFileError, needs_extra
from fecam.files import write_atomically
from fecam.settings import log_priors
from fecam.validation import counted

if TYPE_CHECKING:
    import onnx

MAX_BYTES = 1_900_000_000
"""Size of the factors: a file of ONNX in one piece has at most 2 GB."""
OPSET = 18
"""The oldest set of operators that is written."""
FEATURES, LABEL, PROBABILITIES, DISTANCES = "features", "label", "probabilities", "distances"
"""Names of the input and of the outputs."""
_EPSILON = np.float32(1e-30)
"""Added to lengths, so that a row of zeros stays one."""


def export_onnx(
    classifier: FeCAMClassifier,
    path: str | os.PathLike[str],
    *,
    encoder: str | os.PathLike[str] | None = None,
) -> None:
    """Write a classifier as an ONNX file.

    The outputs are ``label`` (n), ``probabilities`` and squared ``distances`` (n, n_classes); the
    labels of the columns are the JSON list ``fecam.labels`` in the metadata. Distances agree with
    `FeCAMClassifier.decision_function` up to rounding in single precision.

    Parameters
    ----------
    classifier : FeCAMClassifier
        A classifier with classes.
    path : path-like
        The file to write.
    encoder : path-like, optional
        An ONNX file with the output ``features``, such as `fecam export-encoder` writes. The input
        of the exported graph is then that of the encoder instead of ``features`` (n, d).

    Raises
    ------
    InputError
        If there are no classes, the matrices are too large for a file, or the widths differ.
    ModelFileError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [1.0, 0.1], [0.1, 1.0]], ["cat", "dog", "cat"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_onnx(clf, folder + "/pets.onnx")
    """
    with needs_extra("exporting to ONNX", "onnx"):
        import onnx
    network = None if encoder is None else onnx.load(os.fspath(encoder))
    opset = OPSET if network is None else max(OPSET, network.opset_import[0].version)
    model = _head(classifier, opset)
    if network is not None:
        model = _behind(network, model, classifier.n_features_in_)
    labels = classifier.classes_.tolist()
    about = {"fecam.labels": json.dumps(labels), "fecam.version": fecam.__version__}
    for key, value in about.items():
        model.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(model)
    try:
        write_atomically(Path(path), model.SerializeToString())
    except OSError as error:
        raise ModelFileError(
            f"{path} was not written: {error.strerror or error}. Choose a folder that exists and "
            "has space."
        ) from None


class _Graph:
    """Nodes and constants of a graph; each method returns the name of a result."""

    def __init__(self) -> None:
        from onnx import helper, numpy_helper

        self._node, self._tensor = helper.make_node, numpy_helper.from_array
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: NDArray[Any]) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._tensor(value, name))
        return name

    def __call__(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self._node(operator, list(inputs), [name], **attributes))
        return name

    def numbers(self, *values: float) -> str:
        return self.constant(np.asarray(values, np.float32))

    def axes(self, *values: int) -> str:
        return self.constant(np.asarray(values, np.int64))


def _head(classifier: FeCAMClassifier, opset: int) -> onnx.ModelProto:
    """Return the graph of a classifier."""
    from onnx import TensorProto, helper

    state = classifier.state_
    if not state.classes:
        raise InputError("the model has no classes, so there is nothing to export.")
    n_classes, graph = len(state.classes), _Graph()
    queries = _transformed(graph, classifier)
    distances = _distances(graph, classifier, queries)
    graph("Identity", distances, output=DISTANCES)
    logits = graph("Div", graph("Sqrt", distances), graph.numbers(-classifier.temperature_))
    priors = log_priors(classifier.priors, state)
    if priors is not None:
        logits = graph("Add", logits, graph.constant(priors.astype(np.float32)))
    graph("Softmax", logits, axis=1, output=PROBABILITIES)
    nearest = graph("ArgMax", logits, axis=1, keepdims=0)
    labels = classifier.classes_
    as_text = labels.dtype.kind == "U"
    graph("Gather", graph.constant(labels.astype(object) if as_text else labels), nearest,
          axis=0, output=LABEL)  # fmt: skip
    kinds = {"U": TensorProto.STRING, "b": TensorProto.BOOL}
    kind = kinds.get(labels.dtype.kind, TensorProto.INT64)
    outputs = [
        helper.make_tensor_value_info(LABEL, kind, ["n"]),
        helper.make_tensor_value_info(PROBABILITIES, TensorProto.FLOAT, ["n", n_classes]),
        helper.make_tensor_value_info(DISTANCES, TensorProto.FLOAT, ["n", n_classes]),
    ]
    shape = ["n", classifier.n_features_in_]
    inputs = [helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, shape)]
    made = helper.make_graph(graph.nodes, "fecam", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(made, opset_imports=opsets, ir_version=8, producer_name="fecam")


def _transformed(graph: _Graph, classifier: FeCAMClassifier) -> str:
    """Add Tukey's transform, unit length and projection; return the transformed features."""
    transform, rows = classifier.state_.transform, FEATURES
    if transform.power is not None:
        power = transform.power
        rows = graph("Log", rows) if power == 0 else graph("Pow", rows, graph.numbers(power))
    if transform.unit:
        rows = _unit_length(graph, rows)
    if transform.projection is not None:
        projection = to_numpy(transform.projection).astype(np.float32)
        rows = graph("MatMul", rows, graph.constant(projection))
    return _unit_length(graph, rows) if classifier.metric_.unit_compare else rows


def _unit_length(graph: _Graph, rows: str) -> str:
    length = graph("ReduceL2", rows, graph.axes(1), keepdims=1)
    return graph("Div", rows, graph("Add", length, graph.numbers(float(_EPSILON))))


def _distances(graph: _Graph, classifier: FeCAMClassifier, queries: str) -> str:
    """Add the squared distances (n, n_classes) of queries (n, d) to all classes."""
    metric, means = classifier.metric_, classifier.means_.astype(np.float32)
    stats = list(classifier.state_.classes.values())
    labels: Sequence[Any] = list(classifier.state_.classes)
    expanded = graph("Unsqueeze", queries, graph.axes(0))  # (1, n, d)
    differences = graph("Sub", expanded, graph.constant(means[:, None]))  # (n_classes, n, d)
    if metric.covariance in ("diagonal", "identity"):
        weights = [np.diag(classifier.covariance_(label)) ** -0.5 for label in labels]
        factors = np.stack(weights).astype(np.float32)[:, None]
        whitened = graph("Mul", differences, graph.constant(factors))
    elif metric.is_shared:
        scales = np.asarray([distance_scale(part, metric) for part in stats])
        base = classifier.covariance_(labels[0]) * scales[0]
        whitened = graph("MatMul", differences, graph.constant(_whitening(base)))
        roots = np.sqrt(scales).astype(np.float32)[:, None, None]
        whitened = graph("Mul", whitened, graph.constant(roots))
    else:
        size = 4 * len(labels) * means.shape[1] ** 2
        if size > MAX_BYTES:
            raise InputError(
                f"the matrices of {counted(len(labels), 'class')} with {means.shape[1]} features "
                f"take {size / 1e9:.1f} GB; an ONNX file holds {MAX_BYTES / 1e9:.1f}. Compress a "
                "copy of the model first (`fecam compress`), or export it as .safetensors."
            )
        factors = np.stack([_whitening(classifier.covariance_(label)) for label in labels])
        whitened = graph("MatMul", differences, graph.constant(factors))
    squares = graph("ReduceSumSquare", whitened, graph.axes(2), keepdims=0)  # (n_classes, n)
    return graph("Transpose", squares, perm=[1, 0])


def _whitening(covariance: NDArray[Any]) -> NDArray[np.float32]:
    """Return the matrix that whitens rows: the transposed inverse of the Cholesky factor."""
    lower = cholesky(covariance.astype(np.float64), lower=True)
    inverse = solve_triangular(lower, np.eye(len(lower)), lower=True)
    return np.ascontiguousarray(inverse.T, np.float32)


def _behind(encoder: onnx.ModelProto, head: onnx.ModelProto, width: int) -> onnx.ModelProto:
    """Return one graph: the encoder's, and the head on its output."""
    from onnx import compose, version_converter

    outputs = {node.name: node for node in encoder.graph.output}
    if FEATURES not in outputs:
        raise InputError(
            f"the encoder has the outputs {', '.join(outputs)}; one must be {FEATURES!r}. Write "
            "the encoder with `fecam export-encoder`."
        )
    shape = outputs[FEATURES].type.tensor_type.shape.dim
    if shape and shape[-1].dim_value not in (0, width):
        raise InputError(
            f"the encoder has {shape[-1].dim_value} features, the model {width}. Give the encoder "
            "that the model was learned with."
        )
    opset = head.opset_import[0].version
    if encoder.opset_import[0].version != opset:
        try:
            encoder = version_converter.convert_version(encoder, opset)
        except RuntimeError as error:
            raise InputError(
                f"the encoder has version {encoder.opset_import[0].version} of ONNX's operators, "
                f"which cannot be converted to {opset}: {str(error)[:200]}. Export both files."
            ) from None
    encoder.ir_version = head.ir_version = max(encoder.ir_version, head.ir_version)
    head = compose.add_prefix(head, "head/", rename_outputs=False, rename_inputs=False)
    merged = compose.merge_models(
        encoder, head, io_map=[(FEATURES, FEATURES)], outputs=[LABEL, PROBABILITIES, DISTANCES]
    )
    return merged
