"""Stored schedules: one JSON file each, replayed for ever and refused when changed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import sealed
from ..fixtures import ROOT
from ..sealed import Provenance
from .schedule import Schedule

SCHEDULES = ROOT / "schedules"
FIELDS = ("format", "schedule", "provenance", "checksum")


@dataclass(frozen=True)
class StoredSchedule:
    """Hold a schedule that correct kernels pass, and where it comes from."""

    schedule: Schedule
    provenance: Provenance

    @property
    def name(self) -> str:
        """File name: a digest of the schedule, so that equal ones meet."""
        digest = hashlib.sha256(self.schedule.to_json().encode()).hexdigest()[:12]
        return f"schedule-{digest}.json"

    def to_json(self) -> str:
        """Return the text of the file, one step a line."""
        data = json.loads(self.schedule.to_json())
        body: dict[str, Any] = {
            "format": sealed.FORMAT,
            "schedule": json.loads(self.schedule.to_json()),
            "provenance": asdict(self.provenance),
        }
        checksum = sealed.checksum(body)
        steps = ",\n   ".join(json.dumps(step) for step in data.pop("steps"))
        head = "".join(
            f"{json.dumps(k)}: {json.dumps(v)}, " for k, v in data.items() if k != "steps"
        )
        schedule = f'{{{head}"steps": [\n   {steps}\n  ]}}'
        provenance = json.dumps(body["provenance"], indent=2).replace("\n}", "\n }")
        return (
            f'{{\n "format": {sealed.FORMAT},\n "schedule": {schedule},\n'
            f' "provenance": {provenance},\n "checksum": {json.dumps(checksum)}\n}}\n'
        )


def load(path: Path | str) -> StoredSchedule:
    """Read one stored schedule.

    Raises:
        ValueError: not a whole, unchanged one of this format; names the file and the reason.
    """
    return sealed.load(path, "schedule", parse)


def parse(text: str) -> StoredSchedule:
    """Read the text of a file; see `load`."""
    data = sealed.opened(text, FIELDS)
    schedule = Schedule.from_dict(data["schedule"])
    return StoredSchedule(schedule, sealed.provenance(data["provenance"]))


def store(stored: StoredSchedule, folder: Path = SCHEDULES) -> Path:
    """Write a schedule whole or not at all; one that is stored already stays as it is.

    Raises:
        ValueError: something else goes by the same name.
    """
    path, text = folder / stored.name, stored.to_json()
    if path.exists():
        if load(path).schedule != stored.schedule:
            raise ValueError(f"schedule {path}: another must not be replaced, got one")
        return path
    sealed.write(path, text)
    return path
