"""Commands whose help names values in capitals: no type of Python, none for a flag."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

VALUE_NAMES = {
    "str": "TEXT",
    "list[str]": "TEXT",
    "int": "INTEGER",
    "int range": "INTEGER",
    "float": "NUMBER",
    "float range": "NUMBER",
    "path": "PATH",
    "bool": "",
}
"""What help shows for a value of a type; choices are listed."""


class _PlainHelp:
    """Help and usage without types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with the name of the value of each."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            _name_value(param, ctx)
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line, such as ``[OPTIONS] PATH...``."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        others = pieces[: len(pieces) - len(arguments)]
        return others + [_argument_usage(argument) for argument in arguments]


def _name_value(param: Any, ctx: Any) -> None:
    """Set the name of the value that help shows; older versions of Typer need none."""
    if not hasattr(param, "display_type"):
        return
    if param.param_type_name == "argument":
        param.metavar = param.metavar or param.name.upper()
        param.display_type_rich = lambda ctx: None
    elif param.metavar is None:
        name = param.display_type(ctx).strip("<>")
        param.metavar = VALUE_NAMES.get(name, name)


def _argument_usage(param: Any) -> str:
    name = param.metavar or param.name.upper()
    return (name if param.required else f"[{name}]") + ("..." if param.nargs != 1 else "")


class Command(_PlainHelp, TyperCommand):
    """A command with plain help."""


class Group(_PlainHelp, TyperGroup):
    """A group of commands with plain help."""
