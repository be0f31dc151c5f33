"""Images as people have them: odd modes, turned, damaged, hostile."""

import contextlib
import io
import pickle
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fecam.data import images
from fecam.data.images import ImageArrays, ImageFiles, read_image
from fecam.errors import ItemError

# Each pixel of its own colour, no two sides as long: a wrong turn shows.
SMALL = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 10


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def reason(source):
    with pytest.raises(ItemError) as caught:
        read_image(source)
    return caught.value.reason


def test_the_same_image_from_every_source(tmp_path):
    picture = Image.fromarray(SMALL)
    path = tmp_path / "a.png"
    path.write_bytes(encoded(picture))
    with path.open("rb") as file:
        ways = [path, str(path), path.read_bytes(), bytearray(path.read_bytes()), picture, SMALL]
        for way in [*ways, io.BytesIO(path.read_bytes()), file, Image.open(path)]:
            result = read_image(way)
            assert result.dtype == np.uint8 and result.tolist() == SMALL.tolist()
        assert not file.closed
    assert read_image(path).flags.writeable


def test_a_stream_that_is_not_seekable():
    class Stream(io.BytesIO):
        def seekable(self):
            return False

        def seek(self, *_):
            raise io.UnsupportedOperation

    class Reader:
        def __init__(self, content):
            self.read = io.BytesIO(content).read

    for kind in (Stream, Reader):
        assert read_image(kind(encoded(Image.fromarray(SMALL)))).tolist() == SMALL.tolist()
        assert "not an image" in reason(kind(b"text"))
        assert "empty" in reason(kind(b""))


@pytest.mark.parametrize(
    ("shape", "colour", "expected"),
    [
        ((2, 3), 7, 7),
        ((2, 3, 1), 7, 7),
        ((2, 3, 3), (1, 2, 3), (1, 2, 3)),
        ((2, 3, 4), (9, 9, 9, 0), 255),
        ((2, 3, 4), (9, 8, 7, 255), (9, 8, 7)),
    ],
)
def test_arrays(shape, colour, expected):
    result = read_image(np.full(shape, colour, np.uint8))
    assert result.shape == (2, 3, 3) and (result == expected).all()


def test_arrays_of_unknown_range_are_rejected():
    assert "(x * 255)" in reason(np.zeros((2, 3, 3), np.float32))
    assert "not 8-bit" in reason(np.zeros((2, 3), np.uint16))
    assert "moveaxis" in reason(np.zeros((3, 20, 20), np.uint8))
    assert "moveaxis" in reason(np.zeros((1, 2, 3, 3), np.uint8))
    assert "no pixels" in reason(np.zeros((0, 3, 3), np.uint8))
    assert "not an image" in reason(42)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG"])
def test_the_exif_orientation_is_applied(orientation, kind):
    """Orientation n says which corner the first pixel belongs in; literal, from the standard."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    grey = np.repeat(np.array([[0, 80, 160], [60, 120, 240]], np.uint8).repeat(16, 0), 16, axis=1)
    upright = {
        1: grey,
        2: grey[:, ::-1],
        3: grey[::-1, ::-1],
        4: grey[::-1],
        5: grey.T,
        6: grey.T[:, ::-1],
        7: grey[::-1, ::-1].T,
        8: grey.T[::-1],
    }[orientation]
    result = read_image(encoded(Image.fromarray(grey), kind, exif=exif))
    assert result.shape == (*upright.shape, 3)
    assert np.abs(result[:, :, 0].astype(int) - upright).max() <= 4  # JPEG is not exact.


def test_damaged_exif_is_ignored():
    content = encoded(Image.fromarray(SMALL), "PNG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert read_image(content).tolist() == SMALL.tolist()


def test_transparent_parts_are_white():
    half = Image.fromarray(np.array([[[0, 0, 0, 0], [0, 0, 0, 128], [0, 0, 0, 255]]], np.uint8))
    expected = [255, 127, 0]
    assert read_image(encoded(half))[0, :, 0].tolist() == expected
    assert read_image(encoded(half.convert("LA")))[0, :, 0].tolist() == expected
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putdata([0, 1])
    for transparency in (0, b"\0\xff"):
        result = read_image(encoded(palette, transparency=transparency))
        assert result.tolist() == [[[255, 255, 255], [40, 50, 60]]]
    assert read_image(encoded(palette)).tolist() == [[[10, 20, 30], [40, 50, 60]]]
    marked = encoded(Image.fromarray(SMALL), transparency=(0, 10, 20))
    assert read_image(marked)[0, 0].tolist() == [255] * 3
    assert read_image(marked)[0, 1].tolist() == SMALL[0, 1].tolist()


def test_sixteen_bits_are_scaled():
    values = np.array([[0, 128, 129, 257, 32896, 65535]], np.uint16)
    expected = [0, 0, 1, 1, 128, 255]
    for content in (
        encoded(Image.fromarray(values)),
        encoded(Image.fromarray(values), "TIFF"),
        encoded(Image.fromarray(values.astype(np.int32)), "TIFF"),
    ):
        assert read_image(content)[0, :, 1].tolist() == expected
    assert "32-bit" in reason(Image.fromarray(np.array([[0, 70_000]], np.int32)))
    assert "32-bit" in reason(Image.fromarray(np.array([[-1, 7]], np.int32)))
    assert "floating" in reason(encoded(Image.fromarray(np.ones((1, 2), np.float32)), "TIFF"))


def test_other_modes():
    red = Image.new("RGB", (8, 8), (255, 0, 0))
    cmyk = read_image(encoded(red.convert("CMYK"), "JPEG"))[4, 4].astype(int)
    assert np.abs(cmyk - [255, 0, 0]).max() < 8
    assert read_image(encoded(Image.new("1", (2, 2), 1))).min() == 255
    assert read_image(red.convert("HSV"))[0, 0].tolist() == [255, 0, 0]
    assert np.abs(read_image(encoded(red, "WEBP", lossless=True))[0, 0] - [255, 0, 0]).max() == 0
    assert read_image(encoded(red, "BMP"))[0, 0].tolist() == [255, 0, 0]
    assert read_image(encoded(red, "PPM"))[0, 0].tolist() == [255, 0, 0]


def test_the_first_frame_of_an_animation_is_used():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    for kind in ("GIF", "WEBP"):
        content = encoded(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
        assert read_image(content)[0, 0].tolist() == [255, 0, 0]


def test_a_truncated_image_is_an_error():
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    for kind in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        content = encoded(Image.fromarray(noise), kind)
        for share in (0.0, 0.01, 0.3, 0.6, 0.9):
            assert reason(content[: int(len(content) * share)])
    assert "empty" in reason(b"")
    assert "truncated" in reason(encoded(Image.fromarray(noise), "JPEG")[:1000])


def test_corrupted_bytes_give_an_image_or_an_item_error():
    generator = np.random.default_rng(1)
    noise = generator.integers(0, 256, (24, 24, 3), np.uint8)
    for kind in ("JPEG", "PNG", "GIF", "TIFF", "WEBP"):
        whole = np.frombuffer(encoded(Image.fromarray(noise), kind), np.uint8)
        for _ in range(40):
            content = whole.copy()
            at = generator.integers(0, len(content), 4)
            content[at] = generator.integers(0, 256, 4)
            with contextlib.suppress(ItemError):
                assert read_image(content.tobytes()).ndim == 3


def test_other_content_is_rejected(tmp_path):
    assert "not an image" in reason(b"hello, I am a text")
    assert "not an image" in reason(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    assert "no such file" in reason(tmp_path / "absent.png")
    assert "not a file" in reason(tmp_path)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 50)
    with pytest.raises(ItemError, match=r"broken\.png: "):
        read_image(tmp_path / "broken.png")


@pytest.mark.parametrize("side", [9_500, 12_000, 60_000])
def test_a_decompression_bomb_is_rejected_by_its_header(side, monkeypatch):
    """The pixels are missing too, so that a decoder would report those first."""

    def chunk(kind, content):
        code = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", code)

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    limit = Image.MAX_IMAGE_PIXELS
    assert "89,000,000 pixels" in reason(bomb)
    assert limit == Image.MAX_IMAGE_PIXELS
    # Also where somebody has switched Pillow's own guard off.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert f"{side} x {side}" in reason(bomb)


def test_the_limit_itself_is_allowed(monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 6)
    assert read_image(encoded(Image.fromarray(SMALL))).shape == (2, 3, 3)
    monkeypatch.setattr(images, "MAX_PIXELS", 5)
    assert "2 is more than 5" in reason(encoded(Image.fromarray(SMALL)))


def test_files_are_read_lazily(tmp_path):
    paths = [tmp_path / f"{at}.png" for at in range(3)]
    for at in (0, 2):
        Image.new("L", (2, 2), at).save(paths[at])
    files = ImageFiles(paths)
    assert len(files) == 3 and files.paths == tuple(paths)
    assert files[np.int64(2)].max() == 2 and files[-1].max() == 2
    with pytest.raises(ItemError, match=r"1\.png"):
        files[1]
    assert files[1:].paths == tuple(paths[1:])
    assert pickle.loads(pickle.dumps(files)).paths == files.paths
    with pytest.raises(IndexError):
        files[3]


def test_stacks_of_arrays():
    stack = ImageArrays(np.arange(4, dtype=np.uint8).reshape(2, 1, 2))
    assert len(stack) == 2 and stack[1].tolist() == [[[2] * 3, [3] * 3]]
    assert stack[1:][0].tolist() == stack[1].tolist()


def test_threads_read_concurrently(tmp_path):
    paths = []
    for at in range(24):
        paths.append(tmp_path / f"{at}.png")
        Image.new("RGBA", (30, 20), (at, at, at, 255)).save(paths[-1])
    files = ImageFiles([*paths, Path("absent.png")])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: int(files[at].max()), range(24)))
    assert found == list(range(24))
