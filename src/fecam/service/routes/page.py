"""Routes of the page and its files."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

PAGE = Path(__file__).parent.parent / "page"

router = APIRouter()
router.mount("/page", StaticFiles(directory=PAGE), name="page")


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """Return the page."""
    return FileResponse(PAGE / "index.html")
