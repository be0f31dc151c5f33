"""Code blocks of the documentation, run as tests."""

import ast


def run_block(code, namespace, name):
    """Run a Python block; a line ``expression  # -> text`` states the value of a statement."""
    lines = code.splitlines()
    stated = {i for i, line in enumerate(lines, 1) if "# -> " in line}
    for statement in ast.parse(code, name).body:
        place = statement.end_lineno
        if place not in stated:
            exec(compile(ast.Module([statement], []), name, "exec"), namespace)
            continue
        stated.remove(place)
        assert isinstance(statement, ast.Expr), f"{name}:{place}: not an expression"
        value = eval(compile(ast.Expression(statement.value), name, "eval"), namespace)
        expected = lines[place - 1].split("# -> ")[1].strip()
        assert expected in (repr(value), str(value)), f"{name}:{place}: {value!r}, not {expected}"
    assert not stated, f"{name}: '# ->' on lines {stated} that end no statement"


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
