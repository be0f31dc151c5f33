"""The catalogue: names, paths, options, and errors that help."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fecam.data import available, catalogue, load
from fecam.errors import DatasetError, MissingPackageError, SettingsError

NAMES = (
    *("cifar100", "tiny-imagenet", "imagenet-subset", "mini-imagenet", "cub200", "imagenet-r"),
    *("core50", "quickdraw", "digits", "glyphs"),
)


def write_npz(path):
    np.savez(path, X=np.eye(4, dtype=np.float32), y=np.array(["a", "b", "a", "b"]))
    return path


def write_folder(path):
    for name, grey in (("cat", 10), ("dog", 200)):
        (path / name).mkdir(parents=True)
        Image.new("RGB", (4, 4), (grey,) * 3).save(path / name / "1.png")
    return path


def test_available_lists_every_data_set():
    entries = {entry.name: entry for entry in available()}
    assert tuple(entries) == NAMES
    for entry in entries.values():
        assert entry.description and entry.obtained and "\n" not in entry.description
        assert not {"root", "download"} & set(entry.options)
    assert entries["glyphs"].options == ("per_class", "test_share", "size", "seed")
    assert entries["digits"].options == ("as_features",) and entries["quickdraw"].options == ()
    json.dumps([asdict(entry) for entry in entries.values()])


def test_the_descriptions_of_glyphs_and_digits_match_the_data():
    entries = {entry.name: entry for entry in available()}
    data = load("glyphs", per_class=1)
    assert f"{len(data.label_names)} characters in {len(data.domain_names)} typefaces" in (
        entries["glyphs"].description
    )
    assert data.kind == entries["glyphs"].kind and load("digits").kind == entries["digits"].kind


@pytest.mark.parametrize("name", NAMES[:7])
def test_the_description_mentions_a_download_only_with_a_url(name):
    (entry,) = (entry for entry in available() if entry.name == name)
    releases = import_module(f"fecam.data.{name.replace('-', '_')}").RELEASES
    assert entry.obtained.startswith("downloaded") == bool(releases[0].url)


def test_a_name_is_passed_to_its_loader_with_options():
    assert load("digits", as_features=True).items[0].shape == (64,)
    data = load("glyphs", per_class=2, size=16, test_share=0.5)
    assert data.items[0].shape == (16, 16, 3) and len(data.test) == len(data.train)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("digits", "glyphs")])
def test_a_public_data_set_has_a_default_folder(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FECAM_DATA", str(tmp_path / "data"))
    with pytest.raises(DatasetError) as caught:
        load(name)
    assert str(tmp_path / "data" / name) in str(caught.value)
    with pytest.raises(DatasetError) as caught:
        load(name, root=str(tmp_path / "elsewhere"))
    assert str(tmp_path / "elsewhere") in str(caught.value)


def test_a_path_is_a_folder_or_a_table(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "pets")
    table = write_npz(tmp_path / "rows.npz")
    for what in (folder, str(folder)):
        assert load(what).label_names == ("cat", "dog")
    for what in (table, str(table)):
        assert load(what).items[0].shape == (4,)
    assert len(load(table.rename(tmp_path / "ROWS.NPZ"))) == 4
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert len(load("~/pets")) == 2
    assert load("~/pets", name="friends").name == "friends"


def test_a_name_takes_precedence_over_a_folder(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    assert len(load("digits").label_names) == 10
    for what in ("./digits", folder, Path("digits")):
        assert len(load(what).label_names) == 2


@pytest.mark.parametrize(
    ("what", "nearest"),
    [("cifar-100", "cifar100"), ("Tiny_ImageNet", "tiny-imagenet"), ("glyph", "glyphs")],
)
def test_the_error_for_an_unknown_name_suggests_the_nearest(what, nearest):
    for root in (None, "somewhere"):
        with pytest.raises(DatasetError, match=f"Did you mean '{nearest}'") as caught:
            load(what, root=root)
        assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize("what", ["", "no/such/place", "x" * 5000, "rows.csv", "a\0b", "~nobody/x"])
def test_a_missing_path_is_named(what):
    with pytest.raises(DatasetError, match="there is no data set, folder or file") as caught:
        load(what)
    assert repr(what) in str(caught.value) and "Did you mean" not in str(caught.value)


def test_a_file_with_another_suffix_is_named(tmp_path):
    path = tmp_path / "notes.doc"
    path.write_text("hello")
    with pytest.raises(DatasetError, match=r"notes\.doc is not a data set.*\.npz, \.parquet"):
        load(path)


def test_the_error_for_an_unknown_option_lists_the_options(tmp_path):
    said = r"glyphs has no option 'perclass'\. Did you mean 'per_class'\?.* per_class, test_share"
    with pytest.raises(SettingsError, match=said):
        load("glyphs", perclass=3)
    with pytest.raises(SettingsError, match=r"quickdraw has no option 'size'.*Available: none"):
        load("quickdraw", root=tmp_path, size=3)
    with pytest.raises(SettingsError, match=r"pets has no option 'lable'.*test_share"):
        load(write_folder(tmp_path / "pets"), lable="x")
    with pytest.raises(SettingsError, match=r"rows\.npz has no option 'lable'.*label"):
        load(write_npz(tmp_path / "rows.npz"), lable="x")


def test_a_root_is_rejected_where_there_are_no_files(tmp_path):
    for name in ("digits", "glyphs"):
        with pytest.raises(DatasetError, match=f"{name} .*takes no root"):
            load(name, root=tmp_path)
    with pytest.raises(DatasetError, match="leave out root to load a path"):
        load(write_folder(tmp_path / "pets"), root=tmp_path)


def test_download_is_accepted_where_nothing_is_downloaded(tmp_path):
    assert len(load("digits", download=True)) == 1797
    assert len(load(write_npz(tmp_path / "rows.npz"), download=True)) == 4


def test_a_missing_package_names_its_extra(tmp_path, monkeypatch):
    from fecam.data import glyphs

    glyphs._font_files.cache_clear()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"glyphs.*pip install .*\[glyphs\]"):
        load("glyphs")
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"pyarrow.*pip install .*\[parquet\]"):
        load(tmp_path / "rows.parquet")


def test_importing_and_listing_load_no_heavy_package():
    heavy = ("torch", "matplotlib", "PIL", "pyarrow.parquet", "transformers")
    code = (
        "import sys, fecam.data; fecam.data.available(); fecam.data.load('digits')\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_name_has_a_module():
    for name in NAMES:
        assert callable(catalogue._loader(name))
