"""Read and validate the folder of a run; an error names the file, the line and the value."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any

from fecam.bench.metrics import Record, group_by_run, summarize
from fecam.bench.record import Types, check_types, decode, parse_json
from fecam.bench.results import METADATA, SPEC, read_bytes, read_records
from fecam.errors import RunError


@dataclass(frozen=True)
class Run:
    """A run: its experiment, its metadata and its records.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    about : mapping
        Contents of ``about.json``.
    spec : str
        Contents of ``spec.toml``.
    records : tuple of dict
        Contents of ``records.jsonl``.
    """

    folder: Path
    about: Mapping[str, Any]
    spec: str
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        """Name of the experiment, or else of the folder."""
        return str(self.about.get("name") or self.folder.resolve().name)

    @property
    def title(self) -> str:
        """Title of the experiment, or else its name."""
        return str(self.about.get("title") or self.name)

    @cached_property
    def heads(self) -> dict[str, dict[int, list[Record]]]:
        """Task records by head and seed, in task order."""
        return group_by_run(self.records)

    @cached_property
    def summary(self) -> list[dict[str, Any]]:
        """Metrics over all seeds, one row per head."""
        return summarize(self.records)

    @cached_property
    def paper(self) -> dict[str, dict[str, Any]]:
        """The paper's values in percent, by head and metric; empty if there are none."""
        return dict((self.about.get("paper") or {}).get("figures") or {})

    @cached_property
    def networks(self) -> dict[str, str]:
        """The network of each head by its label, of an experiment with several networks."""
        try:
            heads = tomllib.loads(self.spec).get("heads", [])
            return {head["label"]: head["network"] for head in heads if "network" in head}
        except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError):
            return {}  # a spec of another version, or edited by hand

    def analysis(self, name: str) -> list[Mapping[str, Any]]:
        """Return the data of an analysis.

        Parameters
        ----------
        name : str
            ``"singular-values"`` or ``"tsne"``.

        Returns
        -------
        list of mapping
            One per seed.
        """
        analyses = [r for r in self.records if r.get("kind") == "analysis" and r["name"] == name]
        return [record["data"] for record in analyses]


def read_run(folder: Path | str) -> Run:
    """Read ``spec.toml``, ``about.json`` and ``records.jsonl`` of a run.

    Parameters
    ----------
    folder : path-like
        Folder written by `fecam bench`.

    Returns
    -------
    Run
        The run.

    Raises
    ------
    RunError
        If a file is missing or has an invalid value.
    """
    folder = Path(folder)
    if not (folder / METADATA).is_file():
        raise RunError(
            f"{folder} is not a run: it has no {METADATA}. Remedy: give a folder written by "
            "`fecam bench`"
        )
    path = folder / SPEC
    spec = decode(read_bytes(path), str(path)) if path.exists() else ""
    records = _sort_by_head(read_records(folder), spec)
    about = parse_json(read_bytes(folder / METADATA), str(folder / METADATA))
    check_types(about, ABOUT, str(folder / METADATA))
    return Run(folder, about, spec, tuple(records))


def _sort_by_head(records: Iterable[Record], spec: str) -> list[Record]:
    """Return the records in the order in which the experiment lists the heads."""
    try:
        tables = tomllib.loads(spec)
        methods = [*tables.get("heads", []), *tables.get("learners", [])]
        ranks = {method["label"]: rank for rank, method in enumerate(methods)}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError):
        return list(records)  # a spec of another version, or edited by hand
    return sorted(records, key=lambda record: ranks.get(record.get("head"), len(ranks)))


ABOUT: Types = {
    **dict.fromkeys(("name", "title"), (str, NoneType)),
    **dict.fromkeys(("paper", "packages", "machine", "git"), (dict, NoneType)),
    **dict.fromkeys(("dataset", "encoder", "features", "scenario"), (dict, NoneType)),
    **dict.fromkeys(("seeds", "notes"), (list, NoneType)),
}
