"""Kill a service while it is taught, start it again, and look for every lesson.

    python benchmarks/service_kills.py [--rounds 50] [--quick]

Teachers send lesson after lesson, each with a key, and send it again until it is acknowledged. The
service is killed (SIGKILL) at random moments. Each time, before it is started again, the file it
left must be sound, hold every lesson that was acknowledged, hold none twice, and hold just the
samples that these lessons make. At the end every lesson was acknowledged once, and is there once.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

import fecam
from fecam.client import Client
from fecam.model_file import check
from reporting import markdown, options, say, write
from serving import Served, service
from stamps import SERVICE

WIDTH, TEACHERS, CLASSES = 64, 3, 4
"""Features; teachers; classes of each teacher."""


def lesson(teacher: int, number: int) -> tuple[str, str, np.ndarray]:
    """Key, label and samples of a lesson."""
    rng = np.random.default_rng([teacher, number])
    rows = rng.gamma(2.0, size=(int(rng.integers(1, 20)), WIDTH)).astype(np.float32)
    return f"{teacher}-{number}", f"class {teacher}.{number % CLASSES}", rows


def expected(keys: set[str]) -> dict[str, int]:
    """How many samples of each class these lessons make."""
    counts: Counter[str] = Counter()
    for key in keys:
        _, label, rows = lesson(*map(int, key.split("-")))
        counts[label] += len(rows)
    return dict(counts)


class Teacher(threading.Thread):
    """Sends lessons, and remembers those that were acknowledged."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self.url, self.number = url, number
        self.acknowledged: set[str] = set()
        self.ending, self.trouble = threading.Event(), ""

    def run(self) -> None:
        """Until told to end; the lesson that has begun is finished."""
        at = 0
        try:
            with Client(self.url, timeout=20, retry_timeout=120) as client:
                while not self.ending.is_set():
                    key, label, rows = lesson(self.number, at)
                    done = client.learn(rows, label, idempotency_key=key)
                    if sum(done.n_learned.values()) != len(rows):
                        self.trouble = f"lesson {key} of {len(rows)} samples: {done}"
                        return
                    self.acknowledged.add(key)
                    at += 1
        except Exception as error:
            self.trouble = f"lesson {self.number}-{at}: {error}"


def examine(path: Path, teachers: list[Teacher]) -> tuple[int, str | None]:
    """Lessons on the disk that were not acknowledged yet, and what is wrong with the file."""
    for problem in check(path):
        return 0, problem
    with fecam.open(path, readonly=True) as model:
        keys = [step.idempotency_key for step in model.steps if step.idempotency_key]
        counts = {str(one.label): one.count for one in model.classes if one.label != "first"}
    acknowledged = set[str]().union(*(teacher.acknowledged for teacher in teachers))
    found = set(keys)
    if len(keys) != len(found):
        return 0, f"lessons learnt twice: {[k for k, n in Counter(keys).items() if n > 1]}"
    if acknowledged - found:
        return 0, f"acknowledged, but lost: {sorted(acknowledged - found)}"
    if counts != expected(found):
        return 0, f"{counts} samples, but the lessons make {expected(found)}"
    return len(found - acknowledged), None


def wait_for_lessons(teachers: list[Teacher]) -> None:
    """Until one more is acknowledged: teachers pause between two tries."""
    before = sum(len(teacher.acknowledged) for teacher in teachers)
    while sum(len(teacher.acknowledged) for teacher in teachers) == before:
        if any(teacher.trouble for teacher in teachers):
            return
        time.sleep(0.005)


def kill_once(running: Served, teachers: list[Teacher], path: Path) -> tuple[int, str | None]:
    """Kill, look, start again."""
    running.kill()
    found = examine(path, teachers)
    running.start()
    return found


def main() -> int:
    """Kill, look, count."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rounds = 3 if args.quick else args.rounds
    folder, chance = Path(tempfile.mkdtemp()), random.Random(args.seed)
    path = folder / "model.fecam"
    with fecam.open(path) as model:  # so that it takes features
        model.learn(np.ones((2, WIDTH), np.float32), ["first", "first"])
    problems, ahead, start = list[str](), 0, time.monotonic()
    with service(path) as running:
        teachers = [Teacher(running.url, number) for number in range(TEACHERS)]
        for teacher in teachers:
            teacher.start()
        for number in range(1, rounds + 1):
            wait_for_lessons(teachers)
            time.sleep(chance.uniform(0, 0.5))
            more, problem = kill_once(running, teachers, path)
            ahead += more
            problems += [f"kill {number}: {problem}"] if problem else []
            problems += [teacher.trouble for teacher in teachers if teacher.trouble]
            if problems:
                break  # what follows would only repeat it
            if number % 10 == 0 or number == rounds:
                lessons = sum(len(teacher.acknowledged) for teacher in teachers)
                left = (time.monotonic() - start) / number * (rounds - number)
                say(f"{number}/{rounds} kills, {lessons} lessons, no problem; {left:.0f} s left")
        for teacher in teachers:
            teacher.ending.set()
        for teacher in teachers:
            teacher.join()
    more, problem = examine(path, teachers)
    problems += [problem] if problem else []
    problems += [f"{more} lessons that nobody was told of"] if more else []
    for problem in problems:
        say(f"{problem} ({path} is kept)")
    if not problems:
        shutil.rmtree(folder)
    lessons = sum(len(teacher.acknowledged) for teacher in teachers)
    header = [
        "kills",
        "learn requests acknowledged",
        "on the disk, not yet acknowledged",
        "lost, twice or in part",
    ]
    table = markdown(header, [[str(rounds), f"{lessons:,}", str(ahead), str(len(problems))]])
    print(table)
    found = {"rounds": rounds, "lessons": lessons, "ahead": ahead, "problems": problems}
    write("service_kills", table, found, quick=args.quick, measures=SERVICE)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
