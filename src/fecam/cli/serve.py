"""`fecam serve` and `fecam token`: serve a model over HTTP, and manage its access tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fecam.cli.cluster import Ray
from fecam.cli.data import Device
from fecam.cli.help import Command
from fecam.cli.model import ModelPath
from fecam.cli.output import AsJson, console, print_note, show_json, show_result, show_table
from fecam.errors import SettingsError, needs_extra

if TYPE_CHECKING:
    from fecam.service.tokens import TokenFile


tokens_app = typer.Typer(
    no_args_is_help=True,
    help="Manage the access tokens of a service.\n\n"
    "Example: `fecam token add camera --tokens tokens.json`",
)

Tokens = Annotated[
    Path,
    Option(
        "--tokens",
        help="File that stores the tokens as hashes.",
        envvar="FECAM_TOKENS",
        show_envvar=True,
    ),
]


def serve(
    model: ModelPath,
    host: Annotated[str, Option(help="Address; others than localhost need --tokens.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, Option(min=0, max=65_535, help="Port; 0: any free port.")] = 8765,
    workers: Annotated[int, Option(min=1, help="Server processes.")] = 1,
    search: Annotated[
        str | None,
        Option(
            help="Search method instead of the model's: auto, exhaustive, exact or approximate."
        ),
    ] = None,
    tokens: Annotated[Path | None, Option(help="File written by `fecam token add`.")] = None,
    encoder: Annotated[
        str | None, Option("--encoder", "-e", help="Encoder of a new model (`fecam encoders`).")
    ] = None,
    device: Device = None,
    cors: Annotated[
        list[str] | None,
        Option(metavar="ORIGIN", help="Web site whose pages may call the API; repeatable."),
    ] = None,
    docs: Annotated[bool, Option("--docs", help="Serve API docs at /docs.")] = False,
    max_mb: Annotated[float, Option(min=0.001, help="Maximum request size in MB.")] = 32,
    max_items: Annotated[int, Option(min=1, help="Maximum items per request.")] = 1024,
    max_pixels: Annotated[int, Option(min=1, help="Maximum pixels per image.")] = 25_000_000,
    seconds: Annotated[float, Option(min=0.001, help="Timeout of a request in seconds.")] = 30.0,
    queue: Annotated[int, Option(min=1, help="Maximum number of queued requests.")] = 64,
    log_json: Annotated[
        bool, Option("--log-json", help="Log as JSON, one object per line.")
    ] = False,
    access_log: Annotated[bool, Option("--access-log", help="Log every request.")] = False,
    ray: Ray = None,
    replicas: Annotated[
        int, Option(min=1, help="With --ray: number of prediction replicas, one CPU each.")
    ] = 2,
) -> None:
    """Serve a model: an HTTP API and a web page. The first example creates a missing file.

    Open the address that it prints in a browser. Ctrl-C stops it.

    Example: `fecam serve -m birds.fecam`
    """
    with needs_extra("serving a model", "serve"):
        from fecam.service.cluster import run_on_ray
        from fecam.service.run import run
        from fecam.service.settings import Limits, ServiceSettings
    settings = ServiceSettings(
        model=model,
        host=host,
        port=port,
        workers=workers,
        search=search,
        tokens=tokens,
        limits=Limits(int(max_mb * 1e6), max_items, max_pixels, seconds, queue),
        encoder=encoder,
        device=device,
        cors=tuple(cors or ()),
        docs=docs,
        log_json=log_json,
        access_log=access_log,
    )
    if ray is None:
        run(settings)
    elif workers > 1:
        raise SettingsError("--workers is for one machine; with --ray use --replicas.")
    else:
        run_on_ray(settings, ray, replicas)


@tokens_app.command("add", cls=Command)
def add_token(
    name: Annotated[str, Argument(help="Name of the token, such as camera.")],
    tokens: Tokens,
    scope: Annotated[
        str, Option(help="What it allows: read (predict), or teach (also learn and undo).")
    ] = "read",
    as_json: AsJson = False,
) -> None:
    """Create a token. It is printed once; the file stores only its hash.

    Example: `fecam token add camera --scope teach --tokens tokens.json`
    """
    text = _file(tokens).add(name, scope)
    if as_json:
        show_json({"name": name, "scope": scope, "token": text})
        return
    print_note(f"token {name!r} with scope {scope}; store it now, it is not shown again:")
    console.print(text)


@tokens_app.command("list", cls=Command)
def list_tokens(tokens: Tokens, as_json: AsJson = False) -> None:
    """List the names and scopes of tokens.

    Example: `fecam token list --tokens tokens.json`
    """
    header = ["name", "scope", "made"]
    rows = [[token.name, token.scope, token.made] for token in _file(tokens).tokens()]
    if as_json:
        show_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        show_table(header, rows)


@tokens_app.command("revoke", cls=Command)
def revoke_token(
    name: Annotated[str, Argument(help="Name, as listed by `fecam token list`.")],
    tokens: Tokens,
    as_json: AsJson = False,
) -> None:
    """Revoke a token immediately.

    Example: `fecam token revoke camera --tokens tokens.json`
    """
    _file(tokens).revoke(name)
    show_result({"revoked": name}, f"revoked the token {name!r}", as_json)


def _file(path: Path) -> TokenFile:
    from fecam.service.tokens import TokenFile  # does not import the web framework

    return TokenFile(path)
