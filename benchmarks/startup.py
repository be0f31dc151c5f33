"""CPU time of one command, such as the prediction of one picture, from start to end.

    python benchmarks/startup.py [--quick]

Each command runs in a process of its own, in turns. The model of pictures has the default encoder,
whose network was traced by an earlier command, as for any second prediction.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

import fecam
from reporting import markdown, options, say, write

CODE = ("src/fecam/cli", "src/fecam/model", "src/fecam/encoders/onnx.py")


def commands(folder: Path) -> dict[str, list[str]]:
    """Write models and return commands, by name."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (40, 64, 64, 3), np.uint8)
    labels = [f"class {i % 4}" for i in range(40)]
    images, features = folder / "images.fecam", folder / "features.fecam"
    picture, row = folder / "picture.png", folder / "row.npy"
    with fecam.open(images, encoder="efficientnet-lite0") as model:
        model.learn(list(pictures), labels)
    with fecam.open(features) as model:
        model.learn(rng.random((40, 64)), labels)
    Image.fromarray(pictures[0]).save(picture)
    np.save(row, rng.random((1, 64)))
    return {
        "`fecam --help`": ["--help"],
        "`fecam classes`": ["classes", "-m", str(images)],
        "`fecam predict` of one picture": ["predict", str(picture), "-m", str(images)],
        "`fecam predict` of one row of features": ["predict", str(row), "-m", str(features)],
    }


def run(arguments: list[str]) -> tuple[float, float]:
    """Return the CPU time (user and system) and the duration of a command, in seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "fecam", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, end - start


def main() -> None:
    """Measure, print a table, write results."""
    args = options(__doc__).parse_args()
    repeats = 2 if args.quick else 15
    with tempfile.TemporaryDirectory() as folder:
        by_name = commands(Path(folder))
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in by_name}
        for arguments in by_name.values():  # files are read once before
            run(arguments)
        for repeat in range(repeats):
            say(f"{repeat + 1} of {repeats} ...")
            for name, arguments in by_name.items():
                seconds[name].append(run(arguments))
    rows = []
    for name, runs in seconds.items():
        cpu, duration = zip(*runs, strict=True)
        rows.append(
            {
                "command": name,
                "cpu": statistics.median(cpu),
                "slowest": max(cpu),
                "duration": statistics.median(duration),
            }
        )
    header = ["command", "CPU time", "the slowest", "duration"]
    text = markdown(
        header,
        [
            [r["command"], *(f"{r[key]:.2f} s" for key in ("cpu", "slowest", "duration"))]
            for r in rows
        ],
    )
    print(text)
    write("startup", text, {"rows": rows, "repeats": repeats}, quick=args.quick, measures=CODE)


if __name__ == "__main__":
    main()
