"""Sealed JSON files: read whole or refused, with a checksum over every field, written atomically.

Reading one runs no code and trusts nothing. What the fields must hold is for their owner to say.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

MAX_BYTES = 64 * 1024
FORMAT = 1

T = TypeVar("T")


@dataclass(frozen=True)
class Provenance:
    """Say where a stored file comes from.

    Attributes:
        found: date, YYYY-MM-DD.
        by: what or who found it.
        note: why it is kept.
    """

    found: str
    by: str
    note: str


def checksum(body: Mapping[str, Any]) -> str:
    """Return the sha256 of all fields but the checksum, with sorted keys and no spaces."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def load(path: Path | str, kind: str, parse: Callable[[str], T]) -> T:
    """Read a file and parse its text.

    Raises:
        ValueError: too large, no text, or refused by `parse`; names kind, file and reason.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"a file must hold at most {MAX_BYTES} bytes, got more")
        return parse(data.decode("utf-8"))
    except (ValueError, TypeError, OSError, RecursionError) as problem:
        raise ValueError(f"{kind} {path}: {problem or type(problem).__name__}") from None


def opened(text: str, fields: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of a sealed text, the checksum verified and taken off.

    Args:
        text: of the file.
        fields: all that there may be, "format" and "checksum" among them.
        optional: those that may be absent.

    Raises:
        ValueError: not one whole JSON object of this format with these fields, or changed.
    """
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except json.JSONDecodeError as problem:
        raise ValueError(f"a file must be whole JSON, got {problem}") from None
    if not isinstance(data, dict):
        raise ValueError(f"a file must be a JSON object, got {type(data).__name__}")
    if data.get("format") != FORMAT or isinstance(data.get("format"), bool):
        raise ValueError(f"`format` must be {FORMAT}, got {data.get('format')!r}")
    if unknown := sorted(set(data) - set(fields)):
        raise ValueError(f"fields must be among {', '.join(fields)}, got {', '.join(unknown)}")
    if missing := [f for f in fields if f not in data and f not in optional]:
        raise ValueError(f"fields must include {', '.join(missing)}, got none")
    seal = data.pop("checksum")
    if seal != checksum(data):
        raise ValueError(f"`checksum` must be {checksum(data)}, got {seal!r}")
    return data


def texts(name: str, value: object) -> dict[str, str]:
    """Return an object of texts, or refuse it by the name of its field."""
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ValueError(f"`{name}` must be an object of texts, got {value!r}")
    return value


def provenance(value: object) -> Provenance:
    """Return where a file comes from, or refuse what does not say so."""
    given = texts("provenance", value)
    if set(given) != {"found", "by", "note"}:
        raise ValueError(f"`provenance` must hold found, by and note, got {sorted(given)}")
    return Provenance(**given)


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a field must occur once, got it repeated")
    return result


def _no_constant(text: str) -> None:
    raise ValueError(f"numbers must be finite, got {text}")
