"""Folders of images as they lie on people's disks."""

import os

import numpy as np
import pytest
from PIL import Image

from fecam.data._files import split_off
from fecam.data._listing import natural_key
from fecam.data.folder import load_files, load_folder
from fecam.errors import DatasetError, ItemError


def put(root, *names):
    for at, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), at).save(path)


def contents(data):
    """What each row says it is: (path from the root, class, is for testing)."""
    names = [data.label_names[label] for label in data.labels]
    paths = ["/".join(path.parts[-2:]) for path in data.items.paths]
    return list(zip(paths, names, data.is_test.tolist(), strict=True))


def test_class_folders_in_natural_order(tmp_path):
    put(tmp_path / "zoo", "item10/b.png", "item2/10.png", "item2/9.PNG", "item2/deep/er/c.jpg")
    data = load_folder(tmp_path / "zoo")
    assert data.name == "zoo" and data.kind == "images" and data.label_names == ("item2", "item10")
    assert [path.name for path in data.items.paths] == ["9.PNG", "10.png", "c.jpg", "b.png"]
    assert data.labels.tolist() == [0, 0, 0, 1] and not data.is_test.any()
    assert [int(data.items[at].max()) for at in range(4)] == [2, 1, 3, 0]
    assert data.domains is None and data.notes == ()


def test_skipped_files_are_counted(tmp_path):
    put(tmp_path, "cat/a.png", "loose.png", "cat/.hidden.png", ".git/x/a.png", "__MACOSX/cat/a.png")
    (tmp_path / "cat" / "notes.txt").write_text("mine")
    (tmp_path / "cat" / "broken.png").symlink_to("nowhere")
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("b")
    data = load_folder(tmp_path)
    assert contents(data) == [("cat/a.png", "cat", False)]
    notes = " | ".join(data.notes)
    assert "2 empty class folders left out: empty, texts" in notes
    assert "3 hidden" in notes and "4 files left out" in notes and "1 image left out" in notes


def test_a_damaged_image_is_found_when_it_is_read(tmp_path):
    put(tmp_path, "cat/a.png")
    (tmp_path / "cat" / "b.png").write_bytes(b"")
    data = load_folder(tmp_path)
    with pytest.raises(ItemError, match=r"b\.png: the file is empty"):
        data.items[1]


@pytest.mark.parametrize("test", ["test", "val", "Validation"])
def test_train_and_test_folders_are_the_split(tmp_path, test):
    put(tmp_path, "train/cat/a.png", "train/dog/a.png", f"{test}/cat/b.png", f"{test}/eel/b.png")
    data = load_folder(tmp_path)
    assert data.label_names == ("cat", "dog", "eel")
    assert contents(data) == [
        ("cat/a.png", "cat", False),
        ("dog/a.png", "dog", False),
        ("cat/b.png", "cat", True),
        ("eel/b.png", "eel", True),
    ]
    assert any("nothing for testing: dog" in note for note in data.notes)
    assert any("nothing to learn from: eel" in note for note in data.notes)
    with pytest.raises(DatasetError, match="leave out test_share"):
        load_folder(tmp_path, test_share=0.5)


def test_test_takes_precedence_over_val_with_a_note(tmp_path):
    put(tmp_path, "train/cat/a.png", "test/cat/b.png", "val/cat/c.png", "extra/cat/d.png")
    data = load_folder(tmp_path)
    assert [row[0] for row in contents(data)] == ["cat/a.png", "cat/b.png"]
    assert data.notes == ("folders left out beside train: extra, val",)


def test_a_class_of_trains_is_a_class(tmp_path):
    put(tmp_path, "train/a.png", "bus/b.png")
    assert load_folder(tmp_path).label_names == ("bus", "train")
    put(tmp_path / "one", "train/a.png")
    assert load_folder(tmp_path / "one").label_names == ("train",)
    put(tmp_path / "two", "train/cat/a.png")
    assert load_folder(tmp_path / "two").label_names == ("cat",)


def test_domains(tmp_path):
    put(tmp_path, "sketch/cat/a.png", "photo/cat/a.png", "photo/dog/a.png")
    data = load_folder(tmp_path, domains=True)
    assert data.label_names == ("cat", "dog") and data.domain_names == ("photo", "sketch")
    assert data.domains.tolist() == [0, 0, 1] and data.labels.tolist() == [0, 1, 0]
    put(tmp_path / "split", "train/photo/cat/a.png", "test/sketch/cat/a.png")
    data = load_folder(tmp_path / "split", domains=True)
    assert data.domains.tolist() == [0, 1] and data.is_test.tolist() == [False, True]


def test_links_are_followed_without_loops(tmp_path):
    put(tmp_path / "set", "cat/a.png", "dog/b.png")
    put(tmp_path, "elsewhere/c.png")
    (tmp_path / "set" / "cat" / "back").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "cat" / "self").symlink_to(tmp_path / "set" / "cat")
    (tmp_path / "set" / "cat" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "fox").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "hen").symlink_to("hen")
    (tmp_path / "set" / "cat" / "itself.png").symlink_to("itself.png")
    data = load_folder(tmp_path / "set")
    assert [(row[0], row[1]) for row in contents(data)] == [
        ("cat/a.png", "cat"),
        ("more/c.png", "cat"),
        ("dog/b.png", "dog"),
        ("fox/c.png", "fox"),
    ]
    assert any("2 links" in note for note in data.notes)
    assert any("2 files left out" in note for note in data.notes)


def test_the_test_split_is_stable(tmp_path):
    put(tmp_path / "a", *(f"{name}/{at}.png" for name in ("cat", "dog") for at in range(20)))
    # Written in another order, with a class more, in another place.
    order = [f"{name}/{at}.png" for name in ("ape", "dog", "cat") for at in reversed(range(20))]
    put(tmp_path / "b", *order)

    def chosen(folder, seed=0):
        rows = contents(load_folder(tmp_path / folder, test_share=0.2, seed=seed))
        return {path for path, _, is_test in rows if is_test}

    first, second = chosen("a"), chosen("b")
    assert len(first) == 8 and sum(path.startswith("cat") for path in first) == 4
    assert first == {path for path in second if not path.startswith("ape")}
    assert {path[4:] for path in first if "cat" in path} != {p[4:] for p in first if "dog" in p}
    assert chosen("a", seed=1) != first


def test_each_side_of_the_split_has_an_item():
    flags = split_off(["one", "two", "two"], ["a", "b", "c"], 0.01, 0)
    assert not flags[0] and flags[1:].sum() == 1
    assert split_off(["two", "two"], ["b", "c"], 0.99, 0).sum() == 1
    assert not split_off(["two", "two"], ["b", "c"], 0.0, 0).any()
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(DatasetError, match="test_share"):
            split_off(["a"], ["a"], share, 0)


def test_the_fingerprint_changes_with_the_content(tmp_path):
    put(tmp_path / "set", "cat/a.png", "dog/b.png")
    seen = [load_folder(tmp_path / "set").fingerprint]
    assert load_folder(tmp_path / "set").fingerprint == seen[0]
    seen.append(load_folder(tmp_path / "set", test_share=0.5).fingerprint)  # one image a class
    assert seen.pop() == seen[0]
    os.utime(tmp_path / "set/cat/a.png", ns=(0, 1))
    seen.append(load_folder(tmp_path / "set").fingerprint)
    (tmp_path / "set/cat/a.png").rename(tmp_path / "set/dog/a.png")
    seen.append(load_folder(tmp_path / "set").fingerprint)
    (tmp_path / "set").rename(tmp_path / "moved")
    assert load_folder(tmp_path / "moved").fingerprint == seen[-1]
    put(tmp_path / "moved", "dog/more.png")
    seen.append(load_folder(tmp_path / "moved").fingerprint)
    assert len(set(seen)) == 4


def test_names_that_are_not_utf8(tmp_path):
    put(tmp_path, "cat/a.png")
    strange = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(strange)
    (tmp_path / "cat/a.png").rename(os.fsdecode(os.path.join(strange, b"\xff.png")))
    data = load_folder(tmp_path, test_share=0.5)
    assert data.label_names == ("caf\\xe9",) and data.items[0].shape == (2, 2, 3)


def test_errors_name_the_remedy(tmp_path):
    with pytest.raises(DatasetError, match="absent does not exist"):
        load_folder(tmp_path / "absent")
    put(tmp_path, "flat/a.png", "flat/b.png")
    with pytest.raises(DatasetError, match="is a file, not a folder"):
        load_folder(tmp_path / "flat" / "a.png")
    with pytest.raises(DatasetError, match=r"holds 2 images in no class folder(.|\n)*cat/"):
        load_folder(tmp_path / "flat")
    with pytest.raises(DatasetError, match=r"domain and class folders(.|\n)*sketch/"):
        load_folder(tmp_path, domains=True)
    (tmp_path / "none" / "cat").mkdir(parents=True)
    (tmp_path / "none" / "cat" / "a.txt").write_text("")
    with pytest.raises(DatasetError, match=r"holds no images \(1 file left out"):
        load_folder(tmp_path / "none")


def test_natural_order_of_long_numbers():
    names = ["a" + "9" * 5000, "a" + "1" * 5001, "A3", "a03", "a3", "b", "10", "9"]
    expected = ["9", "10", "A3", "a03", "a3", "a" + "9" * 5000, "a" + "1" * 5001, "b"]
    generator = np.random.default_rng(0)
    for _ in range(5):
        generator.shuffle(names)
        assert sorted(names, key=natural_key) == expected


def test_a_note_on_possible_domains(tmp_path):
    put(tmp_path, "photo/cat/a.png", "photo/dog/b.png", "sketch/cat/c.png", "sketch/dog/d.png")
    data = load_folder(tmp_path)
    assert data.label_names == ("photo", "sketch")
    assert any("domains=true" in note for note in data.notes)
    assert not any("domains=true" in note for note in load_folder(tmp_path, domains=True).notes)
    put(tmp_path / "other", "cat/old/a.png", "dog/new/b.png")
    assert load_folder(tmp_path / "other").notes == ()


def test_one_label_for_a_whole_folder(tmp_path):
    put(tmp_path, "b/a.png", "b/in/deep/b.png", "b/x/c.png", "b/y/d.png")
    data = load_folder(tmp_path / "b", as_label="bird")
    assert (len(data), data.label_names, data.notes) == (4, ("bird",), ())
    put(tmp_path, "p/train/x/a.png", "p/test/x/b.png")
    data = load_folder(tmp_path / "p", as_label="bird")
    assert contents(data) == [("x/a.png", "bird", False), ("x/b.png", "bird", True)]
    with pytest.raises(DatasetError, match="--as"):
        load_folder(tmp_path / "b" / "x")


def test_a_list_of_image_files(tmp_path, monkeypatch):
    put(tmp_path, "a.png", "in/b.png")
    data = load_files([tmp_path / "a.png", tmp_path / "in" / "b.png", tmp_path / "a.png"], "bird")
    assert (len(data), data.label_names, data.name) == (2, ("bird",), "bird")
    assert data.items[1].shape == (2, 2, 3) and not data.is_test.any()
    monkeypatch.chdir(tmp_path)
    assert load_files(["a.png", "in/b.png"], "bird").fingerprint == data.fingerprint
    assert load_files(["in/b.png", "a.png"], "bird").fingerprint != data.fingerprint
    with pytest.raises(DatasetError, match=r"c\.png, d\.png do not exist"):
        load_files(["a.png", "c.png", "d.png"], "bird")
    with pytest.raises(DatasetError, match="' ' is not a label"):
        load_files(["a.png"], " ")
