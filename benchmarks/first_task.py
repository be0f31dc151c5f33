"""Train a half-width ResNet-18 on the first 50 classes of CIFAR-100, and leave the encoder.

    python benchmarks/first_task.py --root FOLDER     # or FECAM_CIFAR100=FOLDER

The classes come in the order that public code uses (seed 1993). Progress goes to standard error;
the folder then holds `encoder.safetensors`, for `fecam features ... --encoder resnet18:FILE`, and
`result.json`. A run that was stopped goes on when the same command is given again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from fecam.data import cifar100
from fecam.data.places import cache_folder
from fecam.encoders.first_task import ENCODER_FILE, plan_for, short_plan, train_first_task
from fecam.encoders.training_records import EpochRecord, Progress
from reporting import machine, options, say

SEED = 1993


def class_order(classes: int = 100, seed: int = SEED) -> list[int]:
    """The order in which public code learns the classes."""
    order: list[int] = np.random.RandomState(seed).permutation(classes).tolist()
    return order


def duration(seconds: float) -> str:
    """As a clock shows it."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


class Line:
    """One line of a terminal, rewritten a few times a second; nothing where it is no terminal."""

    def __init__(self) -> None:
        self.shown = 0.0

    def __call__(self, now: Progress) -> None:
        """Show how far it is."""
        if sys.stderr.isatty() and time.monotonic() - self.shown > 0.2:
            self.shown = time.monotonic()
            text = (
                f"epoch {now.epoch}/{now.epochs}, batch {now.batches}/{now.of}: loss "
                f"{now.loss:.3f}, accuracy {now.accuracy:.1%}, {duration(now.remaining)} left"
            )
            print(f"\r{text}\x1b[K", end="\r", file=sys.stderr, flush=True)


def tell(record: EpochRecord) -> None:
    """A line an epoch."""
    tested = "" if record.test_accuracy is None else f", test {record.test_accuracy:.1%}"
    pace = "before" if record.restored else f"{record.images / record.seconds:.0f} images/s"
    say(
        f"epoch {record.epoch}/{record.epochs}: loss {record.loss:.3f}, accuracy "
        f"{record.accuracy:.1%}{tested}, rate {record.learning_rate:.4f}, "
        f"{record.seconds:.0f} s ({pace}), {duration(record.remaining)} left"
    )


def main() -> None:
    """Train, and write what came of it."""
    parser = options(__doc__)
    parser.add_argument("--root", default=os.environ.get("FECAM_CIFAR100"), help="CIFAR-100")
    parser.add_argument("--folder", type=Path, help="for the encoder and the checkpoint")
    parser.add_argument("--classes", type=int, default=50, help="default: %(default)s")
    parser.add_argument("--width", type=int, default=32, help="64 is the paper's")
    parser.add_argument("--epochs", type=int, default=20, help="200 are the paper's")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--test-every", type=int, default=5, help="epochs; 0: only at the end")
    chosen = parser.parse_args()
    folder = chosen.folder or cache_folder() / "first-task"
    data = cifar100.load(chosen.root)
    classes = class_order()[: chosen.classes]
    if chosen.quick:
        folder, chosen.epochs, chosen.width = folder / "quick", 2, 8
        few = [rows[:20] for label in classes if len(rows := np.flatnonzero(data.labels == label))]
        data = data.subset(np.concatenate(few))
    plan = replace(
        short_plan(plan_for("cifar100"), chosen.epochs),
        batch_size=chosen.batch_size,
        learning_rate=chosen.learning_rate,
    )
    records = []
    for record in train_first_task(
        data,
        classes,
        plan,
        folder=folder,
        width=chosen.width,
        test_every=chosen.test_every,
        progress=Line(),
    ):
        tell(record)
        records.append(asdict(record))
    result = {
        "machine": machine(),
        "classes": classes,
        "width": chosen.width,
        "plan": plan.as_dict(),
        "seconds": sum(record["seconds"] for record in records),
        "records": records,
    }
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(folder / ENCODER_FILE)


if __name__ == "__main__":
    main()
