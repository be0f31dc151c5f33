"""`fecam serve` and `fecam token`: a model behind HTTP, and who may ask it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fecam.cli.cluster import ByRay, Ray
from fecam.cli.data import Device
from fecam.cli.model import ModelPath
from fecam.cli.output import AsJson, console, print_note, show_json, show_table
from fecam.errors import MissingPackageError, SettingsError

if TYPE_CHECKING:
    from fecam.service.tokens import TokenFile


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command("serve", cls=ByRay)(serve)
    app.add_typer(tokens_app, name="token")


tokens_app = typer.Typer(no_args_is_help=True, help="Who may ask a service, and who may teach it.")

Tokens = Annotated[
    Path,
    typer.Option(
        "--tokens",
        help="The file in which tokens are kept, as hashes.",
        envvar="FECAM_TOKENS",
        show_envvar=True,
    ),
]


def serve(
    model: ModelPath,
    host: Annotated[str, typer.Option(help="Where to listen; elsewhere needs --tokens.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="0 for any that is free.")] = 8765,
    workers: Annotated[int, typer.Option(help="Processes that share the file.")] = 1,
    predict_workers: Annotated[
        int | None,
        typer.Option(
            help="Prediction processes per worker; 0: none. Default: 1 if a core is free, else 0."
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            help="How classes are found, whatever the model says: auto, exhaustive, certified, or "
            "shortlist, the fastest, which goes without proof."
        ),
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="The file that `fecam token add` writes.")
    ] = None,
    encoder: Annotated[str | None, typer.Option("--encoder", "-e", help="Of a new model.")] = None,
    device: Device = None,
    cors: Annotated[
        list[str] | None, typer.Option(help="An origin of pages elsewhere that may ask.")
    ] = None,
    docs: Annotated[bool, typer.Option("--docs", help="A page about the API at /docs.")] = False,
    max_mb: Annotated[float, typer.Option(help="Megabytes that a request may have.")] = 32,
    max_items: Annotated[int, typer.Option(help="Items that a request may have.")] = 1024,
    max_pixels: Annotated[int, typer.Option(help="Pixels that an image may have.")] = 25_000_000,
    seconds: Annotated[float, typer.Option(help="That a request may wait.")] = 30.0,
    queue: Annotated[int, typer.Option(help="Requests that may wait.")] = 64,
    log_json: Annotated[bool, typer.Option("--log-json", help="A JSON object a line.")] = False,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="A line for each request.")
    ] = False,
    ray: Ray = None,
    replicas: Annotated[
        int, typer.Option(help="With --ray: processes that answer, a processor each.")
    ] = 2,
) -> None:
    """Serve a model: a page to teach it and an API. The first lesson makes the file.

    Example: `fecam serve -m birds.fecam`
    """
    try:
        from fecam.service.cluster import run_on_ray
        from fecam.service.run import run
        from fecam.service.settings import Limits, ServiceSettings
    except ModuleNotFoundError as error:
        raise MissingPackageError("serving a model", str(error.name), "serve") from None
    settings = ServiceSettings(
        model=model,
        host=host,
        port=port,
        workers=workers,
        predict_workers=predict_workers,
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
        raise SettingsError("--workers is for one machine; with --ray say --replicas.")
    else:
        run_on_ray(settings, ray, replicas)


@tokens_app.command("add")
def add_token(
    name: Annotated[str, typer.Argument(help="Whose it is, such as camera.")],
    tokens: Tokens,
    scope: Annotated[str, typer.Option(help="read, or teach, which may also read.")] = "read",
    as_json: AsJson = False,
) -> None:
    """Make a token. It is shown this once; the file keeps its hash only.

    Example: `fecam token add camera --scope teach --tokens tokens.json`
    """
    text = _file(tokens).add(name, scope)
    if as_json:
        show_json({"name": name, "scope": scope, "token": text})
        return
    print_note(f"the token {name!r} may {scope}; keep it well, it is not shown again:")
    console.print(text)


@tokens_app.command("list")
def list_tokens(tokens: Tokens, as_json: AsJson = False) -> None:
    """List tokens, without what is secret.

    Example: `fecam token list --tokens tokens.json`
    """
    found = _file(tokens).tokens()
    if as_json:
        show_json([{"name": one.name, "scope": one.scope, "made": one.made} for one in found])
        return
    show_table(["name", "scope", "made"], [[one.name, one.scope, one.made] for one in found])


@tokens_app.command("revoke")
def revoke_token(
    name: Annotated[str, typer.Argument(help="As `fecam token list` has it.")],
    tokens: Tokens,
    as_json: AsJson = False,
) -> None:
    """Make a token worthless, at once.

    Example: `fecam token revoke camera --tokens tokens.json`
    """
    _file(tokens).revoke(name)
    if as_json:
        show_json({"revoked": name})
    else:
        print_note(f"the token {name!r} is good no more")


def _file(path: Path) -> TokenFile:
    from fecam.service.tokens import TokenFile  # without the web framework

    return TokenFile(path)
