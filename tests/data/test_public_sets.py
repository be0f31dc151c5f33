"""Loaders of public sets, on small trees in the official release that are written here."""

import hashlib
import pickle
import tarfile
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from fecam.data import (
    cifar100,
    core50,
    cub200,
    imagenet_r,
    imagenet_subset,
    mini_imagenet,
    tiny_imagenet,
)
from fecam.errors import DatasetError

WNIDS = ["n01443537", "n01629819", "n02124075"]


def put(root, *names, shade=0):
    """Write images whose grey tells which they are."""
    for at, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = "PNG" if path.suffix == ".png" else "JPEG"
        Image.new("L", (4, 4), shade + at * 10).save(path, kind)


def table(data):
    """What each row says it is: (file name, class, is for testing)."""
    names = [data.label_names[label] for label in data.labels]
    paths = [path.name for path in data.items.paths]
    return list(zip(paths, names, data.is_test.tolist(), strict=True))


def notes(data):
    return " | ".join(data.notes)


# --- CIFAR-100 ------------------------------------------------------------------------------------

FINE, COARSE = ["apple", "bear", "cup"], ["food", "animals"]
PARTS = {"train": ([2, 0, 1, 1], [0, 0, 1, 1]), "test": ([0, 1], [0, 1])}


def pixels(labels):
    """The red, green and blue planes of images whose pixels are their label and place."""
    planes = np.empty((len(labels), 3, 32, 32), np.uint8)
    for at, label in enumerate(labels):
        planes[at, 0], planes[at, 1], planes[at, 2] = label, np.arange(32)[:, None], np.arange(32)
    return planes.reshape(len(labels), 3072)


def cifar_python(folder):
    folder.mkdir(parents=True)
    for part, (fine, coarse) in PARTS.items():
        content = {"data": pixels(fine), "fine_labels": fine, "coarse_labels": coarse}
        (folder / part).write_bytes(pickle.dumps(content, protocol=4))
    meta = {"fine_label_names": FINE, "coarse_label_names": COARSE}
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    return folder


def cifar_binary(folder):
    folder.mkdir(parents=True)
    for part, (fine, coarse) in PARTS.items():
        rows = np.column_stack([coarse, fine, pixels(fine)]).astype(np.uint8)
        (folder / f"{part}.bin").write_bytes(rows.tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(FINE) + "\n")
    (folder / "coarse_label_names.txt").write_text("\n".join(COARSE) + "\n\n")
    return folder


@pytest.mark.parametrize("write", [cifar_python, cifar_binary])
@pytest.mark.parametrize("around", [True, False])
def test_cifar(tmp_path, write, around):
    release = "cifar-100-python" if write is cifar_python else "cifar-100-binary"
    folder = write(tmp_path / release)
    data = cifar100.load(tmp_path if around else folder)
    assert data.name == "cifar100" and data.label_names == tuple(FINE)
    assert data.labels.tolist() == [2, 0, 1, 1, 0, 1]
    assert data.is_test.tolist() == [False] * 4 + [True] * 2
    assert data.items[0].shape == (32, 32, 3) and data.items[0].dtype == np.uint8
    for image, label in zip(data.items, data.labels, strict=True):
        assert image[5, 9].tolist() == [label, 5, 9]
    assert "4 images for training" in notes(data) and "50000" in notes(data)
    coarse = cifar100.load(tmp_path, superclasses=True)
    assert coarse.label_names == tuple(COARSE) and coarse.labels.tolist() == [0, 0, 1, 1, 0, 1]
    assert coarse.fingerprint != data.fingerprint == cifar100.load(tmp_path).fingerprint


def test_cifar_as_python_2_wrote_it(tmp_path):
    folder = cifar_python(tmp_path / "cifar-100-python")
    array = pickle.loads((folder / "test").read_bytes())["data"]
    # Today's Python cannot write strings of bytes as Python 2 did, so here is such a file by hand.
    raw = array.tobytes()
    parts = [
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01bt"
    ]
    parts += [b"R(K\x01(K", bytes([len(array)]), b"M", (3072).to_bytes(2, "little")]
    parts += [
        b"tcnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    ]
    parts += [b"\x89T", len(raw).to_bytes(4, "little"), raw, b"tb"]
    parts += [b"U\x0bfine_labels](K\x00K\x01eU\x0dcoarse_labels](K\x00K\x01eu."]
    (folder / "test").write_bytes(b"".join(parts))
    data = cifar100.load(tmp_path)
    assert data.items[5][5, 9].tolist() == [1, 5, 9] and data.labels[4:].tolist() == [0, 1]


class Hostile:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Hostile(eval, ("open('hacked', 'w')",))),
        pickle.dumps({"data": Hostile(np.load, ("x",))}),
        pickle.dumps({"data": Hostile(np.ndarray, ((1 << 20,),))}),
        pickle.dumps({"data": np.array([{}], object), "fine_labels": [0]}),
        b"cbuiltins\neval\n(V1\ntR.",
        b"\x80\x04.",
        b"",
        b"garbage",
    ],
)
def test_hostile_pickles_are_rejected(tmp_path, content, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = cifar_python(tmp_path / "cifar-100-python")
    (folder / "train").write_bytes(content)
    with pytest.raises(DatasetError, match=r"train is not the pickle"):
        cifar100.load(tmp_path)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fine_labels": [0, 1, 2]}, r"\(4, 3072\), not uint8 \(3, 3072\)"),
        ({"fine_labels": [0, 1, 2, 3]}, "labels 3, not from 0 to 2"),
        ({"fine_labels": [0, 1, 2, "x"]}, "labels x"),
        ({"fine_labels": None}, "no list 'fine_labels'"),
        ({"data": pixels([0] * 4).astype(np.float32)}, "float32"),
        ({"data": [1, 2]}, "no ndarray 'data'"),
    ],
)
def test_cifar_with_inconsistent_files(tmp_path, change, message):
    folder = cifar_python(tmp_path / "cifar-100-python")
    content = pickle.loads((folder / "train").read_bytes()) | change
    (folder / "train").write_bytes(pickle.dumps(content))
    with pytest.raises(DatasetError, match=message):
        cifar100.load(tmp_path)


def test_cifar_binary_cut_short(tmp_path):
    folder = cifar_binary(tmp_path / "cifar-100-binary")
    (folder / "test.bin").write_bytes((folder / "test.bin").read_bytes()[:-1])
    with pytest.raises(DatasetError, match=r"test\.bin has 6147 bytes, not a multiple of 3074"):
        cifar100.load(tmp_path)


def packed(tmp_path, monkeypatch):
    """Write the archive of a small CIFAR-100, and let the loader expect its checksum."""
    cifar_python(tmp_path / "source" / "cifar-100-python")
    archive = tmp_path / "served" / "cifar-100-python.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as file:
        file.add(tmp_path / "source" / "cifar-100-python", "cifar-100-python")
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(
        cifar100, "RELEASES", (replace(cifar100.RELEASES[0], md5=md5), cifar100.RELEASES[1])
    )
    return archive


def test_cifar_from_its_archive(tmp_path, monkeypatch):
    archive = packed(tmp_path, monkeypatch)
    for root in (archive, archive, archive.parent):  # Packed, unpacked, in the folder.
        assert len(cifar100.load(root)) == 6
    moved = archive.rename(archive.with_name("other.tar.gz"))
    with pytest.raises(DatasetError, match=r"not cifar-100-python\.tar\.gz, cifar-100-binary"):
        cifar100.load(moved)


def test_cifar_from_a_wrong_archive(tmp_path, monkeypatch):
    archive = packed(tmp_path, monkeypatch)
    archive.write_bytes(archive.read_bytes() + b"x")
    for root in (archive, archive.parent):
        with pytest.raises(DatasetError, match=r"has the md5 .*, not "):
            cifar100.load(root)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_cifar_downloaded(tmp_path, monkeypatch):
    archive = packed(tmp_path, monkeypatch)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("FECAM_DATA", str(tmp_path / "home"))
    handler = partial(Quiet, directory=archive.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        url = f"http://127.0.0.1:{server.server_port}/{archive.name}"
        monkeypatch.setattr(cifar100, "RELEASES", (replace(cifar100.RELEASES[0], url=url),))
        try:
            with pytest.raises(DatasetError, match=r"home/cifar100 does not exist.*download=True"):
                cifar100.load()
            assert len(cifar100.load(download=True)) == 6
        finally:
            server.shutdown()
    assert len(cifar100.load()) == 6
    assert len(cifar100.load(tmp_path / "home" / "cifar100")) == 6


# --- trees of files -------------------------------------------------------------------------------


def tiny(root):
    for at, wnid in enumerate(WNIDS[:2]):
        names = (f"train/{wnid}/images/{wnid}_{number}.JPEG" for number in (10, 9))
        put(root, *names, shade=at * 100)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("box")
    put(root, "val/images/val_0.JPEG", "val/images/val_1.JPEG", shade=200)
    (root / "val" / "val_annotations.txt").write_text(
        f"val_1.JPEG\t{WNIDS[0]}\t0\t0\t62\t62\nval_0.JPEG\t{WNIDS[1]}\t0\t0\t62\t62\n"
    )
    (root / "words.txt").write_text(
        f"n00000001\tother\n{WNIDS[0]}\tgoldfish, fish\n{WNIDS[1]}\tnewt"
    )
    return root


def test_tiny_imagenet(tmp_path):
    folder = tiny(tmp_path / "tiny-imagenet-200")
    data = tiny_imagenet.load(tmp_path)
    assert data.name == "tiny-imagenet" and data.label_names == ("goldfish, fish", "newt")
    assert table(data) == [
        (f"{WNIDS[0]}_9.JPEG", "goldfish, fish", False),
        (f"{WNIDS[0]}_10.JPEG", "goldfish, fish", False),
        (f"{WNIDS[1]}_9.JPEG", "newt", False),
        (f"{WNIDS[1]}_10.JPEG", "newt", False),
        ("val_1.JPEG", "goldfish, fish", True),
        ("val_0.JPEG", "newt", True),
    ]
    assert [int(data.items[at].mean().round()) for at in range(6)] == [10, 0, 110, 100, 210, 200]
    assert "4 images for training, 2 for testing, 2 classes; the official" in notes(data)
    assert tiny_imagenet.load(folder).fingerprint == data.fingerprint
    (folder / "words.txt").write_text(f"{WNIDS[0]}\tcrane\n{WNIDS[1]}\tcrane")
    twice = (f"crane ({WNIDS[0]})", f"crane ({WNIDS[1]})")
    assert tiny_imagenet.load(folder).label_names == twice
    (folder / "words.txt").unlink()
    assert tiny_imagenet.load(folder).label_names == tuple(WNIDS[:2])
    assert "no words.txt" in notes(tiny_imagenet.load(folder))


def test_tiny_imagenet_with_sorted_validation(tmp_path):
    tiny(tmp_path)
    (tmp_path / "val" / "val_annotations.txt").unlink()
    (tmp_path / "val" / "images").rename(tmp_path / "val" / WNIDS[1])
    assert table(tiny_imagenet.load(tmp_path))[4:] == [
        ("val_0.JPEG", "newt", True),
        ("val_1.JPEG", "newt", True),
    ]


def test_tiny_imagenet_with_inconsistent_files(tmp_path):
    listing = tiny(tmp_path) / "val" / "val_annotations.txt"
    listing.write_text(f"val_7.JPEG\t{WNIDS[0]}\n")
    with pytest.raises(DatasetError, match=r"1 image of .* not found in .*images: val_7\.JPEG"):
        tiny_imagenet.load(tmp_path)
    listing.write_text(f"val_1.JPEG\t{WNIDS[2]}\n")
    with pytest.raises(DatasetError, match=f"classes that train lacks: {WNIDS[2]}"):
        tiny_imagenet.load(tmp_path)
    listing.write_text("val_1.JPEG\n")
    with pytest.raises(DatasetError, match="line 1"):
        tiny_imagenet.load(tmp_path)


@pytest.mark.parametrize(
    ("module", "lacking"),
    [
        (cifar100, "train, test, meta"),
        (tiny_imagenet, "train, val"),
        (imagenet_subset, "train/"),
        (mini_imagenet, r"train\.csv, test\.csv, images|n\["),
        (cub200, r"images\.txt, image_class_labels\.txt"),
        (imagenet_r, r"n\["),
        (core50, "s"),
    ],
)
def test_the_error_for_a_missing_set_names_the_files_and_the_remedy(tmp_path, module, lacking):
    with pytest.raises(DatasetError, match=r"nowhere does not exist\. Remedy:.* get it from"):
        module.load(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match=f"lacks ({lacking}).*Remedy:"):
        module.load(tmp_path)
    if not module.RELEASES[0].url:
        with pytest.raises(DatasetError, match=r"cannot be downloaded.*get it from"):
            module.load(tmp_path, download=True)


def imagenet(root, wnids=WNIDS):
    for wnid in wnids:
        put(root, f"train/{wnid}/{wnid}_1.JPEG", f"val/{wnid}/ILSVRC2012_val_1.JPEG")
    return root


def test_imagenet_subset(tmp_path):
    imagenet(tmp_path)
    data = imagenet_subset.load(tmp_path)
    assert data.label_names == tuple(WNIDS) and data.is_test.tolist() == [False] * 3 + [True] * 3
    chosen = [WNIDS[2], WNIDS[0]]
    data = imagenet_subset.load(tmp_path, wnids=chosen)
    assert data.label_names == tuple(chosen) and data.labels.tolist() == [0, 1, 0, 1]
    (tmp_path / "list.txt").write_text(f"{chosen[0]} tiger cat\n\n{chosen[1]}\n")
    listed = imagenet_subset.load(tmp_path, wnids=tmp_path / "list.txt")
    assert listed.fingerprint == data.fingerprint
    (tmp_path / "LOC_synset_mapping.txt").write_text(f"{WNIDS[0]} goldfish, Carassius\n")
    assert imagenet_subset.load(tmp_path).label_names[0] == "goldfish, Carassius"
    for wrong, message in (
        (["cat"], "cat are not WordNet IDs"),
        ([], "no class, or one twice"),
        (["n00000001"], "train lacks 1 of the 1 classes: n00000001"),
        ([WNIDS[0]] * 2, "one twice"),
    ):
        with pytest.raises(DatasetError, match=message):
            imagenet_subset.load(tmp_path, wnids=wrong)


def test_the_usual_hundred_classes():
    every = [f"n{at:08}" for at in range(1000)]
    chosen = imagenet_subset.usual_classes(every[::-1])
    # The order that papers print begins with these positions.
    printed = [54, 7, 894, 512, 126, 337, 988, 11, 284, 493, 133, 783, 192, 979, 622, 215, 240, 548]
    assert {every[at] for at in printed} < set(chosen) and len(set(chosen)) == 100
    assert chosen == sorted(chosen)
    with pytest.raises(DatasetError, match=r"there are 101 class folders\. Remedy: .*wnids="):
        imagenet_subset.usual_classes(every[:101])


def mini_lists(root, **parts):
    for part, classes in parts.items():
        names = [f"{label}{part}{at}.jpg" for label in classes for at in range(6)]
        put(root / "images", *names)
        lines = [f"{name},{name[:9]}" for name in names]
        (root / f"{part}.csv").write_text("\n".join(["filename,label", *lines]))
    return root


def test_mini_imagenet_with_different_classes_in_its_parts(tmp_path):
    mini_lists(tmp_path, train=WNIDS[:1], val=WNIDS[1:2], test=WNIDS[2:])
    data = mini_imagenet.load(tmp_path)
    assert data.label_names == tuple(WNIDS) and len(data) == 18
    assert np.bincount(data.labels[data.is_test]).tolist() == [1, 1, 1]
    assert "chosen for testing" in notes(data)
    other = mini_imagenet.load(tmp_path, test_share=0.5)
    assert np.bincount(other.labels[other.is_test]).tolist() == [3, 3, 3]


def test_mini_imagenet_with_the_same_classes_in_its_parts(tmp_path):
    mini_lists(tmp_path, train=WNIDS, test=WNIDS, val=WNIDS[:1])
    data = mini_imagenet.load(tmp_path)
    assert all(("test" in name) == is_test for name, _, is_test in table(data)) and len(data) == 36
    assert "6 images of the validation part left out" in notes(data)
    (tmp_path / "images" / f"{WNIDS[0]}test0.jpg").unlink()
    with pytest.raises(
        DatasetError, match=rf"1 image of .*test\.csv not found in .*{WNIDS[0]}test0\.jpg"
    ):
        mini_imagenet.load(tmp_path)


def test_mini_imagenet_in_folders(tmp_path):
    put(tmp_path / "a", *(f"{wnid}/{at}.jpg" for wnid in WNIDS for at in range(6)))
    data = mini_imagenet.load(tmp_path / "a")
    assert data.label_names == tuple(WNIDS) and data.is_test.sum() == 3
    for part, wnid in zip(("train", "val", "test"), WNIDS, strict=True):
        put(tmp_path / "b", *(f"{part}/{wnid}/{at}.jpg" for at in range(6)))
    apart = mini_imagenet.load(tmp_path / "b")
    assert table(apart) == table(data)
    put(tmp_path / "c", f"train/{WNIDS[0]}/1.jpg", f"test/{WNIDS[0]}/2.jpg")
    assert table(mini_imagenet.load(tmp_path / "c")) == [
        ("1.jpg", WNIDS[0], False),
        ("2.jpg", WNIDS[0], True),
    ]


def cub(root):
    names = ["001.Albatross/a.jpg", "001.Albatross/b.jpg", "002.Wren/c.jpg"]
    put(root / "images", *names)
    (root / "images.txt").write_text("".join(f"{at} {name}\n" for at, name in enumerate(names, 1)))
    (root / "image_class_labels.txt").write_text("1 1\n2 1\n3 2\n")
    (root / "train_test_split.txt").write_text("1 1\n2 0\n3 1\n")
    (root / "classes.txt").write_text("2 002.Wren\n1 001.Albatross\n")
    return root


def test_cub(tmp_path):
    cub(tmp_path / "CUB_200_2011")
    data = cub200.load(tmp_path)
    assert data.label_names == ("001.Albatross", "002.Wren")
    assert table(data) == [
        ("a.jpg", "001.Albatross", False),
        ("b.jpg", "001.Albatross", True),
        ("c.jpg", "002.Wren", False),
    ]
    assert "the official set has 5994, 5794 and 200" in notes(data)
    put(tmp_path, "CUB_200_2011/images/002.Wren/new.jpg")
    assert "1 image left out that images.txt does not name" in notes(cub200.load(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("image_class_labels.txt", "1 1\n2 1\n", "differ in 3"),
        ("train_test_split.txt", "1 1\n2 1\n3 0\n4 1\n", "differ in 4"),
        ("train_test_split.txt", "1 1\n2 1\n3 2\n", "other values than 0 and 1"),
        ("image_class_labels.txt", "1 1\n2 1\n3 9\n", r"classes\.txt has no class 9"),
        ("images.txt", "1 a.jpg\n2 x/b.jpg\n3 c.jpg\n", r"3 images .* a\.jpg, x/b\.jpg"),
        ("images.txt", "1 a.jpg\n1 b.jpg\n", "line 2"),
        ("classes.txt", "one Wren\n", "line 1"),
        ("classes.txt", "1\n", "line 1"),
    ],
)
def test_cub_with_inconsistent_files(tmp_path, name, content, message):
    (cub(tmp_path) / name).write_text(content)
    with pytest.raises(DatasetError, match=message):
        cub200.load(tmp_path)


def test_imagenet_r(tmp_path):
    names = [f"{wnid}/art_{at}.jpg" for wnid in WNIDS for at in range(10)]
    put(tmp_path / "imagenet-r", *names)
    (tmp_path / "imagenet-r" / "README.txt").write_text(f"Classes:\n{WNIDS[0]} goldfish\n")
    data = imagenet_r.load(tmp_path)
    assert data.label_names == ("goldfish", *WNIDS[1:])
    assert np.bincount(data.labels[data.is_test]).tolist() == [2, 2, 2]
    assert "README.txt has no name for" in notes(data)
    put(tmp_path / "elsewhere", *reversed(names))
    again = imagenet_r.load(tmp_path / "elsewhere")
    assert again.is_test.tolist() == data.is_test.tolist()
    assert imagenet_r.load(tmp_path, seed=1).is_test.tolist() != data.is_test.tolist()
    put(tmp_path / "split", f"train/{WNIDS[0]}/a.jpg", f"test/{WNIDS[0]}/b.jpg")
    assert imagenet_r.load(tmp_path / "split").is_test.tolist() == [False, True]


def test_core50(tmp_path):
    names = [f"s{s}/o{o}/C_{s:02}_{o:02}_0.png" for s in (1, 3, 10, 11) for o in (1, 2, 6, 50)]
    put(tmp_path / "core50_128x128", *names)
    data = core50.load(tmp_path)
    assert data.domain_names == ("s1", "s3", "s10", "s11")
    assert data.label_names == (
        "plug adapter 1",
        "plug adapter 2",
        "mobile phone 1",
        "remote control 5",
    )
    assert data.labels.tolist() == [0, 1, 2, 3] * 4
    assert data.domains.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert sorted({data.domain_names[at] for at in data.domains[data.is_test]}) == ["s10", "s3"]
    kinds = core50.load(tmp_path, categories=True, test_sessions=[1])
    assert kinds.label_names == ("plug adapter", "mobile phone", "remote control")
    assert kinds.labels.tolist() == [0, 0, 1, 2] * 4
    assert kinds.is_test.tolist() == [True] * 4 + [False] * 12
    with pytest.raises(DatasetError, match="no sessions s12"):
        core50.load(tmp_path, test_sessions=[12])
    put(tmp_path, "core50_128x128/s1/o51/a.png")
    with pytest.raises(DatasetError, match="o51 is not an object"):
        core50.load(tmp_path)
