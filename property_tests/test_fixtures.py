"""Stored cases: replayed, and refused when they are not what was stored."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kda_verify import fixtures, sealed
from kda_verify.cases.case import Case
from kda_verify.fixtures import Fixture, Provenance
from kda_verify.judging.verdict import Outcome, Verdict
from kda_verify.subjects import find

FILES = sorted([*fixtures.REGRESSIONS.glob("*.json"), *fixtures.EXACT.glob("*.json")])
SMALL = Fixture(
    Case(operation="commit", conv=False, exact=True, gate_form="given", lengths=(1,)),
    "kda_replay_commit",
    Outcome.PASS,
    Provenance("2026-01-31", "a test", "as small as can be"),
    {"checkpoint_state": "0" * 64},
)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_replays_as_stored(path: Path, device: str) -> None:
    fixture = fixtures.load(path)
    verdict = fixtures.replay(fixture, device=device)
    if verdict.outcome == Outcome.NOT_RUN:
        pytest.skip(f"not run: {verdict.detail}")
    assert verdict.outcome == fixture.expected, str(verdict)


def test_what_is_stored() -> None:
    stored = fixtures.load_all()
    assert len(stored) == len(FILES)
    for path in FILES:
        fixture = fixtures.load(path)
        assert path.name == fixture.name
        assert bool(fixture.digests) == (path.parent == fixtures.EXACT)
    for folder, least in ((fixtures.EXACT, 12), (fixtures.REGRESSIONS, 6)):
        kept = [fixtures.load(p) for p in FILES if p.parent == folder]
        assert len(kept) >= least
        assert {"verify", "commit", "recurrent"} <= {f.case.operation for f in kept}


def test_another_digest_is_an_incorrect_verdict(device: str) -> None:
    path = next(p for p in FILES if p.parent == fixtures.EXACT and "commit" in p.name)
    fixture = fixtures.load(path)
    changed = replace(fixture, digests={"checkpoint_state": "0" * 64})
    verdict = fixtures.replay(changed, device=device)
    assert verdict.outcome == Outcome.INCORRECT
    assert "digest of `checkpoint_state` must be 0000" in verdict.detail
    assert "expected pass, got kda_replay_commit: incorrect" in fixtures.mismatch(
        changed, device=device
    )


def test_text_and_back(tmp_path: Path) -> None:
    path = fixtures.store(SMALL, tmp_path)
    assert fixtures.load(path) == SMALL
    assert path.read_text() == SMALL.to_json()
    assert [p.name for p in tmp_path.iterdir()] == [SMALL.name]


def signed(change: Callable[[dict[str, Any]], Any]) -> str:
    """Change a fixture and give it the right checksum for what it then holds."""
    data = json.loads(SMALL.to_json())
    del data["checksum"]
    change(data)
    return json.dumps({**data, "checksum": sealed.checksum(data)})


def unsigned(change: Callable[[dict[str, Any]], Any]) -> str:
    """Change a fixture and leave its checksum alone."""
    data = json.loads(SMALL.to_json())
    change(data)
    return json.dumps(data)


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a change that sets one field."""

    def change(data: dict[str, Any]) -> None:
        for name in path[:-1]:
            data = data[name]
        data[path[-1]] = value

    return change


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "must be whole JSON"),
    "truncated": (SMALL.to_json()[:-20], "must be whole JSON"),
    "trailing": (SMALL.to_json() + "{}", "must be whole JSON"),
    "not an object": ("[1]", "must be a JSON object, got list"),
    "not utf-8": (b"\xff\xfe{}", "codec can't decode"),
    "a pickle": (b"\x80\x04K\x01.", "codec can't decode"),
    "oversized": (SMALL.to_json() + " " * sealed.MAX_BYTES, "at most 65536 bytes"),
    "deeply nested": ("[" * 50_000, "recursion"),
    "repeated field": ('{"format": 1, "format": 1}', "must occur once"),
    "not a number": (SMALL.to_json().replace('"format": 1', '"format": NaN'), "got NaN"),
    "tampered case": (unsigned(put("case", "lengths", value=[0])), "`checksum` must be"),
    "tampered digest": (
        unsigned(put("digests", "checkpoint_state", value="1" * 64)),
        "`checksum` must be",
    ),
    "tampered note": (unsigned(put("provenance", "note", value="x")), "`checksum` must be"),
    "no checksum": (unsigned(lambda data: data.pop("checksum")), "must include checksum"),
    "no subject": (signed(lambda data: data.pop("subject")), "must include subject"),
    "other format": (signed(put("format", value=2)), "`format` must be 1, got 2"),
    "true for 1": (signed(put("format", value=True)), "`format` must be 1, got True"),
    "unknown field": (signed(put("code", value="x")), "got code"),
    "unknown case field": (signed(put("case", "code", value="x")), "only known fields, got 'code'"),
    "wrong case type": (signed(put("case", "heads", value="1")), "`heads` must be a int"),
    "unhashable": (signed(put("case", "padding", value=[[0]])), "unhashable"),
    "impossible case": (signed(put("case", "heads", value=0)), "`heads` must be a positive"),
    "unknown outcome": (signed(put("expected", value="fine")), "`expected` must be an outcome"),
    "outcome of another type": (signed(put("expected", value=["pass"])), "must be an outcome"),
    "a path for a subject": (signed(put("subject", value="../x")), "`subject` must match"),
    "short digest": (
        signed(put("digests", "checkpoint_state", value="00")),
        "`digests.checkpoint_state` must match",
    ),
    "no digests": (signed(put("digests", value={})), "must name an operand"),
    "digests of a case that rounds": (signed(put("case", "exact", value=False)), "not exact"),
    "provenance cut": (signed(lambda data: data["provenance"].pop("by")), "found, by and note"),
    "provenance of another type": (signed(put("provenance", value=[])), "object of texts"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str, tmp_path: Path) -> None:
    content, reason = REFUSED[name]
    path = tmp_path / "fixture.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match="fixture") as refusal:
        fixtures.load(path)
    assert str(path) in str(refusal.value)
    assert reason in str(refusal.value)


def test_refuses_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.json"):
        with pytest.raises(ValueError, match="fixture"):
            fixtures.load(path)


def test_every_single_character_counts(tmp_path: Path) -> None:
    """Any letter or digit changed in a file is noticed."""
    text = SMALL.to_json()
    path = tmp_path / "fixture.json"
    for at, character in enumerate(text):
        if character.isalnum():
            path.write_text(text[:at] + ("0" if character != "0" else "1") + text[at + 1 :])
            with pytest.raises(ValueError, match="fixture"):
                fixtures.load(path)


def test_a_store_that_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("interrupted")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="interrupted"):
        fixtures.store(SMALL, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_store_keeps_what_is_there(tmp_path: Path) -> None:
    path = fixtures.store(SMALL, tmp_path)
    before = path.read_bytes()
    later = replace(SMALL, provenance=Provenance("2026-02-01", "another test", "found again"))
    assert fixtures.store(later, tmp_path) == path
    assert path.read_bytes() == before
    for other in (
        replace(SMALL, expected=Outcome.INCORRECT),
        replace(SMALL, digests={"checkpoint_state": "1" * 64}),
    ):
        with pytest.raises(ValueError, match="another fixture must not be replaced"):
            fixtures.store(other, tmp_path)
    path.write_text("{")
    with pytest.raises(ValueError, match="must be whole JSON"):
        fixtures.store(SMALL, tmp_path)
    assert path.read_text() == "{"


def test_a_failure_becomes_a_regression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixtures, "REGRESSIONS", tmp_path)
    case = Case(operation="conv_commit")
    verdict = Verdict(Outcome.INCORRECT, "kda_conv_commit", case, where="cs_q[0]", ratio=3.0)
    path = fixtures.write_regression(verdict)
    fixture = fixtures.load(path)
    assert (fixture.case, fixture.subject, fixture.expected) == (case, verdict.subject, "pass")
    assert fixture.provenance.note == "incorrect at cs_q[0], 3 times the budget"
    assert fixtures.mismatch(fixture) == ""


def test_only_exact_cases_that_pass_get_digests() -> None:
    with pytest.raises(ValueError, match="`case` must be exact"):
        fixtures.exact_fixture(replace(SMALL.case, exact=False), find(SMALL.subject), "x", "x")
    with pytest.raises(ValueError, match="`case` must pass"):
        fixtures.exact_fixture(SMALL.case, find("kda_mtp_verify"), "x", "x")
