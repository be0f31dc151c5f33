"""`fecam explain`: why an item is predicted as its class."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from fecam.cli import completion
from fecam.cli.confirmation import Replace, confirm_replacing
from fecam.cli.data import Device, TableOptions
from fecam.cli.model import (
    ModelPath,
    exit_if_unreadable,
    open_existing,
    print_unreadable,
    require_classes,
)
from fecam.cli.output import AsJson, console, print_note, show_json, show_table, single_line
from fecam.cli.unlabeled import Paths, read_pool, require_items
from fecam.errors import InputError
from fecam.files import write_atomically

if TYPE_CHECKING:
    from fecam.results import ClassDistance, Explanation

PICTURES = (".png", ".svg")
PAGES = (".html", ".htm")


def explain(
    paths: Paths,
    model: ModelPath,
    top: Annotated[int, Option("--top", "-k", min=1, help="Number of nearest classes.")] = 3,
    label: Annotated[
        str | None,
        Option(
            "--class",
            metavar="LABEL",
            help="Class whose distance is decomposed; default: the nearest.",
            autocompletion=completion.labels,
        ),
    ] = None,
    parts: Annotated[
        int, Option(min=1, help="Number of directions and of features that are listed.")
    ] = 5,
    output: Annotated[
        Path | None,
        Option("--output", "-O", help="Also write bar charts: .html, or .png or .svg of one item."),
    ] = None,
    yes: Replace = False,
    option: TableOptions = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Explain predictions: nearest classes, novelty, and what the distances consist of.

    Exit code 3: done, but some items were unreadable.

    Example: `fecam explain strange.jpg -m birds.fecam --output why.html`
    """
    if output is not None and output.suffix.lower() not in PICTURES + PAGES:
        raise InputError(f"--output {output}: the file name must end in .html, .png or .svg")
    if output is not None and not output.absolute().parent.is_dir():
        raise InputError(f"--output {output}: there is no folder {output.parent}. Create it first")
    confirm_replacing(output, yes)
    if output is not None:
        import fecam.report.drawing  # noqa: F401 (raises now if matplotlib is missing)
    with open_existing(model, device=device) as opened:
        require_classes(opened)
        explained = None if label is None else opened.label_of(label)
        pool = read_pool(opened, paths, option)
        require_items(pool, paths)
        if output is not None and output.suffix.lower() in PICTURES and len(pool.names) > 1:
            raise InputError(
                f"--output {output} shows one item; there are {len(pool.names):,}. Remedy: .html"
            )
        explanations = [
            opened.classifier.explain(row, k=top, label=explained, n_parts=parts)
            for row in pool.features
        ]
    if output is not None:
        from fecam.report.explanation import explanation_page, explanation_picture

        if output.suffix.lower() in PAGES:
            page = explanation_page(pool.names, explanations, pool.kind, model.name)
            write_atomically(output, page)
        else:
            picture = explanation_picture(pool.names[0], explanations[0])
            is_svg = output.suffix.lower() == ".svg"
            write_atomically(output, picture.svg if is_svg else picture.png)
        print_note(f"explanation: {output}")
    print_unreadable(pool.unreadable)
    if as_json:
        items = [
            {"item": name, **_as_json(explanation)}
            for name, explanation in zip(pool.names, explanations, strict=True)
        ]
        show_json({"model": str(model), "items": items, "unreadable": pool.unreadable})
    else:
        for i, (name, explanation) in enumerate(zip(pool.names, explanations, strict=True)):
            if i:
                console.print()
            _show(name, explanation)
    exit_if_unreadable(len(pool.unreadable))


def _as_json(explanation: Explanation) -> dict[str, Any]:
    content = asdict(explanation)
    del content["error"]
    if math.isnan(explanation.novelty):
        content["novelty"] = None
    return content


def _show(name: str, explanation: Explanation) -> None:
    from fecam.report.explanation import sentences

    for sentence in [f"{single_line(name)}: {explanation.label}", *sentences(explanation)]:
        console.print(sentence)
    rows = [
        [
            near.label,
            f"{near.count:,}",
            f"{100 * near.probability:.1f}",
            f"{near.distance:.3g}",
            f"{near.expected:.3g}",
            *(f"{share:.0f}" for share in _shares(near)),
        ]
        for near in explanation.nearest
    ]
    header = ["class", "samples", "probability %", "distance", "expected"]
    show_table([*header, "samples %", "prior %", "shrinkage %"], rows)
    rows = [
        [
            part.number,
            f"{part.contribution:.2g}",
            f"{part.deviation:+.1f}",
            f"{100 * part.from_samples:.0f}",
        ]
        for part in explanation.directions
    ]
    rows.append(["others", f"{explanation.other_directions:.2g}", "", ""])
    show_table(["direction", "part of distance", "deviations", "samples %"], rows)
    rows = [[part.name, f"{part.contribution:.2g}"] for part in explanation.features]
    rows.append(["others", f"{explanation.other_features:.2g}"])
    show_table(["feature", "part of distance"], rows)


def _shares(near: ClassDistance) -> list[float]:
    """Return the parts of a distance in percent."""
    parts = near.from_samples, near.from_prior, near.from_shrinkage
    return [100 * part / (near.distance or 1.0) for part in parts]
