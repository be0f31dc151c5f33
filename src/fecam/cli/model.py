"""The model that a command works on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelPath = Annotated[
    Path,
    typer.Option(
        "--model",
        "-m",
        help="The model's file, such as birds.fecam.",
        envvar="FECAM_MODEL",
        show_envvar=True,
    ),
]
