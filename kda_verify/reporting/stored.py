"""The JSON of a run, read back: what may be missing is missing, what is there is as it must be."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..judging.verdict import UNJUDGED, Outcome

MAX_BYTES = 64 << 20
GOOD, NEITHER = str(Outcome.PASS), tuple(map(str, UNJUDGED))
"""Verdicts that are no failure."""

_NUMBER, _WHOLE, _TEXT = "a number", "an integer", "a text"
_COUNTS = {"*": _WHOLE}
_RATIOS = {"*": "a number or null"}
_VERDICT = {
    "outcome": _TEXT, "subject": _TEXT, "case": _TEXT, "where": _TEXT, "detail": _TEXT,
    "replay": _TEXT, "ratio": "a number or null", "ratios": _RATIOS,
}  # fmt: skip
_SUBJECT = {
    "kernel": _TEXT, "verdict": _TEXT, "distinct_cases": _WHOLE, "median_tokens": _NUMBER,
    "precision_class": _TEXT, "seconds": _NUMBER,
    "regions": _COUNTS, "regions_missed": [_TEXT], "outcomes": _COUNTS, "not_judged": _COUNTS,
    "kernels_that_ran": _COUNTS, "precision_classes": _COUNTS,
    "worst": _VERDICT, "failures": [_VERDICT],
    "outputs": [{
        "operand": _TEXT, "cases": _WHOLE, "worst": "a number or null",
        "median": "a number or null", "exact": _WHOLE, "unbounded": _WHOLE,
        "bins_per_decade": _WHOLE, "bins": _COUNTS,
        "by_position": ["a number or null"], "by_longest_request": _RATIOS,
    }],
    "smallest_fault": [{
        "operand": _TEXT, "fault": _TEXT, "cases": _WHOLE,
        "median": "a number or null", "found_in_95_percent": "a number or null",
    }],
}  # fmt: skip
_RUN: dict[str, Any] = {
    "environment": {"*": "a plain value"},
    "subjects": [_SUBJECT],
    "stages": [{"name": _TEXT, "outcome": _TEXT, "detail": _TEXT, "seconds": _NUMBER}],
    "seed": "an integer or null",
}
_PLAIN: dict[str, tuple[type, ...]] = {
    _NUMBER: (int, float), _WHOLE: (int,), _TEXT: (str,),
    "a number or null": (int, float, type(None)),
    "an integer or null": (int, type(None)),
    "a plain value": (str, int, float, bool, type(None)),
}  # fmt: skip


def load(path: Path, argument: str = "RUN") -> dict[str, Any]:
    """Read the JSON that a run wrote, of this version or an older one.

    Args:
        path: of the file.
        argument: how the command line calls it, for the message.

    Raises:
        ValueError: no file, no JSON, or not that of a run; names the field that is not as it must.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ValueError(f"at most {MAX_BYTES} bytes, got {size}")
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
        _check(data, _RUN, "")
        if "subjects" not in data:
            raise ValueError("an object with `subjects`, got none")
        for index, subject in enumerate(data["subjects"]):
            for name in ("kernel", "verdict"):
                if name not in subject:
                    raise ValueError(f"complete, but /subjects/{index}/{name} is missing")
        names = [subject["kernel"] for subject in data["subjects"]]
        if len(set(names)) < len(names):
            raise ValueError(f"about different kernels, got {', '.join(names)}")
    except OSError as problem:
        raise ValueError(
            f"`{argument}` must be a readable file, got {path}: {problem.strerror}"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise ValueError(f"`{argument}` must be JSON, got {path}: {problem}") from None
    except ValueError as problem:
        raise ValueError(
            f"`{argument}` must be the JSON of a run: {path} must be {problem}"
        ) from None
    return data


def text(run: dict[str, Any]) -> str:
    """Return what is stored of a run, or of anything else that is told in plain values."""
    return json.dumps(finite(run), indent=1, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """Return plain values with None for every number that is not finite: JSON has none."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def overall(run: dict[str, Any]) -> str:
    """Return the word for a whole run: fail, pass or not judged."""
    words = [s["verdict"] for s in run["subjects"]]
    broken = any(s["outcome"] == "fail" for s in run.get("stages", ()))
    if broken or any(w not in (GOOD, *NEITHER) for w in words):
        return "fail"
    return "pass" if GOOD in words else "not judged"


def distinct(failures: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return the index of every distinct failure, and how often it was found.

    Batches that fail alike shrink to the same case.
    """
    first: dict[str, list[int]] = {}
    for index, failure in enumerate(failures):
        first.setdefault(f"{failure.get('outcome')} {failure.get('replay')}", []).append(index)
    return [(same[0], len(same)) for same in first.values()]


def pointer(*keys: str | int) -> str:
    """Return the JSON pointer (RFC 6901) of a value."""
    return "".join("/" + str(k).replace("~", "~0").replace("/", "~1") for k in keys)


def _check(value: Any, wanted: Any, at: str) -> None:
    """Compare types; fields that are not known are for a newer version to read."""
    if value is None and at.endswith("/worst"):
        return  # nothing was judged
    if isinstance(wanted, str):
        right = isinstance(value, _PLAIN[wanted])
        if not right or (isinstance(value, bool) and wanted != "a plain value"):
            raise ValueError(f"{wanted} at {at}, got {value!r:.80}")
    elif isinstance(wanted, list):
        if not isinstance(value, list):
            raise ValueError(f"a list at {at}, got {value!r:.80}")
        for index, entry in enumerate(value):
            _check(entry, wanted[0], at + pointer(index))
    else:
        if not isinstance(value, dict):
            raise ValueError(f"an object at {at or 'the top'}, got {value!r:.80}")
        for key, entry in value.items():
            if (inner := wanted.get(key, wanted.get("*"))) is not None:
                _check(entry, inner, at + pointer(key))
