"""Tables of features, texts and paths, good and bad."""

import io
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fecam.data.images import ImageFiles
from fecam.data.table import load_table, table_items
from fecam.errors import DatasetError, ItemError


def labels_of(data):
    return [data.label_names[label] for label in data.labels]


def rejected(path, message, **options):
    with pytest.raises(DatasetError, match=message) as caught:
        load_table(path, **options)
    assert path.name in str(caught.value)
    return str(caught.value)


# --- csv ------------------------------------------------------------------------------------------


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_csv_of_numbers(tmp_path):
    lines = (
        "label,x,y,split,domain",
        "b,1,2.5,train,s10",
        "",
        "a,3,-4e0,test,s2",
        "b,5,6,Train,s10",
    )
    data = load_table(write(tmp_path / "t.csv", *lines))
    assert data.kind == "features" and data.name == "t" and data.items.dtype == np.float32
    assert np.asarray(data.items).tolist() == [[1, 2.5], [3, -4], [5, 6]]
    assert labels_of(data) == ["b", "a", "b"] and data.label_names == ("a", "b")
    assert data.is_test.tolist() == [False, True, False]
    assert data.domain_names == ("s2", "s10") and data.domains.tolist() == [1, 0, 1]


def test_csv_of_texts(tmp_path):
    lines = ("text,label,length", '"one, and', 'two",10,3', "drei ä,9,1")
    path = write(tmp_path / "t.csv", *lines)
    data = load_table(path)
    assert data.kind == "texts" and list(data.items) == ["one, and\ntwo", "drei ä"]
    assert data.label_names == ("9", "10") and data.notes == ("columns left out: length",)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # As Excel writes it.
    assert list(load_table(path).items) == list(data.items)
    assert load_table(path).fingerprint == data.fingerprint
    tabs = write(tmp_path / "t.tsv", "text\tlabel", "a, b\tx")
    assert list(load_table(tabs).items) == ["a, b"]
    other = write(tmp_path / "o.csv", "Satz;Art", "a, b;x")
    rejected(other, "delimiter=';'")
    assert list(load_table(other, delimiter=";", text="Satz", label="Art").items) == ["a, b"]


def test_csv_paths_are_relative_to_its_folder(tmp_path):
    (tmp_path / "in" / "img").mkdir(parents=True)
    Image.new("L", (2, 2), 7).save(tmp_path / "in" / "img" / "a.png")
    Image.new("L", (2, 2), 8).save(tmp_path / "out.png")
    lines = [
        "path,label",
        "img/a.png,cat",
        "../out.png,dog",
        f"{tmp_path}/out.png,dog",
        "no.png,cat",
    ]
    data = load_table(write(tmp_path / "in" / "t.csv", *lines))
    assert data.kind == "images" and isinstance(data.items, ImageFiles)
    assert [int(data.items[at].max()) for at in range(3)] == [7, 8, 8]
    assert "1 missing image" in data.notes[0] and "line 5" in data.notes[0]
    with pytest.raises(ItemError, match="no such file"):
        data.items[3]
    before = data.fingerprint
    Image.new("L", (30, 30), 9).save(tmp_path / "out.png")
    assert load_table(tmp_path / "in" / "t.csv").fingerprint != before
    rejected(write(tmp_path / "t.csv", "path,label", "no.png,cat"), "no image of 1 row exists")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("label,x", "a,1", "b,1,2"), "line 3: 3 cells where the first line names 2"),
        (("label,x", "a,1", "", "b,one"), "line 4: 'one' in column 'x' is not a number"),
        (("label,x", "a,nan"), "line 2: a feature is NaN"),
        (("label,x", "a,1", "a,inf"), "line 3: a feature is NaN"),
        (("label,x", "a,1e39"), "line 2: .* too large for 32 bits"),
        (("label,x", "a,1", " ,1"), "line 3: no label"),
        (("label,text", "a,b", 'c,"', '"'), "line 3: no text"),
        (("label,x,domain", "a,1,"), "line 2: no domain"),
        (("label,x,split", "a,1,train", "a,1,later"), "line 3: the split 'later' is none of"),
        (("label,x",), "no rows"),
        (("kind,x", "a,1"), "'kind', 'x', none of which is called 'label'. Remedy: .*label="),
        (("label", "a"), "no texts, paths of images or features"),
        (("label,text,path", "a,b,c"), r"texts \('text'\) and images \('path'\). Remedy: .*text="),
        (("label,id,x", "a,1,2"), "'id' may only number the rows.*features="),
        (("label,x,x", "a,1,2"), "several columns called x"),
        (("label,text", 'a,"never closed'), "line 2: .*quotation marks"),
    ],
)
def test_bad_csv(tmp_path, lines, message):
    rejected(write(tmp_path / "t.csv", *lines), message)


def test_more_bad_csv(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"")
    rejected(path, "is empty")
    path.write_bytes("label,text\na,café".encode("latin-1"))
    rejected(path, "not UTF-8")
    path.write_bytes(b"label,text\na," + b"x" * 200_000)
    rejected(path, "line 2: field larger")
    write(path, "label,x,y", "a,1,2")
    rejected(path, "'z' cannot be the features", features=["x", "z"])
    rejected(path, "label='z' names none of them", label="z")
    rejected(path, "one of the three", text="x", image="y")
    assert load_table(path, features=["y"]).items[0].tolist() == [2]
    rejected(write(tmp_path / "t.xlsx", "a"), r"ends in '\.xlsx'")
    rejected(tmp_path / "absent.csv", "does not exist")
    (tmp_path / "folder.csv").mkdir()
    rejected(tmp_path / "folder.csv", "is a folder")


def test_a_wide_and_long_csv_is_read_in_blocks(tmp_path):
    values = np.random.default_rng(0).normal(size=(9000, 3)).astype(np.float32)
    lines = [f"{at % 7}," + ",".join(map(repr, map(float, row))) for at, row in enumerate(values)]
    path = write(tmp_path / "t.csv", "label,a,b,c", *lines)
    data = load_table(path)
    assert np.array_equal(data.items, values) and (data.labels == np.arange(9000) % 7).all()
    write(path, "label,a,b,c", *lines[:8000], "0,1,2,nan", *lines[8000:])
    rejected(path, "line 8002")


def test_validation_rows(tmp_path):
    path = write(tmp_path / "t.csv", "label,text,split", "a,1,train", "a,2,val", "a,3,train")
    assert load_table(path).is_test.tolist() == [False, True, False]
    path = write(tmp_path / "t.csv", "label,text,split", "a,1,train", "a,2,dev", "a,3,test")
    data = load_table(path)
    assert list(data.items) == ["1", "3"] and data.is_test.tolist() == [False, True]
    assert data.notes == ("1 row of the validation part left out",)


# --- parquet --------------------------------------------------------------------------------------


def parquet(path, /, **columns):
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float32()), pa.list_(pa.float64(), 2), pa.large_list(pa.int16())],
)
@pytest.mark.parametrize("name", ["embedding", "features"])
def test_parquet_of_lists(tmp_path, kind, name):
    path = parquet(
        tmp_path / "t.parquet",
        **{name: pa.array(ROWS, kind)},
        label=pa.array(["b", "a", "b"]).dictionary_encode(),
        split=["train", "test", "train"],
        domain=[2, 10, 2],
        comment=["x", "y", "z"],
    )
    data = load_table(path)
    assert data.kind == "features" and data.items.dtype == np.float32
    assert np.asarray(data.items).tolist() == ROWS and labels_of(data) == ["b", "a", "b"]
    assert data.is_test.tolist() == [False, True, False] and data.domain_names == ("2", "10")
    assert data.notes == ("columns left out: comment",)


def test_other_parquets(tmp_path):
    path = tmp_path / "t.parquet"
    parquet(path, label=[3, 20, 3], x=[1, 2, 3], y=[0.5, 1.5, 2.5], note=["a", "b", "c"])
    data = load_table(path)
    assert np.asarray(data.items).tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert data.label_names == ("3", "20") and data.notes == ("columns left out: note",)
    assert load_table(path, features=["y"]).items.shape == (3, 1)
    parquet(path, label=["a", "b"], text=["one", "two"], __index_level_0__=[0, 1])
    assert list(load_table(path).items) == ["one", "two"] and load_table(path).notes == ()
    Image.new("L", (2, 2), 5).save(tmp_path / "a.png")
    parquet(path, label=["a"], path=["a.png"])
    assert load_table(path).items[0].max() == 5
    parquet(path, label=["a"], vector=[[1.0]])
    rejected(path, "no texts, paths of images or features")
    assert load_table(path, features="vector").items.tolist() == [[1]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"embedding": [[1.0], [2.0], [3.0, 4.0]]}, "row 3: 2 features where the first row has 1"),
        ({"embedding": [[1.0], None, [3.0]]}, "row 2: no value"),
        ({"embedding": [[1.0, 2.0], [1.0, 2.0], [3.0, None]]}, "row 3: a feature is NaN"),
        ({"embedding": [[1.0], [2.0], [np.inf]]}, "row 3: a feature is NaN"),
        ({"x": [1.0, None, 3.0]}, "row 2: no value in 'x'"),
        ({"x": [1.0, 2.0, np.nan]}, "row 3: a feature is NaN"),
        ({"text": ["a", None, "b"]}, "row 2: no text"),
        ({"text": ["a", "b", "c"], "label": ["a", "b", None]}, "row 3: no label"),
        ({"text": ["a", "b", "c"], "label": [0.5, 1.5, 2.5]}, "'label' is of type double"),
        ({"text": ["a", "b", "c"], "path": ["a", "b", "c"]}, "text=.*image"),
        ({"text": [["a"], ["b"], ["c"]]}, "'text' is of type list"),
        ({"embedding": pa.array([[], [], []], pa.list_(pa.float32()))}, "no features"),
    ],
)
def test_bad_parquet(tmp_path, columns, message):
    rejected(parquet(tmp_path / "t.parquet", **{"label": ["a", "b", "c"], **columns}), message)


def test_damaged_parquet(tmp_path):
    path = parquet(tmp_path / "t.parquet", label=["a"] * 50, x=list(range(50)))
    whole = path.read_bytes()
    for damaged in (whole[:-20], b"", b"PAR1" * 10, whole[:8] + b"\xff" * 40 + whole[48:]):
        path.write_bytes(damaged)
        rejected(path, "cannot be read as parquet")
    parquet(path, label=pa.array([], pa.string()), x=pa.array([], pa.float32()))
    rejected(path, "no rows")


# --- npz ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2", "f2"])
@pytest.mark.parametrize("order", "CF")
def test_npz_of_vectors(tmp_path, save, dtype, order):
    vectors = np.arange(12).reshape(4, 3).astype(dtype).copy(order)
    save(tmp_path / "t.npz", X=vectors, y=[3, 20, 3, -1], is_test=[True, False, False, True])
    data = load_table(tmp_path / "t.npz")
    assert data.kind == "features" and data.items.dtype == np.float32
    assert np.array_equal(data.items, np.arange(12).reshape(4, 3))
    assert data.label_names == ("-1", "3", "20") and data.labels.tolist() == [1, 2, 1, 0]
    assert data.is_test.tolist() == [True, False, False, True]


def test_a_large_npz(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(1500, 1024)).astype(np.float32)
    labels = np.arange(1500) % 3
    for order in "CF":
        np.savez(tmp_path / "t.npz", X=vectors.copy(order), y=labels)
        assert np.array_equal(load_table(tmp_path / "t.npz").items, vectors)
        wrong = vectors.copy(order)
        wrong[[1400, 1300], [1000, 3]] = np.nan
        np.savez(tmp_path / "t.npz", X=wrong, y=labels)
        rejected(tmp_path / "t.npz", "row 1301 of 'X': a feature is NaN")


def test_npz_in_two_parts_with_names_and_domains(tmp_path):
    np.savez(
        tmp_path / "t.npz",
        x_train=np.ones((2, 3)),
        y_train=[1, 0],
        x_test=np.zeros((1, 3)),
        y_test=[1],
        domains=["s2", "s10"],
        domains_test=["s2"],
        label_names=["zebra", "ant", "never"],
    )
    data = load_table(tmp_path / "t.npz")
    assert data.label_names == ("zebra", "ant", "never") and labels_of(data) == [
        "ant",
        "zebra",
        "ant",
    ]
    assert data.is_test.tolist() == [False, False, True] and data.domains.tolist() == [0, 1, 0]
    assert np.asarray(data.items)[:, 0].tolist() == [1, 1, 0]


def test_npz_of_texts_and_images(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, X=["one", "zwei ä"], y=np.array(["b", "a"]))
    assert load_table(path).kind == "texts" and list(load_table(path).items) == ["one", "zwei ä"]
    images = np.arange(2 * 4, dtype=np.uint8).reshape(2, 2, 2)
    for stack in (images, images[..., None], np.repeat(images[..., None], 3, axis=3)):
        np.savez(path, pictures=stack, kinds=[0, 1])
        data = load_table(path, image="pictures", label="kinds")
        assert data.kind == "images" and data.items[1][..., 0].tolist() == [[4, 5], [6, 7]]
        assert data.items[1].shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": np.ones((2, 3))}, "arrays X, but no 'y'"),
        ({"y": [1, 2]}, "no 'X'"),
        ({"X": np.ones((3, 3)), "y": [1, 2]}, r"'X' has the shape \(3, 3\) and 'y' \(2,\)"),
        ({"X": np.ones((2, 3)), "y": [[1], [2]]}, "'y'"),
        ({"X": np.ones(2), "y": [1, 2]}, "float64, shape"),
        ({"X": np.ones((2, 3), complex), "y": [1, 2]}, "complex128"),
        ({"X": [[1, np.nan], [1, 1]], "y": [1, 2]}, "row 1 of 'X'"),
        ({"X": [[1, 1], [1, 1e300]], "y": [1, 2]}, "row 2 of 'X'.*too large"),
        ({"X": np.ones((2, 3)), "y": [1, 0.5]}, "row 2: 0.5 in 'y' is not an integer"),
        ({"X": np.ones((2, 3)), "y": ["a", ""]}, "row 2: no label"),
        ({"X": np.ones((2, 3)), "y": [0, 2], "label_names": ["a", "b"]}, "row 2: the label 2"),
        ({"X": np.ones((2, 3)), "y": [0, 1], "label_names": ["a", "a"]}, "a name twice"),
        ({"X": np.ones((2, 3)), "y": ["a", "c"], "label_names": ["a", "b"]}, "lacks: c"),
        ({"X": np.ones((2, 3)), "y": [0, 1], "is_test": [1, 2]}, "'is_test' is not boolean"),
        ({"X": np.ones((2, 3)), "y": [0, 1], "is_test": [1]}, r"'is_test' has the shape \(1,\)"),
        ({"X": np.ones((2, 3)), "y": [0, 1], "X_test": np.ones((2, 3))}, "'X_test' alone"),
        (
            {"X": np.ones((1, 3)), "y": [0], "X_test": np.ones((1, 2)), "y_test": [0]},
            "differ in width",
        ),
        ({"X": np.empty((0, 3)), "y": []}, "no rows"),
        ({"X": np.array([[None]]), "y": [0]}, "cannot be read as npz: Object arrays"),
        ({"X": np.ones((1, 1)), "y": np.array([{}])}, "cannot be read as npz: Object arrays"),
    ],
)
def test_bad_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "t.npz", **arrays)
    rejected(tmp_path / "t.npz", message)


def by_hand(path, header, content=b"", version=b"\x01\x00"):
    """Write an archive whose X has the header that is given, and a good y."""
    text = header.encode().ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "X.npy", b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + content
        )
        buffer = io.BytesIO()
        np.save(buffer, [0])
        archive.writestr("y.npy", buffer.getvalue())
    return path


@pytest.mark.parametrize(
    ("header", "content"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1000000000000000)}", b"1234"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1, -1)}", b""),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1)}", b"1234"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2)}", b"1234"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1, 1)}", b"12345678"),
        ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1, 1)}", b"1234"),
        ("__import__('os').system('touch hacked')", b""),
        ("not a header", b""),
        ("{'descr': '<f4', 'shape': (1, 1", b""),
    ],
)
def test_npz_with_invalid_headers(tmp_path, header, content):
    rejected(by_hand(tmp_path / "t.npz", header, content), "the array 'X'")
    good = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}"
    assert load_table(by_hand(tmp_path / "good.npz", good, bytes(4))).items.tolist() == [[0]]
    rejected(by_hand(tmp_path / "t.npz", good, bytes(4), version=b"\x09\x00"), "format version")


def test_npz_that_declares_more_than_it_holds(tmp_path):
    path = tmp_path / "t.npz"
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1000000)}"
    by_hand(path, header, bytes(4_000_000))
    assert load_table(path).items.shape == (1, 1_000_000)  # Zeros pack well, and that is fine.
    small = by_hand(path, header.replace("1000000)", "800000000)"), b"").read_bytes()
    size = (128).to_bytes(4, "little")
    assert small.count(size) >= 2
    path.write_bytes(small.replace(size, (3_200_000_128).to_bytes(4, "little")))
    rejected(path, "the array 'X' cannot be read as npz")


def test_damaged_npz(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, X=np.random.default_rng(0).normal(size=(50, 50)), y=np.arange(50))
    whole = path.read_bytes()
    for damaged in (whole[:-100], b"", b"PK\x03\x04", whole[:900] + b"\0" * 99 + whole[999:]):
        path.write_bytes(damaged)
        rejected(path, "cannot be read as npz")


def test_the_fingerprint_changes_with_the_content(tmp_path):
    def stamp(**changes):
        arrays = {"X": np.ones((2, 3)), "y": [0, 1], "is_test": [False, True], **changes}
        np.savez(tmp_path / "t.npz", **arrays)
        return load_table(tmp_path / "t.npz").fingerprint

    other = np.ones((2, 3))
    other[1, 2] = 2
    changes = [{"X": other}, {"y": [1, 0]}, {"y": [0, 2]}, {"is_test": [True, False]}]
    changes.append({"domains": [0, 1]})
    assert stamp() == stamp() and len({stamp(), *(stamp(**one) for one in changes)}) == 6


# --- one label for all, or none -------------------------------------------------------------------


def save(path, **columns):
    """The same rows as whatever the name of the file asks for."""
    if path.suffix == ".npz":
        np.savez(
            path,
            **{"X": columns["text"], **({"y": columns["label"]} if "label" in columns else {})},
        )
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".csv":
        write(path, ",".join(columns), *map(",".join, zip(*columns.values(), strict=True)))
    else:
        write(path, *columns["text"])
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".txt"])
def test_texts_of_one_class_need_no_labels(tmp_path, suffix):
    path = save(tmp_path / f"t{suffix}", text=["a b", "c d"])
    data = load_table(path, as_label="spam")
    assert (data.kind, list(data.items), labels_of(data)) == ("texts", ["a b", "c d"], ["spam"] * 2)
    found = table_items(path)
    assert (found.kind, list(found.items)) == ("texts", ["a b", "c d"])
    assert found.where(1) in ("line 3", "line 2", "row 2")
    rejected(path, "has no labels|none of which is called 'label'|no 'y'")
    rejected(path, "no label", as_label=" ")


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_one_label_for_all_replaces_those_of_the_file(tmp_path, suffix):
    path = save(tmp_path / f"t{suffix}", text=["a b", "c d"], label=["x", "y"])
    assert labels_of(load_table(path, as_label="spam")) == ["spam"] * 2
    assert list(table_items(path).items) == ["a b", "c d"]


def test_table_items_returns_the_rows_of_all_splits(tmp_path):
    path = write(tmp_path / "t.csv", "a,b,label,split", "1,2,x,train", "3,4,y,val", "5,6,y,test")
    assert table_items(path).items.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert load_table(path, as_label="x").is_test.tolist() == [False, True]
    np.savez(tmp_path / "t.npz", X=np.ones((2, 3)), y=[0, 1], X_test=np.zeros((1, 3)), y_test=[0])
    assert table_items(tmp_path / "t.npz").items.sum(axis=1).tolist() == [3, 3, 0]
    assert load_table(tmp_path / "t.npz", as_label="x").is_test.tolist() == [False, False, True]


def test_table_items_paths_are_relative_to_the_table(tmp_path):
    path = write(tmp_path / "t.csv", "path", "a.png", "in/b.png")
    assert list(table_items(path).items) == [tmp_path / "a.png", tmp_path / "in" / "b.png"]


def test_a_csv_without_column_names_is_rejected(tmp_path):
    with pytest.raises(DatasetError, match=r"t\.csv starts with a line of numbers"):
        table_items(write(tmp_path / "t.csv", "1.5,2", "3,4"))


def test_npy(tmp_path):
    path = tmp_path / "t.npy"
    np.save(path, np.asfortranarray(np.arange(12.0).reshape(4, 3)))
    data = load_table(path, as_label="x")
    assert data.kind == "features" and data.items.dtype == np.float32
    assert data.items.tolist() == np.arange(12.0).reshape(4, 3).tolist()
    assert table_items(path).where(2) == "row 3"
    rejected(path, "as_label")
    np.save(path, np.arange(3))
    assert table_items(path).items.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([["a"]]), "of type <U1"),
        (np.ones((2, 2, 2)), r"shape \(2, 2, 2\)"),
        (np.array([[1.0, np.nan]]), "row 1: a feature is NaN"),
        (np.ones((0, 3)), "has no rows|cannot be read"),
        (np.array([{}]), "cannot be read as npy"),
    ],
)
def test_bad_npy(tmp_path, array, message):
    np.save(tmp_path / "t.npy", array, allow_pickle=True)
    rejected(tmp_path / "t.npy", message, as_label="x")


def test_npy_that_declares_more_than_it_holds(tmp_path):
    path = tmp_path / "t.npy"
    np.save(path, np.ones((2, 3)))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"(2, 3)", b"(2**40, 3)"[:6]))
    rejected(path, "cannot be read as npy", as_label="x")
    path.write_bytes(content.replace(b"(2, 3), }            ", b"(2000000000000, 3), }"))
    rejected(path, "cannot be read as npy", as_label="x")
    path.write_bytes(b"")
    rejected(path, "cannot be read as npy", as_label="x")


def test_lines(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes("\ufeffone\r\n\r\n  two words \nthree".encode())
    found = table_items(path)
    assert (found.items, found.where(1)) == (["one", "two words", "three"], "line 3")
    path.write_bytes(b"\xff\xfe")
    rejected(path, "is not UTF-8 text", as_label="x")
    path.write_bytes(b" \n")
    rejected(path, "has no rows", as_label="x")
