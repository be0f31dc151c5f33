"""The OpenAPI document, made from the operations of `fecam.api` and their types."""

import ast
import inspect
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any, get_origin, get_type_hints

from msgspec.json import schema_components

from fecam import __version__, api, results
from fecam.api import Operation

Schema = dict[str, Any]

_REFERENCE = "#/components/schemas/{name}"

_ERRORS = {
    400: "The body cannot be read.",
    401: "A token is required.",
    403: "The token or the origin of the page does not allow it.",
    404: "There is no such class.",
    408: "The body arrived too slowly.",
    409: "The model has no classes, or no step can be undone.",
    413: "Too many bytes or items.",
    415: "The content type is not supported.",
    422: "A value is invalid.",
    429: "The queue is full; see Retry-After.",
    503: "Temporarily unavailable; see Retry-After.",
}
_TEXT: Schema = {"type": "string"}
_COMPONENTS: dict[str, Schema] = {
    "Error": {
        "type": "object",
        "description": "A code for programs and a message for people.",
        "properties": {
            "error": {
                "type": "object",
                "properties": {"code": _TEXT, "message": _TEXT},
                "required": ["code", "message"],
            }
        },
        "required": ["error"],
    },
    "Status": {"type": "object", "properties": {"status": _TEXT}, "required": ["status"]},
    "Answer": {
        "type": "object",
        "description": "What every response has.",
        "properties": {
            "version": {
                "type": "integer",
                "description": "Version of the model; it grows with every change.",
            },
            "milliseconds": {"type": "number"},
        },
        "required": ["version", "milliseconds"],
    },
}
_FILES: Schema = {"type": "array", "minItems": 1, "items": {**_TEXT, "format": "binary"}}
_OCTETS = {
    "schema": {**_TEXT, "format": "binary"},
    "example": "rows of little-endian 32-bit floats",
}
_LABEL: Schema = {"name": "label", "in": "path", "required": True, "schema": _TEXT}
_PARAMETERS: dict[Operation, list[Schema]] = {
    api.RENAME: [_LABEL],
    api.FORGET: [
        _LABEL,
        {"name": "purge", "in": "query", "schema": {"type": "boolean", "default": False}},
    ],
    api.TEACH: [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "schema": {**_TEXT, "maxLength": api.MAX_KEY},
        }
    ],
}
_MEDIA = {api.FILE: "application/vnd.sqlite3", api.METRICS: "text/plain"}


def openapi(docs: Mapping[Operation, str | None]) -> Schema:
    """Return the document; ``docs`` has the docstring of each operation."""
    bodies = {op.body for op in docs if op.body is not None}
    kinds = {op.result for op in docs if op.result is not None} | bodies
    _, schemas = schema_components(
        sorted(kinds, key=lambda kind: kind.__name__),
        schema_hook=lambda kind: {**_TEXT, "contentEncoding": "base64"},
        ref_template=_REFERENCE,
    )
    for name, schema in schemas.items():
        if hasattr(results, name):
            _complete_result(schema, getattr(results, name))
    for name in ("Prediction", "Explanation"):
        schemas[name]["required"] = []  # an item that cannot be read has only an error
    requests = {kind: schemas.pop(kind.__name__) for kind in bodies}
    paths: dict[str, Schema] = {}
    for op, text in docs.items():
        summary, _, description = inspect.cleandoc(text or "").partition("\n")
        item: Schema = {
            "operationId": f"{op.method} {op.path}",
            "summary": summary.rstrip("."),
            "description": description.strip(),
            "tags": [op.tag],
            "parameters": list(_PARAMETERS.get(op, [])),
            "responses": _responses(op),
        }
        if op.body is not None:
            variants = _variants(op.body, requests[op.body])
            schemas |= variants
            item["requestBody"] = _body(op, requests[op.body], list(variants))
        if op is api.PREDICT:
            fields = _form_fields(requests[api.PredictRequest])
            item["parameters"] += [
                {"name": name, "in": "query", "schema": schema} for name, schema in fields.items()
            ]
        paths.setdefault(op.path, {})[op.method.lower()] = item
    summary = "Teach a model new classes and predict."
    return {
        "openapi": "3.1.0",
        "info": {"title": "fecam", "summary": summary, "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas | _COMPONENTS},
    }


def _complete_result(schema: Schema, kind: type[Any]) -> None:
    """Name the fields as `fecam.results.to_json` does, and add what it adds."""
    described: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        described |= _attribute_docs().get(base.__name__, {})
    fields: Schema = {}
    for name, field in schema["properties"].items():
        if field.get("type") == "number":  # JSON has no NaN
            field = {"anyOf": [field, {"type": "null"}]}
        if name not in {*api.LOCAL_FIELDS, *_COMPONENTS["Answer"]["properties"]}:
            text = {"description": described[name]} if name in described else {}
            fields[name.removeprefix("n_")] = {**field, **text}
    if any(get_origin(hint) is Mapping for hint in get_type_hints(kind).values()):
        fields["label_type"] = {
            "enum": ["str", "int", "bool"],
            "description": "Type of the labels that are keys; absent if there are none.",
        }
    required = [name.removeprefix("n_") for name in schema.get("required", [])]
    schema["properties"], schema["required"] = fields, [one for one in required if one in fields]


@cache
def _attribute_docs() -> dict[str, dict[str, str]]:
    """Return the strings below the attributes of each class in `fecam.results`."""
    docs: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(results)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        docs[node.name] = {}
        for field, text in pairwise(node.body):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(content))),
                ):
                    docs[node.name][name] = inspect.cleandoc(content)
    return docs


def _variants(kind: type[api.Request], schema: Schema) -> dict[str, Schema]:
    """Return a schema for each kind of items and of labels, which exclude each other."""
    if not _has_items(schema):
        return {kind.__name__: schema}
    label_fields = [name for name in ("label", "labels") if name in schema["properties"]]
    variants = {}
    for items in api.KINDS:
        for label in label_fields or [""]:
            others = {*api.KINDS, *label_fields} - {items, label}
            prefix = {"label": "Teach", "labels": "Labeled"}.get(label)
            prefix = prefix or kind.__name__.removesuffix("Request")
            variants[f"{prefix}{items.title()}"] = {
                **schema,
                "title": f"{prefix}{items.title()}",
                "properties": {k: v for k, v in schema["properties"].items() if k not in others},
                "required": [items, *([label] if label else [])],
            }
    return variants


def _has_items(schema: Schema) -> bool:
    return any(kind in schema["properties"] for kind in api.KINDS)


def _form_fields(schema: Schema) -> Schema:
    """Return the fields of a request that are no items."""
    fields = schema["properties"].items()
    return {name: field for name, field in fields if name not in {*api.KINDS, "labels"}}


def _body(op: Operation, schema: Schema, variants: list[str]) -> Schema:
    references = [{"$ref": _REFERENCE.format(name=name)} for name in variants]
    content: Schema = {"application/json": {"schema": {"anyOf": references}}}
    if _has_items(schema):
        form = {"files": _FILES, **_form_fields(schema)}
        required = [name for name in ("files", "label") if name in form]
        content["multipart/form-data"] = {
            "schema": {"type": "object", "properties": form, "required": required}
        }
    if op is api.PREDICT:
        content["application/octet-stream"] = _OCTETS
    return {"required": op.body is not api.UndoRequest, "content": content}


def _responses(op: Operation) -> Schema:
    def response(description: str, schema: Schema, media: str = "application/json") -> Schema:
        return {"description": description, "content": {media: {"schema": schema}}}

    def reference(name: str) -> Schema:
        return {"$ref": _REFERENCE.format(name=name)}

    if op in _MEDIA:
        return {"200": response("The file.", _TEXT, _MEDIA[op])}
    if op.result is None:
        return {code: response("The status.", reference("Status")) for code in ("200", "503")}
    result = reference(op.result.__name__)
    if op.list_name:
        items = {op.list_name: {"type": "array", "items": result}}
        result = {"type": "object", "properties": items, "required": [op.list_name]}
    errors = {str(code): response(text, reference("Error")) for code, text in _ERRORS.items()}
    return {"200": response("The result.", {"allOf": [result, reference("Answer")]}), **errors}
