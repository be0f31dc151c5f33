"""Images from any source as 8-bit RGB arrays.

Files are treated as hostile: only the formats below are tried (others of Pillow start external
programs), the number of pixels is read from the header before anything is decoded, and every error
of a decoder becomes an `ItemError`. No global setting of Pillow is changed, so threads can read
concurrently.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fecam.errors import ItemError, needs_extra

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 89_000_000
"""Larger images are rejected. Just below the size from which Pillow warns."""

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
)
"""Suffixes of image files, in lower case."""

T = TypeVar("T")
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")


def read_image(source: Any) -> NDArray[np.uint8]:
    """Return an image as an 8-bit RGB array (height, width, 3), or raise `ItemError`.

    The source is a path, the bytes of a file, a binary file, a Pillow image, or an 8-bit array
    (h, w), (h, w, 1), (h, w, 3) or (h, w, 4). Transparent parts become white, 16-bit gray is scaled
    to 8 bits, the EXIF orientation is applied, and the first frame of an animation is used.

    >>> read_image(np.array([[0, 255]], np.uint8)).tolist()
    [[[0, 0, 0], [255, 255, 255]]]
    """
    if isinstance(source, np.ndarray):
        return _from_array(source)
    pillow = _pillow()
    if isinstance(source, pillow.Image):
        item: object = f"Pillow image {source.mode} {source.size[0]} x {source.size[1]}"
        return _guarded(item, lambda: _decode(source))
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        # Opening a pipe would block.
        if not path.is_file():
            raise ItemError(path, "not a file" if path.exists() else "no such file")
        return _guarded(path, lambda: _open(path))
    if isinstance(source, (bytes, bytearray, memoryview)):
        content = bytes(source)
        return _guarded(f"{len(content)} bytes", lambda: _open(BytesIO(content)))
    if hasattr(source, "read"):
        return _guarded(getattr(source, "name", "file"), lambda: _open(source))
    raise ItemError(
        type(source).__name__,
        "not an image. Remedy: give a path, bytes, a binary file, a Pillow image or an array",
    )


def png(source: Any) -> bytes:
    """Return an image, given as to `read_image`, as the bytes of a PNG file."""
    content = BytesIO()
    _pillow().fromarray(read_image(source)).save(content, "PNG")
    return content.getvalue()


def thumbnail(source: Any, size: int = 96) -> bytes:
    """Return an image, given as to `read_image`, within a square of ``size``, as a PNG file."""
    content = BytesIO()
    image = _pillow().fromarray(read_image(source))
    image.thumbnail((size, size))
    image.save(content, "PNG")
    return content.getvalue()


def count_pixels(content: bytes) -> int:
    """Return the number of pixels in the header of an image file, or raise `ItemError`."""

    def read_header() -> int:
        with _identify(BytesIO(content)) as image:
            return int(image.size[0] * image.size[1])

    _pillow()
    return _guarded(f"{len(content)} bytes", read_header)


class Images(Sequence[Any]):
    """Sources of images, each read by `read_image` when it is indexed."""

    def __init__(self, sources: Any) -> None:
        self.sources = sources

    def __len__(self) -> int:
        return len(self.sources)

    def content(self, index: int) -> Any:
        """Return what `fecam.data.content_hashes` hashes for an item."""
        return self.sources[index]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(self.sources[index])
        return read_image(self.sources[index])


class ImageFiles(Images):
    """Image files, hashed as they are."""

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self.paths = tuple(map(Path, paths))
        super().__init__(self.paths)


class ImageArrays(Images):
    """A stack of 8-bit images (count, h, w) or (count, h, w, channels), hashed as RGB."""

    def content(self, index: int) -> Any:
        """Return what `fecam.data.content_hashes` hashes for an item."""
        return self[index]


def _pillow() -> Any:
    with needs_extra("reading images", "images"):
        from PIL import Image
    return Image


def _guarded(item: object, read: Callable[[], T]) -> T:
    """Run a reader and turn its errors into an `ItemError` about the item."""
    try:
        return read()
    except _Rejected as error:
        raise ItemError(item, str(error)) from None
    except MemoryError:
        raise ItemError(item, "too large for the memory") from None
    # Decoders of damaged files raise many classes: OSError, SyntaxError, struct.error,
    # IndexError, zlib.error, and Pillow's warnings where warnings are errors.
    except Exception as error:
        raise ItemError(item, f"truncated or damaged: {error or type(error).__name__}") from error


class _Rejected(Exception):
    """The reason why an image is rejected."""


def _open(source: Path | IO[bytes]) -> NDArray[np.uint8]:
    opened = source.open("rb") if isinstance(source, Path) else nullcontext(source)
    with opened as file, _identify(file) as image:
        return _decode(image)


def _identify(file: IO[bytes]) -> Image.Image:
    """Return an image whose header has been read."""
    from PIL import Image, UnidentifiedImageError

    if not (hasattr(file, "seekable") and file.seekable()):  # a network response, for example
        file = BytesIO(file.read())
    try:
        return Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError:
        empty = not file.seek(0, os.SEEK_END)
        what = (
            "the file is empty" if empty else f"not an image, or not one of {', '.join(_FORMATS)}"
        )
        raise _Rejected(what) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _Rejected(f"more than {MAX_PIXELS:,} pixels. Remedy: make it smaller") from None


def _decode(image: Image.Image) -> NDArray[np.uint8]:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise _Rejected(
            f"{width} x {height} is more than {MAX_PIXELS:,} pixels. Remedy: make it smaller"
        )
    if not width * height:
        raise _Rejected(f"it has no pixels: {width} x {height}")
    image.load()
    # A copy: the buffer of Pillow is read-only.
    return np.array(_eight_bit(_upright(image)))


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation; damaged EXIF is ignored."""
    from PIL.ImageOps import exif_transpose

    try:
        return exif_transpose(image)
    except Exception:
        return image


def _eight_bit(image: Image.Image) -> NDArray[Any]:
    """Return the pixels (h, w, 3) in 8 bits, transparent ones on white."""
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _from_sixteen(np.asarray(image), image.info.get("transparency"))
    if image.mode == "F":
        raise _Rejected("floating-point pixels of unknown range. Remedy: save in 8 bits")
    palette = getattr(image, "palette", None)
    has_alpha = "transparency" in image.info or (palette and palette.mode.endswith("A"))
    if has_alpha or image.mode in {"LA", "La", "PA", "RGBA", "RGBa"}:
        return np.asarray(_on_white(image.convert("RGBA")))
    return np.asarray(image.convert("RGB"))


def _from_sixteen(values: NDArray[Any], transparent: Any) -> NDArray[np.uint8]:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 0xFFFF:
        raise _Rejected(f"32-bit pixels from {low} to {high}. Remedy: save in 8 or 16 bits")
    # 65535 = 255 * 257, so this is v * 255 / 65535, rounded.
    gray = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if isinstance(transparent, int):
        gray[values == transparent] = 255
    return np.repeat(gray[:, :, None], 3, axis=2)


def _on_white(image: Image.Image) -> Image.Image:
    white: Image.Image = _pillow().new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image.getchannel("A"))
    return white


def _from_array(array: NDArray[Any]) -> NDArray[np.uint8]:
    item = f"array {array.dtype} {array.shape}"
    if array.dtype != np.uint8:
        raise ItemError(
            item,
            "not 8-bit, so the range of its values is unknown. Remedy: "
            "(x * 255).round().astype(np.uint8) if they lie in 0..1, "
            "x.astype(np.uint8) if they lie in 0..255",
        )
    if array.ndim not in {2, 3} or (array.ndim == 3 and array.shape[2] not in {1, 3, 4}):
        raise ItemError(
            item,
            "not an image. Remedy: give (h, w), (h, w, 1), (h, w, 3) or (h, w, 4); "
            "np.moveaxis(x, 0, -1) moves the channels to the end",
        )
    if not array.size:
        raise ItemError(item, "it has no pixels")
    if array.ndim == 3 and array.shape[2] == 4:
        return np.array(_on_white(_pillow().fromarray(np.ascontiguousarray(array))))
    array = array if array.ndim == 3 else array[:, :, None]
    return array if array.shape[2] == 3 else np.repeat(array, 3, axis=2)
