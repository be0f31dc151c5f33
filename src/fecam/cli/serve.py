"""`fecam serve` and `fecam token`: a model behind HTTP, and who may ask it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fecam.cli.data import Device
from fecam.cli.model import ModelPath
from fecam.errors import MissingPackageError


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command("serve")(serve)


def serve(
    model: ModelPath,
    host: Annotated[str, typer.Option(help="Where to listen; elsewhere needs --tokens.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="0 for any that is free.")] = 8765,
    workers: Annotated[int, typer.Option(help="Processes that share the file.")] = 1,
    tokens: Annotated[
        Path | None, typer.Option(help="The file that `fecam token add` writes.")
    ] = None,
    encoder: Annotated[str | None, typer.Option("--encoder", "-e", help="Of a new model.")] = None,
    device: Device = None,
    cors: Annotated[
        list[str] | None, typer.Option(help="An origin of pages elsewhere that may ask.")
    ] = None,
    docs: Annotated[bool, typer.Option("--docs", help="A page about the API at /docs.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="A JSON object a line.")] = False,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="A line for each request.")
    ] = False,
) -> None:
    """Serve a model: a page to teach it and an API. The first lesson makes the file.

    Example: `fecam serve -m birds.fecam`
    """
    try:
        from fecam.service.run import run
        from fecam.service.settings import ServiceSettings
    except ModuleNotFoundError as error:
        raise MissingPackageError("serving a model", str(error.name), "serve") from None
    run(
        ServiceSettings(
            model=model,
            host=host,
            port=port,
            workers=workers,
            tokens=tokens,
            encoder=encoder,
            device=device,
            cors=tuple(cors or ()),
            docs=docs,
            log_json=log_json,
            access_log=access_log,
        )
    )
