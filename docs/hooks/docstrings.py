"""Converts docstrings for the pages of the reference.

Formulas in LaTeX become plain HTML and doctests fenced blocks, so that the pages need neither a
script nor a network.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

SYMBOLS = {
    r"\alpha": "&alpha;",
    r"\beta": "&beta;",
    r"\gamma": "&gamma;",
    r"\delta": "&delta;",
    r"\epsilon": "&epsilon;",
    r"\varepsilon": "&epsilon;",
    r"\lambda": "&lambda;",
    r"\mu": "&mu;",
    r"\nu": "&nu;",
    r"\phi": "&phi;",
    r"\rho": "&rho;",
    r"\sigma": "&sigma;",
    r"\tau": "&tau;",
    r"\theta": "&theta;",
    r"\eta": "&eta;",
    r"\Phi": "&Phi;",
    r"\Sigma": "&Sigma;",
    r"\Delta": "&Delta;",
    r"\sum": "&sum;",
    r"\lVert": "&Vert;",
    r"\|": "&Vert;",
    r"\partial": "&part;",
    r"\nabla": "&nabla;",
    r"\rVert": "&Vert;",
    r"\kappa": "&kappa;",
    r"\ell": "&#8467;",
    r"\log": "log ",
    r"\exp": "exp ",
    r"\cos": "cos ",
    r"\min": "min ",
    r"\max": "max ",
    r"\le": "&le;",
    r"\ge": "&ge;",
    r"\succeq": "&#8829;",
    r"\approx": "&asymp;",
    r"\sim": "~",
    r"\cdot": "&middot;",
    r"\circ": "&#8728;",
    r"\omega": "&omega;",
    r"\pm": "&plusmn;",
    r"\times": "&times;",
    r"\to": "&rarr;",
    r"\leftarrow": "&larr;",
    r"\mid": "|",
    r"\in": "&isin;",
    r"\infty": "&infin;",
    r"\dots": "&hellip;",
    r"\ldots": "&hellip;",
    r"\quad": "&emsp;",
    r"\qquad": "&emsp;&emsp;",
    r"\left": "",
    r"\right": "",
    r"\ne": "&ne;",
    r"\notin": "&notin;",
    r"\propto": "&prop;",
    r"\arg": "arg ",
    r"\langle": "&lang;",
    r"\rangle": "&rang;",
    r"\{": "&#123;",
    r"\}": "&#125;",
    r"\big": "",
    r"\bigl": "",
    r"\bigr": "",
    r"\Big": "",
    r"\Bigl": "",
    r"\Bigr": "",
    r"\,": " ",
    r"\!": "",
    r"\;": " ",
    r"\ ": " ",
}


def formula(latex: str) -> str:
    r"""Return a short formula as HTML.

    >>> formula(r"\Sigma_{ij} / \sigma_i^2")
    '<i class="formula">&Sigma;<sub>ij</sub> / &sigma;<sub>i</sub><sup>2</sup></i>'
    """
    html = latex.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    html = re.sub(r"\\(?:mathrm|mathbf|text|operatorname|overline)\{([^{}]*)\}", r"\1", html)
    html = re.sub(r"\\(?:hat|tilde|bar)(?:\{([^{}]*)\}| ?(\w|\\\w+))", r"\1\2", html)
    for symbol in sorted(SYMBOLS, key=len, reverse=True):
        html = html.replace(symbol, SYMBOLS[symbol])
    html = re.sub(r"_(?:\{([^{}]*)\}|(\w|&\w+;))", lambda m: f"<sub>{m[1] or m[2]}</sub>", html)
    html = re.sub(r"\^(?:\{([^{}]*)\}|(\w|&\w+;))", lambda m: f"<sup>{m[1] or m[2]}</sup>", html)
    html = html.replace(r"\tfrac", r"\frac")
    html = re.sub(r"\\frac(\w)(\w)", r"\1/\2 ", html)
    html = re.sub(r"\\frac(\w)\{([^{}]*)\}", r"\1/(\2)", html)
    html = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1) / (\2)", html)
    html = re.sub(r"\\sqrt\{([^{}]*)\}", r"&radic;(\1)", html)
    html = re.sub(r"\\sqrt (\w)", r"&radic;\1", html)
    if "\\" in html:
        raise ValueError(f"cannot show the formula {latex!r}: add its symbols to {__file__}")
    return f'<i class="formula">{html}</i>'


def markdown(text: str) -> str:
    """Return a docstring with its formulas and examples converted."""
    text = re.sub(r":math:`([^`]*)`", lambda match: formula(match[1]), text)
    return "\n\n".join(_paragraph(part) for part in text.split("\n\n"))


def _paragraph(text: str) -> str:
    if text.lstrip().startswith(">>> "):
        return f"```pycon\n{text}\n```"
    if text.startswith(".. math::"):
        formulas = text.split(".. math::")[1:]
        return "<br>\n".join(formula(" ".join(part.split())) for part in formulas)
    return text


class Docstrings(griffe.Extension):
    """Converts every docstring when it is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Convert the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
