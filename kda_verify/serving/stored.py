"""Stored schedules: one JSON file each, replayed for ever and refused when changed."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..fixtures import ROOT, Provenance, _checksum, _no_constant, _read, _texts, _without_repeats
from .schedule import Schedule

SCHEDULES = ROOT / "schedules"
FORMAT = 1
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
            "format": FORMAT,
            "schedule": json.loads(self.schedule.to_json()),
            "provenance": asdict(self.provenance),
        }
        checksum = _checksum(body)
        steps = ",\n   ".join(json.dumps(step) for step in data.pop("steps"))
        head = "".join(
            f"{json.dumps(k)}: {json.dumps(v)}, " for k, v in data.items() if k != "steps"
        )
        schedule = f'{{{head}"steps": [\n   {steps}\n  ]}}'
        provenance = json.dumps(body["provenance"], indent=2).replace("\n}", "\n }")
        return (
            f'{{\n "format": {FORMAT},\n "schedule": {schedule},\n'
            f' "provenance": {provenance},\n "checksum": {json.dumps(checksum)}\n}}\n'
        )


def load(path: Path | str) -> StoredSchedule:
    """Read one stored schedule.

    Raises:
        ValueError: not a whole, unchanged one of this format; names the file and the reason.
    """
    path = Path(path)
    try:
        return parse(_read(path))
    except (ValueError, TypeError, OSError, RecursionError) as problem:
        raise ValueError(f"schedule {path}: {problem or type(problem).__name__}") from None


def parse(text: str) -> StoredSchedule:
    """Read the text of a file; see `load`."""
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except json.JSONDecodeError as problem:
        raise ValueError(f"a file must be whole JSON, got {problem}") from None
    if not isinstance(data, dict):
        raise ValueError(f"a file must be a JSON object, got {type(data).__name__}")
    if data.get("format") != FORMAT or isinstance(data.get("format"), bool):
        raise ValueError(f"`format` must be {FORMAT}, got {data.get('format')!r}")
    if set(data) != set(FIELDS):
        raise ValueError(f"fields must be {', '.join(FIELDS)}, got {', '.join(sorted(data))}")
    checksum = data.pop("checksum")
    if checksum != _checksum(data):
        raise ValueError(f"`checksum` must be {_checksum(data)}, got {checksum!r}")
    provenance = _texts("provenance", data["provenance"])
    if set(provenance) != {"found", "by", "note"}:
        raise ValueError(f"`provenance` must hold found, by and note, got {sorted(provenance)}")
    return StoredSchedule(Schedule.from_dict(data["schedule"]), Provenance(**provenance))


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
    folder.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return path
