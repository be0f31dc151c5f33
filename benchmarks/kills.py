"""Kill a program while it learns, forgets, merges and undoes, and check the file.

    python benchmarks/kills.py [--rounds 200] [--quick]

Each round starts a process that changes one model file step after step, kills it (SIGKILL) at a
random moment, and opens the file. The file must be valid and contain exactly the first steps up to
some number: the number that the process had acknowledged, or one more, because a step may be on the
disk before it is acknowledged. The same steps are done in memory for comparison.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import fecam
from fecam import FeCAMClassifier
from fecam.model_file.integrity import check
from reporting import markdown, options, say, write
from stamps import MODEL_FILE

WIDTH, PER_CLASS, MOST = 192, 200, 12
"""Features, samples per batch, and the maximum of classes: a matrix takes 74 KB."""


def batch(number: int, classes: int = 1) -> tuple[Any, Any]:
    """Return the samples and labels of a step."""
    rng = np.random.default_rng(number)
    X = rng.gamma(2.0, size=(classes * PER_CLASS, WIDTH)).astype(np.float32)
    return X, np.repeat([f"class {(number + i) % MOST}" for i in range(classes)], PER_CLASS)


def kind_of(number: int, labels: list[str]) -> str:
    """Return what a step does; it follows from its number and the number of classes."""
    chance = random.Random(number).random()
    if len(labels) < 3 or chance < 0.5:
        return "learn"
    return "forget" if chance < 0.65 else "merge" if chance < 0.85 else "undo"


def other(number: int) -> FeCAMClassifier:
    """Return the model that a step merges."""
    return FeCAMClassifier().fit(*batch(number, classes=4))


def work(path: Path, folder: Path) -> None:
    """Change the file until killed; print the version after each step."""
    with fecam.open(path) as model:
        while True:
            number, labels = model.version, [str(record.label) for record in model.classes]
            what = kind_of(number, labels)
            if what == "learn":
                model.learn(*batch(number), allow_duplicates=True)
            elif what == "forget":
                model.forget(labels[number % len(labels)])
            elif what == "merge":
                second = folder / "other.fecam"
                second.unlink(missing_ok=True)
                other(number).save(second)
                model.merge(second)
            else:
                model.undo()
            print(model.version, flush=True)


class Replay:
    """The same steps in memory."""

    def __init__(self) -> None:
        self.version = 0
        self.states: list[dict[str, Any]] = [{}]

    def upto(self, version: int) -> dict[str, Any]:
        """Return the samples of each class after ``version`` steps."""
        while self.version < version:
            self._step(self.version)
            self.version += 1
        return self.states[-1]

    def _step(self, number: int) -> None:
        state = dict(self.states[-1])
        what = kind_of(number, list(state))
        if what == "undo":
            self.states.pop()
            return
        if what == "forget":
            del state[sorted(state)[number % len(state)]]
        else:
            X, y = batch(number, classes=4 if what == "merge" else 1)
            for label in sorted(set(y)):
                state[label] = [*state.get(label, []), X[y == label]]
        self.states.append(dict(sorted(state.items())))


def examine(path: Path, expected: dict[str, Any]) -> str | None:
    """Return what is wrong with a file; None if it has the expected contents."""
    problems = check(path)
    if problems:
        return problems[0]
    with fecam.open(path, readonly=True) as model:
        classes = model.classifier.state_.classes
        if list(classes) != list(expected):
            return f"classes {list(classes)} instead of {list(expected)}"
        for label, parts in expected.items():
            features = model.classifier.state_.transform(np.concatenate(parts))
            stats = classes[label]
            if stats.count != len(features) or np.abs(stats.mean - features.mean(0)).max() > 1e-5:
                return f"class {label} has {stats.count} samples instead of {len(features)}"
    return None


def kill_once(
    path: Path, folder: Path, replay: Replay, wait: float
) -> tuple[int, bool, str | None]:
    """Return the steps acknowledged, whether one more was on the disk, and what is wrong."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--work", str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(wait)
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    versions = [int(line) for line in (first + output).splitlines()]
    if not versions:
        return 0, False, "the process ended before it had done a step"
    try:
        with fecam.open(path, readonly=True) as model:
            version = model.version
    except fecam.errors.FecamError as error:
        return len(versions), False, f"cannot be opened: {error}"
    if version not in (versions[-1], versions[-1] + 1):
        return len(versions), False, f"version {version}, but {versions[-1]} was acknowledged"
    return len(versions), version > versions[-1], examine(path, replay.upto(version))


def main() -> int:
    """Kill, check, count."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="for itself: change this file until killed")
    args = parser.parse_args()
    if args.work:
        work(args.work, args.work.parent)
        return 0
    rounds = 4 if args.quick else args.rounds
    folder, chance, replay = Path(tempfile.mkdtemp()), random.Random(args.seed), Replay()
    path = folder / "model.fecam"
    steps = ahead = hot = 0
    problems: list[str] = []
    start = time.monotonic()
    for number in range(1, rounds + 1):
        done, more, problem = kill_once(path, folder, replay, chance.uniform(0, 0.5))
        steps, ahead = steps + done, ahead + more
        hot += path.with_name(path.name + "-journal").exists()
        if problem:
            problems.append(f"round {number}: {problem}")
            break  # later rounds would only repeat it
        if number % 10 == 0 or number == rounds:
            left = (time.monotonic() - start) / number * (rounds - number)
            say(f"{number}/{rounds} kills, {steps} steps, no problem; {left:.0f} s left")
    for problem in problems:
        say(f"{problem} ({path} is kept)")
    if not problems:
        shutil.rmtree(folder)
    header = [
        "kills",
        "steps acknowledged",
        "on the disk, not yet acknowledged",
        "files with a partial step",
    ]
    table = markdown(header, [[str(rounds), f"{steps:,}", str(ahead), str(len(problems))]])
    print(table)
    results = {"rounds": rounds, "steps": steps, "ahead": ahead, "journals": hot}
    write("kills", table, results | {"problems": problems}, quick=args.quick, measures=MODEL_FILE)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
