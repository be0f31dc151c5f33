"""HTML building blocks: sections, figures, collapsible details, the whole page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from fecam.report.text import markup

if TYPE_CHECKING:
    from fecam.report.gallery import Picture

Section = tuple[str, str, str]
"""Id, title and HTML of a section."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def section(name: str, title: str, content: str, level: int = 2) -> Section:
    """Return a section with a heading."""
    heading = f'<h{level} id="{name}-title">{markup(title)}</h{level}>'
    return (
        name,
        title,
        f'<section id="{name}" aria-labelledby="{name}-title">\n{heading}\n{content}\n</section>',
    )


def figures(plots: Sequence[Picture], prefix: str = "", kind: str = "single") -> str:
    """Return plots with captions; ``prefix`` keeps their ids unique in the page."""
    from fecam.report.drawing import inline_svg

    shown = [
        f"<figure>{inline_svg(plot.svg, prefix + plot.name, markup(plot.label))}"
        f"<figcaption>{markup(plot.caption)}</figcaption></figure>"
        for plot in plots
    ]
    return f'<div class="figures {kind}">\n' + "\n".join(shown) + "\n</div>"


def details(title: str, content: str) -> str:
    """Return a collapsed element."""
    return f"<details><summary>{markup(title)}</summary>\n{content}\n</details>"


def description_list(facts: Mapping[str, str]) -> str:
    """Return names and values; entries without a value are omitted."""
    rows = [
        f"<div><dt>{name}</dt><dd>{markup(value)}</dd></div>"
        for name, value in facts.items()
        if value
    ]
    return f"<dl>{''.join(rows)}</dl>"


def page(title: str, lead: str, sections: Sequence[Section], footnote: str = "") -> str:
    """Return a complete page that needs no network and no script."""
    from fecam import __version__

    style = files("fecam.report").joinpath("page.css").read_text(encoding="utf-8")
    links = "".join(f'<li><a href="#{name}">{markup(text)}</a></li>' for name, text, _ in sections)
    body = "\n".join(html for _, _, html in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="generator" content="fecam {markup(__version__)}">
<title>{markup(title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<p class="eyebrow">fecam report</p>
<h1>{markup(title)}</h1>
<p class="lead">{markup(lead)}</p>
</header>
<nav aria-label="Contents"><ul>{links}</ul></nav>
<main>
{body}
</main>
<footer>Written by fecam {markup(__version__)}.{f" {footnote}" if footnote else ""}</footer>
</body>
</html>
"""
