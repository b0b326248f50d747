"""Fixtures: stored cases with the verdict expected of them, replayed for ever.

Each is one JSON file under `fixtures/`: cases that once failed or that sit in a corner, and cases
of the exact family with a digest of every output, sealed as `sealed` says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import sealed
from .cases.build import build
from .cases.case import Case
from .judging.answer import Answer
from .judging.expect import expect
from .judging.judge import judge
from .judging.verdict import Outcome, Verdict
from .sealed import Provenance
from .subjects import Subject, find
from .subjects.base import effective_precision

ROOT = Path(__file__).resolve().parent.parent / "fixtures"
REGRESSIONS, EXACT = ROOT / "regressions", ROOT / "exact"

FIELDS = ("format", "case", "subject", "expected", "provenance", "digests", "checksum")

_SUBJECT = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_OPERAND = re.compile(r"[A-Za-z0-9_]{1,64}")


@dataclass(frozen=True)
class Fixture:
    """Hold one stored case.

    Attributes:
        case: the case.
        subject: name of the kernel it is replayed for.
        expected: outcome expected, in the words of `Outcome`.
        provenance: where it comes from.
        digests: sha256 of what the call leaves in every output operand, by operand name; cases of
            the exact family only, empty where none are kept.
    """

    case: Case
    subject: str
    expected: Outcome
    provenance: Provenance
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """File name: the kernel and a digest of the case, so that equal cases meet."""
        key = hashlib.sha256(self.case.to_json().encode()).hexdigest()[:12]
        return f"{self.subject}-{key}.json"

    def to_json(self) -> str:
        """Return the text of the file."""
        body: dict[str, Any] = {
            "format": sealed.FORMAT,
            "case": json.loads(self.case.to_json()),
            "subject": self.subject,
            "expected": str(self.expected),
            "provenance": asdict(self.provenance),
        }
        if self.digests:
            body["digests"] = dict(self.digests)
        body["checksum"] = sealed.checksum(body)
        # The case stays on one line, as it is given to a replay.
        texts = {k: json.dumps(v, indent=None if k == "case" else 1) for k, v in body.items()}
        lines = (f' "{k}": {text}'.replace("\n", "\n ") for k, text in texts.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def same_as(self, other: Fixture) -> bool:
        """Whether both ask the same, wherever they come from."""
        return replace(self, provenance=other.provenance) == other


def load(path: Path | str) -> Fixture:
    """Read one fixture.

    Raises:
        ValueError: not a whole, unchanged fixture of this format; names the file and the reason.
    """
    return sealed.load(path, "fixture", _parse)


def load_all() -> list[Fixture]:
    """Read every stored fixture, in the order of their file names.

    Raises:
        ValueError: as `load`, for the first that is not one.
    """
    return [load(path) for folder in (REGRESSIONS, EXACT) for path in sorted(folder.glob("*.json"))]


def _parse(text: str) -> Fixture:
    data = sealed.opened(text, FIELDS, optional=("digests",))
    case = Case.from_dict(data["case"])
    expected = data["expected"]
    if not isinstance(expected, str) or expected not in set(map(str, Outcome)):
        raise ValueError(f"`expected` must be an outcome, got {expected!r}")
    subject = _text("subject", data["subject"], _SUBJECT)
    digests = sealed.texts("digests", data.get("digests", {}))
    for operand, digest in digests.items():
        _text("digests", operand, _OPERAND)
        _text(f"digests.{operand}", digest, _DIGEST)
    if digests and not case.exact:
        raise ValueError("`digests` must be left out where the case is not exact, got some")
    if "digests" in data and not digests:
        raise ValueError("`digests` must name an operand where they are given, got none")
    provenance = sealed.provenance(data["provenance"])
    return Fixture(case, subject, Outcome(expected), provenance, digests)


def _text(name: str, value: object, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"`{name}` must match {pattern.pattern}, got {value!r}")
    return value


def store(fixture: Fixture, folder: Path) -> Path:
    """Write a fixture whole or not at all; what is stored already stays as it is.

    Raises:
        ValueError: another fixture, or something that is none, goes by the same name.
    """
    path = folder / fixture.name
    text = fixture.to_json()
    _parse(text)
    if path.exists():
        if not load(path).same_as(fixture):
            raise ValueError(f"fixture {path}: another fixture must not be replaced, got one")
        return path
    sealed.write(path, text)
    return path


def write_regression(verdict: Verdict) -> Path:
    """Store the case of a failure, which its kernel is expected to pass once repaired."""
    note = f"{verdict.outcome}"
    if verdict.where:
        note += f" at {verdict.where}"
    if verdict.ratio:
        note += f", {verdict.ratio:.3g} times the budget"
    provenance = Provenance(_today(), "kda-verify run", note)
    fixture = Fixture(verdict.case, verdict.subject, Outcome.PASS, provenance)
    return store(fixture, REGRESSIONS)


def exact_fixture(case: Case, subject: Subject, by: str, note: str) -> Fixture:
    """Make a fixture of the exact family from a call that the oracle confirms bit for bit.

    Raises:
        ValueError: the case is not exact, or the subject does not pass it.
    """
    if not case.exact:
        raise ValueError("`case` must be exact, got one that rounds")
    verdict = judge(case, subject)
    if verdict.outcome != Outcome.PASS:
        raise ValueError(f"`case` must pass, got {verdict}")
    provenance = Provenance(_today(), by, note)
    return Fixture(case, subject.name, Outcome.PASS, provenance, digests(case, subject))


def _today() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def digests(case: Case, subject: Subject, device: str = "cpu") -> dict[str, str]:
    """Call a subject and digest what it left in the elements it owns, by operand.

    Of each operand: its owned elements in row-major order as little-endian fp32, which holds every
    narrower dtype, with a negative zero taken for zero.
    """
    answer = expect(build(case), effective_precision(subject.claims))
    built = build(case, device)
    returned = subject.call(built)
    operands = {k: v for k, v in built.arguments.items() if isinstance(v, Tensor)}
    return dict(_digest_all({**operands, **returned}, answer))


def _digest_all(operands: Mapping[str, Tensor], answer: Answer) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys(e.operand for e in answer.expectations):
        tensor = operands[name].cpu()
        owned = torch.zeros(tensor.shape, dtype=torch.bool)
        for expectation in answer.expectations:
            if expectation.operand == name:
                owned[expectation.index] = True
        values = tensor.contiguous()[owned].float() + 0.0
        header = f"{str(tensor.dtype).removeprefix('torch.')} {values.numel()}\n"
        data = values.numpy().astype("<f4").tobytes()
        yield name, hashlib.sha256(header.encode() + data).hexdigest()


def replay(fixture: Fixture, subject: Subject | None = None, device: str = "cpu") -> Verdict:
    """Judge a fixture's case again; digests that differ make an incorrect verdict.

    Args:
        fixture: what to replay.
        subject: whom to judge; the fixture's own by default.
        device: where the operands live.
    """
    subject = find(fixture.subject) if subject is None else subject
    verdict = judge(fixture.case, subject, device)
    if verdict.outcome != Outcome.PASS or not fixture.digests:
        return verdict
    found = digests(fixture.case, subject, device)
    if found == dict(fixture.digests):
        return verdict
    first = min(n for n in {*found, *fixture.digests} if found.get(n) != fixture.digests.get(n))
    detail = f"the digest of `{first}` must be {fixture.digests.get(first)}, got {found.get(first)}"
    return replace(verdict, outcome=Outcome.INCORRECT, where=first, detail=detail)


def mismatch(fixture: Fixture, subject: Subject | None = None, device: str = "cpu") -> str:
    """Say how a replay differs from what is stored; "" where it does not, or cannot run here."""
    verdict = replay(fixture, subject, device)
    if verdict.outcome in (fixture.expected, Outcome.NOT_RUN):
        return ""
    return f"fixture {fixture.name}: expected {fixture.expected}, got {verdict}"
