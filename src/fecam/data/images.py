"""One image, whatever it comes as, read into 8-bit RGB, hostile files too.

A file is taken to be hostile: only the formats below are tried (others of Pillow's start foreign
programs), the number of pixels is read from the header before anything is decoded, and whatever a
decoder stumbles over becomes an `ItemError`. No switch of Pillow's is touched, so any number of
threads may read at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from fecam.errors import ItemError, MissingPackageError

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 89_000_000
"""Larger images are refused. Just below the size from which on Pillow would warn."""

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
)
"""How the names of image files end, in lower case."""

T = TypeVar("T")
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
_ORIENTATION = 0x0112


def read_image(source: Any) -> NDArray[np.uint8]:
    """Return an image as 8-bit RGB, an array (height, width, 3).

    Takes a path, the bytes of a file, a binary file, a Pillow image, or an 8-bit array (h, w),
    (h, w, 1), (h, w, 3) or (h, w, 4), which is handed back as it is where nothing needs changing.
    Transparent parts become white, 16-bit grey is scaled to 8 bits, the orientation a camera wrote
    down is applied, and of an animation the first frame is taken.

    Raises:
        ItemError: it cannot be read; ``reason`` says why.

    >>> read_image(np.array([[0, 255]], np.uint8)).tolist()
    [[[0, 0, 0], [255, 255, 255]]]
    """
    if isinstance(source, np.ndarray):
        return _from_array(source)
    pillow = _pillow()
    if isinstance(source, pillow.Image):
        item: object = f"Pillow image {source.mode} {source.size[0]} x {source.size[1]}"
        return _guarded(item, lambda: _decoded(source))
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        # A pipe would wait for ever, and Pillow's word for a folder helps nobody.
        if not path.is_file():
            raise ItemError(path, "not a file" if path.exists() else "no such file")
        return _guarded(path, lambda: _opened_path(path))
    if isinstance(source, (bytes, bytearray, memoryview)):
        content = bytes(source)
        return _guarded(f"{len(content)} bytes", lambda: _opened(BytesIO(content)))
    if hasattr(source, "read"):
        return _guarded(getattr(source, "name", "file"), lambda: _opened(source))
    raise ItemError(
        type(source).__name__,
        "not an image. Remedy: give a path, bytes, a binary file, a Pillow image or an array",
    )


def png(source: Any) -> bytes:
    """An image, as `read_image` takes it, as the bytes of a PNG file: nothing of it is lost.

    >>> read_image(png(np.array([[0, 255]], np.uint8)))[:, :, 0].tolist()
    [[0, 255]]
    """
    content = BytesIO()
    _pillow().fromarray(read_image(source)).save(content, "PNG")
    return content.getvalue()


def count_pixels(content: bytes) -> int:
    """How many pixels the header of an image file promises; nothing is decoded.

    Raises:
        ItemError: it is no image.
    """

    def look() -> int:
        with _identified(BytesIO(content)) as image:
            return int(image.size[0] * image.size[1])

    _pillow()
    return _guarded(f"{len(content)} bytes", look)


class ImageFiles(Sequence[NDArray[np.uint8]]):
    """Image files, each read when it is asked for."""

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self.paths: tuple[Path, ...] = tuple(map(Path, paths))

    def __len__(self) -> int:
        return len(self.paths)

    def content(self, at: int) -> Path:
        """What the item at that place is made of: see `fecam.data.content_hashes`."""
        return self.paths[at]

    @overload
    def __getitem__(self, at: int) -> NDArray[np.uint8]: ...
    @overload
    def __getitem__(self, at: slice) -> ImageFiles: ...
    def __getitem__(self, at: int | slice) -> NDArray[np.uint8] | ImageFiles:
        if isinstance(at, slice):
            return ImageFiles(self.paths[at])
        return read_image(self.paths[at])


class ImageArrays(Sequence[NDArray[np.uint8]]):
    """A stack of 8-bit images (count, h, w) or (count, h, w, channels), given as RGB one by one."""

    def __init__(self, arrays: NDArray[np.uint8]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays)

    @overload
    def __getitem__(self, at: int) -> NDArray[np.uint8]: ...
    @overload
    def __getitem__(self, at: slice) -> ImageArrays: ...
    def __getitem__(self, at: int | slice) -> NDArray[np.uint8] | ImageArrays:
        return (
            ImageArrays(self.arrays[at]) if isinstance(at, slice) else read_image(self.arrays[at])
        )


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingPackageError("reading images", "pillow", "images") from None
    return Image


def _guarded(item: object, read: Callable[[], T]) -> T:
    """Run a reader; all that can go wrong inside a decoder becomes one error about the item."""
    try:
        return read()
    except _Refused as refused:
        raise ItemError(item, str(refused)) from None
    except MemoryError:
        raise ItemError(item, "too large for the memory there is") from None
    # Decoders of damaged files raise nearly anything: OSError, SyntaxError, struct.error,
    # IndexError, zlib.error, and Pillow's warnings where warnings are errors.
    except Exception as error:
        raise ItemError(item, f"truncated or damaged: {error or type(error).__name__}") from error


class _Refused(Exception):
    """An image we know the trouble with."""


def _opened_path(path: Path) -> NDArray[np.uint8]:
    with path.open("rb") as file:
        return _opened(file)


def _opened(file: IO[bytes]) -> NDArray[np.uint8]:
    with _identified(file) as image:
        return _decoded(image)


def _identified(file: IO[bytes]) -> Image.Image:
    """An image of which the header has been read."""
    from PIL import Image, UnidentifiedImageError

    if not (hasattr(file, "seekable") and file.seekable()):  # A reply from the network, say.
        file = BytesIO(file.read())
    try:
        return Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError:
        empty = not file.seek(0, os.SEEK_END)
        what = "the file is empty" if empty else f"not an image, or none of {', '.join(_FORMATS)}"
        raise _Refused(what) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _Refused(f"more than {MAX_PIXELS:,} pixels. Remedy: make it smaller") from None


def _decoded(image: Image.Image) -> NDArray[np.uint8]:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise _Refused(
            f"{width} x {height} is more than {MAX_PIXELS:,} pixels. Remedy: make it smaller"
        )
    if not width * height:
        raise _Refused(f"it has no pixels: {width} x {height}")
    image.load()
    # A copy, for Pillow's own buffer cannot be written to.
    return np.array(_eight_bit(_upright(image)))


def _upright(image: Image.Image) -> Image.Image:
    """Turn the image as its EXIF says."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    try:
        turn = turns.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # Damaged EXIF says nothing about the pixels, which are fine.
        turn = None
    return image if turn is None else image.transpose(turn)


def _eight_bit(image: Image.Image) -> NDArray[Any]:
    """Return the pixels (h, w, 3) in 8 bits, transparent ones on white."""
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _from_sixteen(np.asarray(image), image.info.get("transparency"))
    if image.mode == "F":
        raise _Refused("floating-point pixels, whose range is not known. Remedy: save in 8 bits")
    palette = getattr(image, "palette", None)
    clear = "transparency" in image.info or (palette is not None and palette.mode.endswith("A"))
    if clear or image.mode in {"LA", "La", "PA", "RGBA", "RGBa"}:
        return np.asarray(_on_white(image.convert("RGBA")))
    return np.asarray(image.convert("RGB"))


def _from_sixteen(values: NDArray[Any], clear: Any) -> NDArray[np.uint8]:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 0xFFFF:
        raise _Refused(f"32-bit pixels from {low} to {high}. Remedy: save in 8 or 16 bits")
    # 65535 = 255 * 257, so this is v * 255 / 65535, rounded.
    grey = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if isinstance(clear, int):
        grey[values == clear] = 255
    return np.repeat(grey[:, :, None], 3, axis=2)


def _on_white(image: Image.Image) -> Image.Image:
    white: Image.Image = _pillow().new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image.getchannel("A"))
    return white


def _from_array(array: NDArray[Any]) -> NDArray[np.uint8]:
    item = f"array {array.dtype} {array.shape}"
    if array.dtype != np.uint8:
        raise ItemError(
            item,
            "not 8-bit, and the range of its values is not guessed. Remedy: "
            "(x * 255).round().astype(np.uint8) if they lie in 0..1, "
            "x.astype(np.uint8) if they lie in 0..255",
        )
    if array.ndim not in {2, 3} or (array.ndim == 3 and array.shape[2] not in {1, 3, 4}):
        raise ItemError(
            item,
            "not an image. Remedy: give (h, w), (h, w, 1), (h, w, 3) or (h, w, 4); "
            "np.moveaxis(x, 0, -1) brings channels from the front to the back",
        )
    if not array.size:
        raise ItemError(item, "it has no pixels")
    if array.ndim == 3 and array.shape[2] == 4:
        return np.array(_on_white(_pillow().fromarray(np.ascontiguousarray(array))))
    array = array if array.ndim == 3 else array[:, :, None]
    return array if array.shape[2] == 3 else np.repeat(array, 3, axis=2)
