"""Code blocks of the documentation, run as tests."""


def run_code(code):
    """Run a Python block of a page; ``# ->`` lines, indented or not, are assertions."""
    lines = []
    for line in code.splitlines():
        expression, arrow, expected = line.partition("  # -> ")
        if arrow:
            body = expression.strip()
            line = f"{expression[: len(expression) - len(body)]}assert {body} == {expected}, {body}"
        lines.append(line)
    exec(compile("\n".join(lines), "page", "exec"), {})
