"""Numbers formatted for readers, and text escaped for HTML and Markdown."""

import html
import re


def percent(fraction: float, std: float | None = None) -> str:
    """Return a fraction in percent, with its standard deviation if there is one."""
    return f"{100 * fraction:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")


def size(count: float) -> str:
    """Return a number of bytes with three digits and a unit."""
    units = ["B", "KB", "MB", "GB", "TB"]
    while count >= 999.5 and len(units) > 1:
        count, units = count / 1000, units[1:]
    return f"{count:.3g} {units[0]}" if count < 99.95 else f"{count:.0f} {units[0]}"


def duration(seconds: float) -> str:
    """Return a number of seconds with a unit."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.2g} ms" if seconds < 0.0995 else f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def plain(text: object) -> str:
    """Return the text with every non-printable character replaced."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def markup(text: object) -> str:
    """Return the text escaped for HTML, also within quotes."""
    return html.escape(plain(text), quote=True)


def markdown(text: object) -> str:
    """Return the text escaped for Markdown."""
    return re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", html.escape(plain(text), quote=False))
