"""Run the experiments that the docs show, and write their tables.

    python benchmarks/experiments.py [NAME ...] [--root FOLDER] [--output FOLDER] [--quick]

NAMES are experiments of the package (``fecam bench --list``), by default those in the docs. FOLDER
holds the official ``cifar-100-python``, by default that of the environment variable FECAM_CIFAR100;
``fecam bench quickdraw --download`` downloads QuickDraw. Interrupted runs resume. Each writes
``docs/tables/NAME.md``; no number in these tables is typed by hand.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from fecam.bench import runner, spec
from fecam.data.paths import cache_folder
from fecam.report import read_run, summary_table, write_report
from reporting import options, say, write
from stamps import EXPERIMENTS

SHOWN = (
    "digits",
    "demo",
    "glyphs",
    "glyphs-few-shot",
    "glyphs-domains",
    "quickdraw",
    "cifar100-t5-half-width",
    "cifar100-two-tasks-half-width",
    "cifar100-t5-lite0",
    "cifar100-t10-lite0",
    "cifar100-t20-lite0",
    "cifar100-ablation-lite0",
    "cifar100-ablation-half-width",
    "cifar100-linear-half-width",
)


def main() -> None:
    """Run the experiments, and write their tables."""
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--root", default=os.environ.get("FECAM_CIFAR100"), help="of CIFAR-100")
    parser.add_argument("--output", type=Path, default=cache_folder() / "runs")
    args = parser.parse_args()
    names = ["digits"] if args.quick else args.names or SHOWN
    for name in names:
        chosen, start = spec.load(name), time.monotonic()
        root = args.root if chosen.dataset.name == "cifar100" else None
        for record in runner.run(chosen, args.output / name, root=root):
            if record["kind"] == "task" and record["task"] + 1 == record["tasks"]:
                say(f"{name}, {record['head']}, seed {record['seed']}: {record['accuracy']:.1%}")
        run = read_run(args.output / name)
        page = write_report([args.output / name])
        table = summary_table(run).as_markdown()
        write(
            f"experiment-{name}",
            table,
            {"summary": run.summary},
            quick=args.quick,
            measures=EXPERIMENTS,
        )
        print(f"{run.title}\n{table}\n{page}, {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
