"""A small, complete folder of a run, for the tests of reports."""

from __future__ import annotations

import json

import numpy as np

HEADS = ("NCM", "FeCAM, common", "FeCAM", "default")
SIZES = (50, 10, 10, 10, 10, 10)
ABOUT = {
    "name": "cifar100-t5",
    "title": "CIFAR-100, 50 classes and then five tasks of ten",
    "kind": "class-incremental",
    "fecam": "0.1.0",
    "python": "3.12.3",
    "packages": {"numpy": "2.4.6", "scipy": "1.17.1", "torch": "2.13.0"},
    "machine": {"processor": "a processor", "cores": 2, "memory": 8_000_000_000},
    "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": True},
    "started": "2025-03-01T10:00:00+00:00",
    "finished": "2025-03-01T10:12:30+00:00",
    "dataset": {"name": "cifar100", "fingerprint": "d" * 32, "rows": 60_000, "classes": 100},
    "encoder": {"name": "resnet18-half", "fingerprint": "e" * 32},
    "features": {"width": 256, "fingerprint": "f" * 32},
    "scenario": {
        "kind": "class-incremental",
        "seed": 1993,
        "class_order": [68, 56, 78],
        "tasks": [
            {"name": f"task {at + 1}", "classes": size, "train": 500 * size, "test": 100 * size}
            for at, size in enumerate(SIZES)
        ],
        "options": {"sizes": list(SIZES), "order": [68, 56, 78]},
    },
    "paper": {
        "source": "Table 1",
        "figures": {
            "FeCAM": {"average": 70.9, "last": 62.1},
            "FeTrIL": {"average": 67.6, "last": 57.2},
        },
        "note": "The network has half the width and was trained for 30 epochs, not 200.",
    },
    "notes": ["2 images could not be read."],
}
SPEC = 'dataset = "cifar100"\n\n[scenario]\nkind = "class-incremental"\nbase = 50\n'


def task_records(heads=HEADS, seeds=(1993, 1994, 1995), sizes=SIZES, options=None):
    """Return task records whose accuracy falls with every task; later heads forget less."""
    records = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        for place, head in enumerate(heads):
            quality = place / max(1, len(heads) - 1)
            for task in range(len(sizes)):
                accuracy = [
                    0.80
                    - (0.055 - 0.02 * quality) * (task - part)
                    - 0.28 * (part > 0) * (1.2 - quality)
                    for part in range(task + 1)
                ]
                accuracy = np.clip(accuracy + rng.normal(0, 0.01, task + 1), 0, 1).round(4).tolist()
                rows = [100 * size for size in sizes[: task + 1]]
                classes = sum(sizes[: task + 1])
                records.append(
                    {
                        "kind": "task",
                        "head": head,
                        "seed": seed,
                        "task": task,
                        "tasks": len(sizes),
                        "name": f"task {task + 1}",
                        "classes": classes,
                        "train_rows": 500 * sizes[task],
                        "test_rows": sum(rows),
                        "accuracy": float(np.average(accuracy, weights=rows)),
                        "parts": [
                            [f"task {at + 1}", *part]
                            for at, part in enumerate(zip(rows, accuracy, strict=True))
                        ],
                        "seconds_to_learn": round(0.02 * sizes[task] * (1 + 4 * place), 4),
                        "seconds_to_predict": round(0.001 * classes * (1 + 3 * place), 4),
                        "bytes": 1_000 * classes * (1 + 128 * (place > 1)),
                        "calibration_error": 0.02 + 0.01 * place,
                        "novelty_auroc": None if task == len(sizes) - 1 else 0.7 + 0.05 * quality,
                        "options": (options or {}).get(head, {}),
                    }
                )
    return records


def domain_records(heads=HEADS[:2], domains=3):
    """Return task records that are all tested on the same two domains."""
    return [
        {**record, "parts": [["indoors", 100, 0.5 + 0.1 * at], ["outdoors", 300, 0.7]]}
        for record in task_records(heads, (0,), (10,) * domains)
        for at in [record["task"]]
    ]


def analysis_records(points=60, width=32):
    rng = np.random.default_rng(0)
    flat, steep = 0.95 ** np.arange(width), 0.8 ** np.arange(width)
    labels = (np.arange(points) % 6).tolist()
    places = rng.normal(size=(points, 2)) + 4 * rng.normal(size=(6, 2))[np.arange(points) % 6]
    return [
        {
            "kind": "analysis",
            "name": "singular-values",
            "seed": 1993,
            "data": {
                "old": [(flat ** rng.uniform(0.8, 1.2)).tolist() for _ in range(5)],
                "new": [(steep ** rng.uniform(0.8, 1.2)).tolist() for _ in range(5)],
            },
        },
        {
            "kind": "analysis",
            "name": "tsne",
            "seed": 1993,
            "data": {
                "before": places.tolist(),
                "after": (places * 1.5).tolist(),
                "labels": labels,
                "is_new": [label > 3 for label in labels],
            },
        },
    ]


def grid_records(first=(0, 1, 3), second=(0, 1, 10)):
    """Return records of heads that differ in their shrinkage alone."""
    options = {
        f"({a}, {b})": {"covariance": "class", "shrinkage": [a, b]} for a in first for b in second
    }
    return task_records(tuple(options), (1993,), (10, 5), options)


def write_run(folder, records=None, *, spec=SPEC, **about):
    """Write a folder as the runner does, and return it."""
    records = [*task_records(), *analysis_records()] if records is None else records
    folder.mkdir(parents=True, exist_ok=True)
    seeds = sorted({record["seed"] for record in records if isinstance(record.get("seed"), int)})
    (folder / "spec.toml").write_text(spec, encoding="utf-8")
    (folder / "about.json").write_text(json.dumps({**ABOUT, "seeds": seeds, **about}), "utf-8")
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "records.jsonl").write_text(lines, encoding="utf-8")
    return folder
