"""Features are extracted once, kept whole, and never read half-made."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from fecam.data.dataset import Dataset
from fecam.encoders.encoder import Encoder
from fecam.errors import EncoderError, FecamError, InputError, ItemError
from fecam.features import extract
from fecam.features.extraction import encode_readable, key_of
from fecam.features.saving import save_features
from fecam.features.store import FeatureStore


class Letters(Encoder):
    """Counts letters: a text's features reveal what it says. "?" cannot be read."""

    name, kind, n_features, preprocessing, batch_size = "letters", "texts", 26, "none", 4

    def __init__(self, fingerprint="letters-1", n_features=26):
        self.fingerprint, self.n_features, self.seen = fingerprint, n_features, []

    def prepare(self, item):
        if "?" in item:
            raise ItemError(item, "cannot be read")
        return item

    def embed(self, prepared):
        self.seen += prepared
        return np.asarray([[text.count(chr(97 + at)) for at in range(26)] for text in prepared])


def texts(count=23, bad=(), seed=0, name="words"):
    rng = np.random.default_rng(seed)
    items = ["".join(map(chr, rng.integers(97, 123, size=12))) for _ in range(count)]
    for at in bad:
        items[at] = f"?{at}"
    labels = np.arange(count) % 3
    return Dataset(
        name, "texts", items, labels, ("a", "b", "c"), f"{name}-{count}-{bad}-{seed}",
        is_test=np.arange(count) % 5 == 0, domains=np.arange(count) % 2, domain_names=("x", "y"),
    )  # fmt: skip


def literal(data):
    return np.asarray(
        [[t.count(chr(97 + at)) for at in range(26)] for t in data.items if "?" not in t],
        np.float32,
    )


@pytest.mark.parametrize("cache", [True, False])
def test_features_are_those_of_the_items_in_their_order(tmp_path, cache):
    data, encoder = texts(), Letters()
    found = extract(data, encoder, cache=tmp_path if cache else False)
    assert found.kind == "features"
    np.testing.assert_array_equal(found.items, literal(data))
    np.testing.assert_array_equal(found.labels, data.labels)
    np.testing.assert_array_equal(found.test, data.test)
    np.testing.assert_array_equal(found.domains, data.domains)
    assert np.asarray(found.items).dtype == np.float32


def test_cached_features_are_not_encoded_again(tmp_path):
    data = texts()
    first = extract(data, Letters(), cache=tmp_path)
    again = Letters()
    second = extract(data, again, cache=tmp_path)
    assert again.seen == []
    assert isinstance(second.items, np.memmap)
    np.testing.assert_array_equal(first.items, second.items)


def test_the_key_changes_with_weights_and_items(tmp_path):
    keys = {
        key_of(data, encoder)
        for data in (texts(), texts(22), texts(seed=1))
        for encoder in (Letters("1"), Letters("2"))
    }
    assert len(keys) == 6
    other = Letters("other")
    extract(texts(), Letters(), cache=tmp_path)
    extract(texts(), other, cache=tmp_path)
    assert len(other.seen) == 23


def test_unreadable_items_are_left_out_and_listed(tmp_path):
    data = texts(bad=(0, 7, 22))
    for cache in (tmp_path, tmp_path, False):
        found = extract(data, Letters(), cache=cache)
        np.testing.assert_array_equal(found.items, literal(data))
        assert found.labels.tolist() == [at % 3 for at in range(23) if at not in (0, 7, 22)]
        assert found.notes[0] == "3 of 23 items could not be read"
        assert found.notes[1:] == tuple(f"?{at}: cannot be read" for at in (0, 7, 22))


def test_encode_readable_reports_unreadable_items_and_caches_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("FECAM_CACHE", str(tmp_path))
    data = texts(bad=(0, 7, 22))
    found = encode_readable(data.items, Letters())
    np.testing.assert_array_equal(found.features, literal(data))
    assert found.rows == [at for at in range(23) if at not in (0, 7, 22)]
    assert found.failed == {at: f"?{at}: cannot be read" for at in (0, 7, 22)}
    assert not list(tmp_path.iterdir())
    nothing = encode_readable(["?", "?"], Letters())
    assert nothing.features.shape == (0, 26) and len(nothing.failed) == 2
    assert encode_readable([], Letters()).features.shape == (0, 26)


def test_strict_rejects_unreadable_items_also_from_the_cache(tmp_path):
    data = texts(bad=(7,))
    for _ in range(2):
        with pytest.raises(InputError, match=r"\?7: cannot be read"):
            extract(data, Letters(), cache=tmp_path, strict=True)
    assert len(extract(data, Letters(), cache=tmp_path)) == 22
    with pytest.raises(InputError, match=r"\?7: cannot be read"):
        extract(data, Letters(), cache=tmp_path, strict=True)


def test_a_data_set_without_readable_items_is_rejected(tmp_path):
    with pytest.raises(InputError, match="none of 3 items"):
        extract(texts(3, bad=(0, 1, 2)), Letters(), cache=tmp_path)
    assert FeatureStore(tmp_path).entries() == []


def test_invalid_features_of_an_encoder_are_rejected(tmp_path):
    with pytest.raises(EncoderError, match=r"shape \(4, 26\).*should be \(4, 3\)"):
        extract(texts(), Letters(n_features=3), cache=tmp_path)
    with pytest.raises(EncoderError, match="no fingerprint"):
        extract(texts(), Letters(""), cache=tmp_path)
    extract(texts(), Letters(""), cache=False)

    class Broken(Letters):
        def embed(self, prepared):
            return super().embed(prepared) * np.nan

    with pytest.raises(EncoderError, match="NaN"):
        extract(texts(), Broken(), cache=tmp_path)


def test_an_encoder_of_another_kind_is_rejected(tmp_path):
    data = texts()
    images = Letters()
    images.kind = "images"
    with pytest.raises(InputError, match=r"for images.*holds texts"):
        extract(data, images, cache=tmp_path)
    with pytest.raises(InputError, match="holds features already"):
        extract(extract(data, Letters(), cache=False), Letters())


def test_an_interrupted_run_is_resumed(tmp_path):
    class Interrupted(Letters):
        def embed(self, prepared):
            if len(self.seen) >= 12:
                raise KeyboardInterrupt
            return super().embed(prepared)

    data = texts(40, bad=(1, 30))
    with pytest.raises(KeyboardInterrupt):
        extract(data, Interrupted(), cache=tmp_path)
    assert FeatureStore(tmp_path).entries() == [] and FeatureStore(tmp_path).unfinished()
    resumed = Letters()
    reports = []
    found = extract(data, resumed, cache=tmp_path, report=reports.append)
    assert reports[0].done == 16
    assert len(resumed.seen) < 38, "it started from the first item"
    np.testing.assert_array_equal(found.items, literal(data))
    assert len(found.notes) == 3
    assert FeatureStore(tmp_path).unfinished() == []


def test_a_checkpoint_of_another_shape_is_discarded(tmp_path):
    data, key = texts(), key_of(texts(), Letters())
    partial = tmp_path / f".partial-{key}"
    for state in (b"{", b'{"done": 5, "skipped": []}', b'{"done": 500, "skipped": []}'):
        partial.mkdir(parents=True)
        (partial / "progress.json").write_bytes(state)
        np.save(partial / "features.npy", np.ones((23, 26 if b"500" in state else 3), np.float32))
        np.testing.assert_array_equal(extract(data, Letters(), cache=tmp_path).items, literal(data))
        FeatureStore(tmp_path).clear()


SCRIPT = textwrap.dedent(
    """
    import sys, time
    sys.path[:0] = {tests!r}
    from test_features import Letters, texts
    import fecam.features.store as store
    from fecam.features import extract

    class Slow(Letters):
        def embed(self, prepared):
            time.sleep({pause})
            return super().embed(prepared)

    def report(progress):
        print(progress.done, flush=True)

    slow = Slow()
    found = extract(texts({count}, bad=(5,)), slow, cache={folder!r}, report=report)
    print("encoded", len(slow.seen), float(found.items.sum()), flush=True)
    """
)


def start(tmp_path, count=200, pause=0.01):
    code = SCRIPT.format(
        tests=[str(parent) for parent in Path(__file__).parents[:2]],
        folder=str(tmp_path),
        count=count,
        pause=pause,
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_killed_process_leaves_no_incomplete_set(tmp_path):
    data, key = texts(200, bad=(5,)), key_of(texts(200, bad=(5,)), Letters())
    for after in (1, 20, 49):
        run = start(tmp_path)
        for _ in range(after):
            run.stdout.readline()
        os.kill(run.pid, signal.SIGKILL)
        run.communicate()
        found = FeatureStore(tmp_path).find(key)
        assert found is None or len(found.features) == 199
    result = extract(data, Letters(), cache=tmp_path)
    np.testing.assert_array_equal(result.items, literal(data))


def test_concurrent_runs_encode_once(tmp_path):
    runs = [start(tmp_path) for _ in range(3)]
    outputs = [run.communicate(timeout=60) for run in runs]
    assert all(run.returncode == 0 for run in runs), outputs
    last = [out.splitlines()[-1].split() for out, _ in outputs]
    assert sorted(int(line[1]) for line in last) == [0, 0, 199]
    assert len({line[2] for line in last}) == 1


def test_reading_while_another_thread_removes(tmp_path):
    data = texts(50)
    want = literal(data)
    stop = threading.Event()

    def remove():
        while not stop.is_set():
            FeatureStore(tmp_path).clear()

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        for _ in range(40):
            np.testing.assert_array_equal(extract(data, Letters(), cache=tmp_path).items, want)
    finally:
        stop.set()
        thread.join()


def test_the_least_recently_used_set_is_removed(tmp_path):
    store = FeatureStore(tmp_path)
    sets = [texts(100, seed=seed) for seed in range(3)]
    keys = [key_of(data, Letters()) for data in sets]
    for at, data in enumerate(sets[:2]):
        extract(data, Letters(), cache=store)
        os.utime(tmp_path / keys[at] / "about.json", (at, at))
    extract(sets[0], Letters(), cache=store)  # used again
    store.limit = int(2.5 * store.entries()[0].bytes)
    extract(sets[2], Letters(), cache=store)
    assert {one.key for one in store.entries()} == {keys[0], keys[2]}
    store.limit = 1
    extract(sets[1], Letters(), cache=store)
    assert {one.key for one in store.entries()} == {keys[1]}, "the newest set stays"


def test_damaged_features_name_the_remedy(tmp_path):
    extract(texts(), Letters(), cache=tmp_path)
    key = key_of(texts(), Letters())
    (tmp_path / key / "features.npy").write_bytes(b"not an array")
    with pytest.raises(FecamError, match=f"fecam cache remove {key}"):
        extract(texts(), Letters(), cache=tmp_path)
    FeatureStore(tmp_path).remove(key)
    assert len(extract(texts(), Letters(), cache=tmp_path)) == 23
    with pytest.raises(FecamError, match="no features with the key 'nosuch'"):
        FeatureStore(tmp_path).remove("nosuch")


def test_a_set_with_a_missing_file_is_computed_again(tmp_path):
    data, key = texts(), key_of(texts(), Letters())
    for name in ("about.json", "kept.npy", "features.npy"):
        extract(data, Letters(), cache=tmp_path)
        (tmp_path / key / name).unlink()
        np.testing.assert_array_equal(extract(data, Letters(), cache=tmp_path).items, literal(data))
    for words in (b"{", b"[]", b"7"):
        (tmp_path / key / "about.json").write_bytes(words)
        with pytest.raises(FecamError, match=f"fecam cache remove {key}"):
            extract(data, Letters(), cache=tmp_path)
    FeatureStore(tmp_path).remove(key)
    assert not (tmp_path / key).exists()


def test_a_full_disk_raises_an_error(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    data, key = texts(), key_of(texts(), Letters())

    def fill():
        with FeatureStore(tmp_path).writer(key, 23, 26, {}) as writer:
            writer._file.close()
            writer._file = open("/dev/full", "r+b")  # noqa: SIM115
            writer.add(literal(data), 23, [])

    with pytest.raises(FecamError, match=r"No space left on device.*FECAM_CACHE"):
        fill()
    assert FeatureStore(tmp_path).find(key) is None
    np.testing.assert_array_equal(extract(data, Letters(), cache=tmp_path).items, literal(data))


def test_a_read_only_cache(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    data, key = texts(), key_of(texts(), Letters())
    extract(data, Letters(), cache=tmp_path)
    for name in ("utime", "rename", "replace"):
        monkeypatch.setattr(os, name, refuse)
    store = FeatureStore(tmp_path)
    np.testing.assert_array_equal(extract(data, Letters(), cache=store).items, literal(data))
    calls = (
        lambda: store.remove(key),
        store.clear,
        lambda: setattr(store, "limit", 1),
        lambda: extract(texts(5), Letters(), cache=store),
    )
    for call in calls:
        with pytest.raises(FecamError, match=r"Read-only file system.*FECAM_CACHE"):
            call()
    (tmp_path / "limit").write_text("1")
    assert store.shrink() == [] and [one.key for one in store.entries()] == [key]


def test_a_folder_that_is_not_writable_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match=r"not cached: .*below is not writable.*FECAM_CACHE"):
        found = extract(texts(), Letters(), cache=tmp_path / "file" / "below")
    expected = extract(texts(), Letters(), cache=False)
    np.testing.assert_array_equal(found.items, expected.items)


def test_items_are_read_while_the_network_runs():
    spans = []

    class Timed(Letters):
        def prepare(self, item):
            began = time.perf_counter()
            time.sleep(0.005)
            spans.append(("read", began, time.perf_counter()))
            return item

        def embed(self, prepared):
            began = time.perf_counter()
            time.sleep(0.005)
            spans.append(("encode", began, time.perf_counter()))
            return super().embed(prepared)

    extract(texts(40), Timed(), cache=False)
    reads = [one for one in spans if one[0] == "read"]
    encodes = [one for one in spans if one[0] == "encode"]
    overlap = [r for r in reads for e in encodes if r[1] < e[2] and e[1] < r[2]]
    assert overlap, "reading and encoding took turns"


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_saved_features_are_read_back(tmp_path, suffix):
    from fecam.data import load

    found = extract(texts(), Letters(), cache=False)
    save_features(found, tmp_path / f"words{suffix}")
    again = load(tmp_path / f"words{suffix}")
    assert again.kind == "features" and again.label_names == found.label_names
    np.testing.assert_array_equal(np.stack([*again.items]), found.items)
    np.testing.assert_array_equal(again.labels, found.labels)
    np.testing.assert_array_equal(again.test, found.test)
    np.testing.assert_array_equal(again.domains, found.domains)
    assert again.domain_names == found.domain_names
    with pytest.raises(InputError, match=r"\.npz or \.parquet"):
        save_features(found, tmp_path / "words.xlsx")
    assert sorted(os.listdir(tmp_path)) == [f"words{suffix}"]


def test_about_describes_the_features(tmp_path):
    extract(texts(bad=(2,)), Letters(), cache=tmp_path)
    (entry,) = FeatureStore(tmp_path).entries()
    about = json.loads((tmp_path / entry.key / "about.json").read_text())
    assert about["dataset"] == "words" and about["encoder"] == "letters"
    assert about["skipped"] == [[2, "?2: cannot be read"]]
