"""Collections of LanceDB, Qdrant and Hugging Face, as these programs write them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from fecam.data import load
from fecam.errors import DatasetError
from helpers.features import relu_features

X, Y = relu_features(3, 4, 5, 0)
NAMES = [["cat", "dog", "owl"][i] for i in Y]


def assert_same(data, labels=NAMES):
    assert data.kind == "features" and data.items.dtype == np.float32
    np.testing.assert_array_equal(data.items, X)
    assert [data.label_names[i] for i in data.labels] == [str(label) for label in labels]


@pytest.fixture
def lance(tmp_path):
    lancedb = pytest.importorskip("lancedb")
    rows = [
        {"vector": x.tolist(), "label": name, "page": i}
        for i, (x, name) in enumerate(zip(X, NAMES, strict=True))
    ]
    database = lancedb.connect(tmp_path / "lance")
    database.create_table("pets", rows)
    database.create_table("bare", [{"title": "no vector", "label": "cat"}])
    return f"lancedb:{tmp_path / 'lance'}"


@pytest.fixture
def qdrant(tmp_path):
    qdrant_client = pytest.importorskip("qdrant_client")
    from qdrant_client.models import Distance, PointStruct, VectorParams

    client = qdrant_client.QdrantClient(path=str(tmp_path / "qdrant"))
    params = VectorParams(size=5, distance=Distance.EUCLID)
    client.create_collection("pets", vectors_config=params)
    client.create_collection("two", vectors_config={"image": params, "title": params})
    points = list(enumerate(zip(X.tolist(), NAMES, strict=True)))
    client.upsert(
        "pets", [PointStruct(id=i, vector=x, payload={"label": n}) for i, (x, n) in points]
    )
    both = [
        PointStruct(id=i, vector={"image": x, "title": [0.0] * 5}, payload={"species": n})
        for i, (x, n) in points
    ]
    client.upsert("two", both)
    client.close()
    return f"qdrant:{tmp_path / 'qdrant'}"


def test_lancedb(lance):
    data = load(f"{lance}/pets")
    assert_same(data)
    assert data.name == "pets" and data.notes == ("columns left out: page",)
    assert_same(load(f"{lance}/pets", label="page"), range(12))
    assert load(f"{lance}/pets", as_label="pet").label_names == ("pet",)
    with pytest.raises(DatasetError, match=r"no such table. Tables: bare, pets"):
        load(f"{lance}/cats")
    with pytest.raises(DatasetError, match="no texts, paths of images or features"):
        load(f"{lance}/bare")


def test_qdrant(qdrant):
    assert_same(load(f"{qdrant}/pets"))
    assert_same(load(f"{qdrant}/two", features="image", label="species"))
    with pytest.raises(DatasetError, match="none of which is called 'label'"):
        load(f"{qdrant}/two")
    with pytest.raises(DatasetError, match=r"no such table. Tables: pets, two"):
        load(f"{qdrant}/cats")


def test_collections_without_vectors(tmp_path):
    client_library = pytest.importorskip("qdrant_client")
    models = client_library.models
    client = client_library.QdrantClient(path=str(tmp_path / "store"))
    client.create_collection("empty", vectors_config={})
    client.create_collection("names", vectors_config={})
    client.upsert("names", [models.PointStruct(id=1, vector={}, payload={"name": "robin"})])
    client.close()
    for name, said in [
        ("empty", "has no points"),
        ("names", "columns 'name': no texts, .*or feat"),
    ]:
        with pytest.raises(DatasetError, match=said):
            load(f"qdrant:{tmp_path}/store/{name}", as_label="bird")


def test_huggingface_features_and_splits(tmp_path):
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features(
        embedding=datasets.Sequence(datasets.Value("float32")),
        label=datasets.ClassLabel(names=["cat", "dog", "owl"]),
    )
    rows = {"embedding": X.tolist(), "label": Y.tolist()}
    datasets.Dataset.from_dict(rows, features=kinds).save_to_disk(tmp_path / "one")
    assert_same(load(f"huggingface:{tmp_path / 'one'}"))
    parts = datasets.DatasetDict(
        train=datasets.Dataset.from_dict({k: v[:8] for k, v in rows.items()}, features=kinds),
        test=datasets.Dataset.from_dict({k: v[8:] for k, v in rows.items()}, features=kinds),
    )
    parts.save_to_disk(tmp_path / "split")
    data = load(f"huggingface:{tmp_path / 'split'}")
    assert_same(data)
    assert data.is_test.tolist() == [False] * 8 + [True] * 4


def test_huggingface_images_and_texts(tmp_path):
    datasets = pytest.importorskip("datasets")
    pixels = np.random.default_rng(0).integers(0, 255, (4, 6, 6, 3), np.uint8)
    kinds = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
    images = []
    for array in pixels:
        content = io.BytesIO()
        Image.fromarray(array).save(content, "PNG")
        images.append({"bytes": content.getvalue(), "path": None})
    rows = {"image": images, "label": [3, 5, 3, 5]}
    datasets.Dataset.from_dict(rows, features=kinds).save_to_disk(tmp_path / "images")
    data = load(f"huggingface:{tmp_path / 'images'}")
    assert data.kind == "images" and data.classes == (3, 5)
    np.testing.assert_array_equal(np.stack([data.items[i] for i in range(4)]), pixels)
    texts = {"text": ["a robin", "a tit"], "label": ["robin", "tit"]}
    datasets.Dataset.from_dict(texts).save_to_disk(tmp_path / "texts")
    assert list(load(f"huggingface:{tmp_path / 'texts'}").items) == texts["text"]


@pytest.mark.parametrize("program", ["lancedb", "qdrant", "huggingface"])
def test_folders_that_are_missing_or_something_else(program, tmp_path):
    pytest.importorskip(
        {"huggingface": "datasets", "qdrant": "qdrant_client"}.get(program, program)
    )
    with pytest.raises(DatasetError, match="there is no folder"):
        load(f"{program}:{tmp_path / 'missing'}/table")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"no such table|cannot be read"):
        load(f"{program}:{tmp_path / 'empty' / 'table'}" if program != "huggingface"
             else f"{program}:{tmp_path / 'empty'}")  # fmt: skip


def test_a_collection_is_learned_by_the_command(fecam, lance, place):
    fecam("learn", f"{lance}/pets", "-m", "pets.fecam")
    assert "cat" in fecam("classes", "-m", "pets.fecam").out
