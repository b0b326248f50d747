"""The record of one run: what was measured, where, and nothing from any other run."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from kda_verify import summary

from .rows import Row
from .timing import Timing
from .verdict import RowVerdict

FORMAT = 1
TIMED, NOT_TIMED, NOT_SUPPORTED = "timed", "not timed", "not supported"


@dataclass(frozen=True)
class Entry:
    """One contender on one row.

    Attributes:
        contender: its name, which says the configuration.
        peer: whose it is; "ours" for this project's.
        partial: it leaves out some of the row's work, and is not compared.
        note: what sets its work apart.
        status: TIMED, NOT_TIMED or NOT_SUPPORTED.
        reason: why it is not timed.
        verdict: what judging it on the row found; None where it was not judged.
        timing: None unless timed.
    """

    contender: str
    peer: str
    partial: bool
    note: str
    status: str
    reason: str = ""
    verdict: RowVerdict | None = None
    timing: Timing | None = None


@dataclass(frozen=True)
class Result:
    """One row, measured.

    Attributes:
        row: the shape.
        run, device: id of the run and name of the device; the same in every row of a record.
        traffic: bytes that must move, by kind.
        limit: microseconds that they take at the bandwidth measured in the same run.
        seed: of the judged set of operands; the others follow it.
        seconds: wall time of verdicts and timing.
        entries: of every contender.
    """

    row: Row
    run: str
    device: str
    traffic: dict[str, int]
    limit: float
    seed: int
    seconds: float
    entries: tuple[Entry, ...]

    @property
    def ours(self) -> Entry:
        """Return the entry of this project."""
        return next(entry for entry in self.entries if entry.peer == "ours")

    def best(self, *, partial: bool = False) -> Entry | None:
        """Return the fastest timed peer among those that do the whole row (or among the rest)."""
        timed = [
            entry
            for entry in self.entries
            if entry.peer != "ours" and entry.timing is not None and entry.partial == partial
        ]
        return min(timed, key=_median, default=None)

    @property
    def fraction(self) -> float | None:
        """Return the limit over our time; None where ours is not timed."""
        timing = self.ours.timing
        return None if timing is None else self.limit / timing.median

    @property
    def ratio(self) -> float | None:
        """Return the time of the best peer over ours: above 1, ours is faster."""
        timing, peer = self.ours.timing, self.best()
        if timing is None or peer is None or peer.timing is None:
            return None
        return peer.timing.median / timing.median


def _median(entry: Entry) -> float:
    assert entry.timing is not None
    return entry.timing.median


@dataclass
class Record:
    """A run and its rows.

    Attributes:
        run: id, device, driver, versions (of peers too), date, commit, seed.
        limits: see `limits.Limits.to_dict`; `after` holds the same, measured at the end.
        host: microseconds that validated eager calls cost the host; see `host_cost`.
        not_run: reasons by peer.
        results: the rows measured so far.
        not_reached: names of rows that the time did not suffice for.
        complete: every row asked for was measured.
    """

    run: dict[str, Any]
    limits: dict[str, Any] = field(default_factory=dict)
    host: dict[str, float] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    not_reached: list[str] = field(default_factory=list)
    complete: bool = False

    def add(self, result: Result) -> None:
        """Append a row of this run.

        Raises:
            ValueError: the row is of another run or device.
        """
        for name, mine in (("run", self.run["id"]), ("device", self.run["device"])):
            theirs = getattr(result, name)
            if theirs != mine:
                raise ValueError(
                    f"`rows` must all be of one run: {result.row.name} must have {name} {mine!r}, "
                    f"got {theirs!r}"
                )
        self.results.append(result)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as written."""
        rows = []
        for result in self.results:
            data = asdict(result)
            data["name"] = result.row.name
            data["bytes"] = sum(result.traffic.values())
            data["fraction_of_limit"], data["peer_over_ours"] = result.fraction, result.ratio
            rows.append(data)
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "results"}
        return {"format": FORMAT, **plain, "rows": rows}

    def save(self, path: Path) -> None:
        """Write the record whole or not at all."""
        summary.write_json(self.to_dict(), path)


def load(path: Path) -> Record:
    """Read a record that `Record.save` wrote.

    Raises:
        ValueError: no such file, not a record, or rows that are not all of its one run.
    """
    try:
        data = json.loads(path.read_text())
    except OSError as problem:
        raise ValueError(f"`render` must be a readable file, got {problem}") from None
    except json.JSONDecodeError as problem:
        raise ValueError(f"`render` must be JSON, got {problem}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        got = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"`render` must be a record of format {FORMAT}, got {got!r}")
    try:
        plain = {f.name: data[f.name] for f in fields(Record) if f.name != "results"}
        record = Record(**plain)
        for row in data["rows"]:
            record.add(_result(row))
    except (KeyError, TypeError) as problem:
        text = f"{type(problem).__name__}: {problem}"
        raise ValueError(f"`render` must be a whole record, got {text}") from None
    return record


def _result(data: Mapping[str, Any]) -> Result:
    entries = []
    for entry in data["entries"]:
        verdict, timing = entry["verdict"], entry["timing"]
        if verdict is not None:
            verdict = RowVerdict(**{**verdict, "launches": tuple(verdict["launches"])})
        if timing is not None:
            timing = Timing(**{**timing, "samples": tuple(timing["samples"])})
        entries.append(Entry(**{**entry, "verdict": verdict, "timing": timing}))
    known = {f.name for f in fields(Result)}
    values = {name: value for name, value in data.items() if name in known}
    return Result(**{**values, "row": Row(**data["row"]), "entries": tuple(entries)})


def new_run(device: str, seed: int) -> dict[str, Any]:
    """Describe a run that starts now on a device, with a fresh id."""
    described = {
        "id": uuid.uuid4().hex,
        **summary.environment(device),
        "seed": seed,
    }
    if device.startswith("cuda"):
        properties: Any = torch.cuda.get_device_properties(device)
        described |= {
            "driver": _driver(),
            "multiprocessors": properties.multi_processor_count,
            "l2_bytes": getattr(properties, "L2_cache_size", None),
            "memory_bytes": properties.total_memory,
        }
    return described


def _driver() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None
