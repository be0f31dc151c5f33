"""Which samples few-shot classes have: the published draw, others, lists in files."""

from __future__ import annotations

import numpy as np
import pytest

from fecam.data.dataset import Dataset
from fecam.data.images import ImageFiles
from fecam.errors import DatasetError, SettingsError
from fecam.scenarios import build, few_shot, read_shot_lists


def classes_of(sizes, items=None, names=None):
    """Classes of these numbers of training rows, and a test row each."""
    labels = np.concatenate([np.repeat(i, size + 1) for i, size in enumerate(sizes)])
    is_test = np.zeros(len(labels), bool)
    is_test[np.cumsum([size + 1 for size in sizes]) - 1] = True
    items = range(len(labels)) if items is None else items
    names = names or tuple(f"c{i}" for i in range(len(sizes)))
    return Dataset("small", "images", items, labels, names, "f", is_test)


def ranks(data, label, task):
    own = np.flatnonzero((data.labels == label) & ~data.is_test)
    return set(np.searchsorted(own, task.train[data.labels[task.train] == label]).tolist())


def test_the_published_draw_has_the_ranks_of_the_published_lists():
    data = classes_of([40, 500, 30, 29])
    scenario = build(data, "few-shot", seed=7, base=1, ways=1, shots=5, order="natural")
    published = {1: (304, 340, 47, 67, 479), 2: (17, 21, 10, 19, 14), 3: (14, 21, 18, 20, 25)}
    for task in scenario[1:]:
        (label,) = task.classes
        assert ranks(data, label, task) == set(published[label])


def test_only_a_draw_by_seed_depends_on_the_seed():
    data = classes_of([9, 60, 60, 60])

    def shots(seed, **options):
        scenario = few_shot(data, base=1, ways=3, shots=5, seed=seed, **options)
        return scenario[1].train.tolist()

    assert shots(0) == shots(1) == shots(0, draw="published")
    assert shots(0, draw=3) == shots(1, draw=3) == shots(3, draw="seed") != shots(0)
    assert shots(0, draw="seed") != shots(1, draw="seed")


@pytest.mark.parametrize("draw", ["all", 1.5, -1, True])
def test_an_unknown_draw_is_rejected(draw):
    with pytest.raises(SettingsError, match="draw="):
        few_shot(classes_of([9, 9]), base=1, ways=1, shots=5, draw=draw)


def test_lists_of_indices_count_training_images(tmp_path):
    data = classes_of([4, 6, 6])
    (tmp_path / "session_1.txt").write_text("0\n1\n")
    (tmp_path / "session_2.txt").write_text("5\n4\n\n")
    (tmp_path / "session_10.txt").write_text("14\n15\n")
    assert read_shot_lists(data, tmp_path) == {
        0: data.train[[0, 1]].tolist(), 1: data.train[[5, 4]].tolist(),
        2: data.train[[14, 15]].tolist(),
    }  # fmt: skip
    scenario = few_shot(data, base=1, ways=1, shots=2, given=str(tmp_path))
    assert scenario[0].train.tolist() == [0, 1, 2, 3]
    assert scenario[1].train.tolist() == sorted(data.train[[5, 4]])
    again = build(data, "few-shot", seed=0, **scenario.describe()["options"])
    assert [task.train.tolist() for task in again] == [task.train.tolist() for task in scenario]


def test_lists_of_paths_are_found_by_file_and_folder(tmp_path):
    names = [f"/data/{bird}/{i}.jpg" for bird in ("gull", "wren") for i in range(4)]
    data = classes_of([3, 3], ImageFiles(names))
    (tmp_path / "session_2.txt").write_text("CUB/images/wren/2.jpg\nCUB/images/wren/0.jpg\n")
    assert read_shot_lists(data, tmp_path) == {1: [6, 4]}
    (tmp_path / "session_3.txt").write_text("CUB/images/wren/3.jpg\n")  # for testing
    with pytest.raises(DatasetError, match=r"session_3.txt, line 1: .*is not one training image"):
        read_shot_lists(data, tmp_path)


def test_lists_that_do_not_fit_are_rejected(tmp_path):
    data = classes_of([3, 3])
    with pytest.raises(SettingsError, match="must be a folder with lists"):
        few_shot(data, base=1, ways=1, shots=2, given=tmp_path)
    (tmp_path / "session_2.txt").write_text("3\n6\n")
    with pytest.raises(DatasetError, match="6 is not a training row of 'small', which has 6"):
        few_shot(data, base=1, ways=1, shots=2, given=tmp_path)
    (tmp_path / "session_2.txt").write_text("3\n")
    with pytest.raises(SettingsError, match="must name shots=2 different rows"):
        few_shot(data, base=1, ways=1, shots=2, given=tmp_path)
