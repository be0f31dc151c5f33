"""Run the experiments that the docs show, and write their tables.

    python benchmarks/experiments.py [NAME ...] [--root FOLDER] [--output FOLDER] [--quick]
    python benchmarks/experiments.py --read RUN [--read RUN ...]

NAMES are experiments of the package (``fecam bench --list``), by default those in the docs. FOLDER
holds the official ``cifar-100-python``, by default that of the environment variable FECAM_CIFAR100;
``fecam bench quickdraw --download`` downloads QuickDraw. Interrupted runs resume. Each writes
``docs/tables/experiment-NAME.md``, and with learners also ``docs/records/NAME``. A few-shot run
also writes ``docs/pictures/experiment-NAME.svg``, the accuracy per session. No number in them
is typed by hand. ``--read`` writes them from folders that runs of one experiment have written, also
unfinished ones, with the commit and date of these runs. Methods and seeds that the folders do not
have are those of ``docs/records/NAME``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fecam.bench import runner, spec
from fecam.data.paths import cache_folder
from fecam.report import Run, summary_table, write_report
from fecam.report.drawing import as_svg
from fecam.report.plots import few_shot_curves
from fecam.report.tables import crossed_tables, is_few_shot
from records import RECORDS, merged, write_records
from reporting import options, say, write
from stamps import EXPERIMENTS, LEARNERS, Stamp

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
DRAWN = (", cosine", ", FeCAM, default")
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
    "digits-learners",
    "cifar100-learners",
    "glyphs-few-shot-networks",
    "cifar100-few-shot-networks",
)


def main() -> None:
    """Run the experiments, and write their tables."""
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--root", default=os.environ.get("FECAM_CIFAR100"), help="of CIFAR-100")
    parser.add_argument("--read", type=Path, action="append", metavar="RUN", help="see above")
    parser.add_argument("--output", type=Path, default=cache_folder() / "runs")
    args = parser.parse_args()
    if args.read:
        show(args.read, quick=args.quick)
        return
    names = ["digits"] if args.quick else args.names or SHOWN
    for name in names:
        chosen, start = spec.load(name), time.monotonic()
        root = args.root if chosen.dataset.name == "cifar100" else None
        for record in runner.run(chosen, args.output / name, root=root):
            if record["kind"] == "task" and record["task"] + 1 == record["tasks"]:
                say(f"{name}, {record['head']}, seed {record['seed']}: {record['accuracy']:.1%}")
        show([args.output / name], quick=args.quick)
        print(f"{args.output / name}, {time.monotonic() - start:.0f} s", flush=True)


def show(folders: list[Path], *, quick: bool) -> None:
    """Write the table of the runs of one experiment, and its records if it has learners."""
    run = merged(folders, RECORDS)
    shipped = spec.load(run.name)
    crossed = crossed_tables(run)
    tables = [f"*{table.caption}*\n\n{table.as_markdown()}" for table in crossed]
    if rest := _not_crossed(run) if crossed else run:
        tables.append(summary_table(rest).as_markdown())
    table = "\n\n".join(tables)
    trained = shipped.learners or shipped.networks
    measures = (*EXPERIMENTS, *LEARNERS) if trained else EXPERIMENTS
    if shipped.learners and not quick:
        write_records(folders)
    write(
        f"experiment-{run.name}",
        table,
        {"summary": run.summary},
        quick=quick,
        measures=measures,
        stamp=stamp_of(run.about, measures),
    )
    page = write_report([folders[-1]])
    if is_few_shot(run) and not quick:
        draw_few_shot(run)
    print(f"{run.title}\n{table}\n{page}", flush=True)


def _not_crossed(run: Run) -> Run | None:
    """Return the run with learners, and with heads that the paper has figures of, alone."""
    kept = [head for head in run.heads if head not in run.networks or head in run.paper]
    records = tuple(record for record in run.records if record.get("head") in kept)
    return replace(run, records=records) if kept else None


def draw_few_shot(run: Run) -> None:
    """Write the curves per session of base, later and harmonic accuracy as a picture.

    Of several networks it has the heads `DRAWN`, and no learners; the report of a run has all.
    """
    if run.networks:
        drawn = [label for label in run.networks if label.endswith(DRAWN)]
        records = tuple(record for record in run.records if record.get("head") in drawn)
        run = replace(run, records=records)
    if (figure := few_shot_curves(run)) is not None:
        # A hundredth of a point, and no indentation.
        short = re.sub(rb"(\d\.\d\d)\d+|(?<=\n) +", rb"\1", as_svg(figure))
        (PICTURES / f"experiment-{run.name}.svg").write_bytes(short)


def stamp_of(about: Mapping[str, Any], measures: tuple[str, ...]) -> Stamp:
    """Return a stamp with the commit and date of a run."""
    commit = (about.get("git") or {}).get("commit") or "0000000"
    return Stamp(commit[:7], about["started"][:10], measures)


if __name__ == "__main__":
    main()
