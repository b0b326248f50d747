"""A failure as a script that stands alone: plain tensors, one call, the error where it is worst."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cases.build import build
from ..judging.answer import Answer, Expectation
from ..judging.expect import expect
from ..judging.verdict import Outcome, Verdict
from ..sealed import write
from ..subjects.base import Importable, Subject, effective_precision, interpreted
from ..summary import environment
from .words import describe

SHOWN = (
    Outcome.PASS, Outcome.INCORRECT, Outcome.NON_FINITE, Outcome.WROTE_OUTSIDE, Outcome.RAISED,
)  # fmt: skip
"""Outcomes that a call on plain tensors shows; the others are about the caller's bookkeeping."""

_ELEMENT = re.compile(r"(guard of )?(\w+)[ \[]*\(?(-?\d+(?:, -?\d+)*),?[\])]")
_LINE = 64  # An operand is cut out of its storage at a cache line, to keep its alignment.


@dataclass(frozen=True)
class Script:
    """A script and the tensors it loads.

    Attributes:
        text: of the script; it reads the file of its own name with the suffix .pt.
        saved: what that file holds.
    """

    text: str
    saved: dict[str, Any]

    def write(self, path: Path) -> Path:
        """Write both, the tensors first, each whole or not at all; return where they are."""
        content = io.BytesIO()
        torch.save(self.saved, content)
        write(beside(path), content.getvalue())
        write(path, self.text)
        return beside(path)


def beside(path: Path) -> Path:
    """Return where the tensors of a script lie."""
    return path.with_suffix(".pt")


def make(verdict: Verdict, subject: Subject, device: str = "cpu") -> Script:
    """Make the script that shows a verdict again.

    Args:
        verdict: of the subject.
        subject: whose kernel is called.
        device: where it was judged.

    Raises:
        ValueError: the kernel is no function that can be imported, or the verdict is not about
            numbers.
    """
    if not isinstance(subject, Importable):
        raise ValueError(f"`kernel` must be a function of a package, got {subject.name}")
    if verdict.outcome not in SHOWN:
        shown = ", ".join(map(str, SHOWN))
        raise ValueError(f"`case` must end as {shown} for a script, got {verdict.outcome}")
    built = build(verdict.case)
    answer = expect(built, effective_precision(subject.claims))
    keywords = subject.keywords(built)
    tensors = {name: value for name, value in keywords.items() if isinstance(value, Tensor)}
    guarded = verdict.outcome == Outcome.WROTE_OUTSIDE
    saved = pack(tensors, whole=guarded)
    results = [e.operand for e in answer.expectations if e.operand not in built.arguments]
    module, function = subject.entry
    names = ", ".join(dict.fromkeys(results))
    plain = ["**tensors", *(f"{k}={v!r}" for k, v in keywords.items() if k not in tensors)]
    call = [
        f"{f'{names} = ' if names else ''}{function}(",
        *_wrapped(", ".join(plain), "    "),
        ")",
    ]
    lines = [
        *_heading(verdict, device),
        *(["import os"] if interpreted() else []),
        "import sys",
        "from pathlib import Path",
        "",
        *(['os.environ["TRITON_INTERPRET"] = "1"  # read at import'] if interpreted() else []),
        "import torch",
        f"from {module} import {function}",
        "",
        "torch.use_deterministic_algorithms(True, warn_only=True)  # fills torch.empty with NaN",
        f'saved = torch.load(Path(__file__).with_suffix(".pt"), "{device}", weights_only=True)',
        "tensors = {",
        "    name: torch.as_strided(saved[storage].view(getattr(torch, dtype)), *place)",
        '    for name, (storage, dtype, *place) in saved["tensors"].items()',
        "}",
    ]
    wait = [] if device == "cpu" else ["torch.cuda.synchronize()"]
    if verdict.outcome == Outcome.RAISED:
        lines += [*call, *wait, 'print("ok: it returned")']
    elif verdict.outcome == Outcome.WROTE_OUTSIDE:
        lines += _around(verdict, saved["tensors"], [*call, *wait])
    elif found := _where(verdict, answer):
        text, more = _compared(verdict, *found, returned=set(results))
        lines += [*call, *wait, *text]
        saved |= more
    else:
        lines += [*call, *wait, 'print("ok: nothing is to be compared")']
    return Script("\n".join(lines) + "\n", saved)


def pack(tensors: Mapping[str, Tensor], whole: bool = False) -> dict[str, Any]:
    """Return tensors as storages and the places in them, layout and overlaps kept.

    A file of tensors cannot hold two views of one storage that differ in dtype, which interleaved
    pools are.

    Args:
        tensors: on the CPU, by name.
        whole: keep what lies around the tensors in their storages too.
    """
    shared: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        shared.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    saved: dict[str, Any] = {"tensors": {}}
    for number, names in enumerate(shared.values()):
        spans = [_span(tensors[name]) for name in names]
        storage = tensors[names[0]].untyped_storage()
        first = 0 if whole else min(start for start, _ in spans) // _LINE * _LINE
        last = storage.nbytes() if whole else max(end for _, end in spans)
        content = torch.zeros(-(-(last - first) // _LINE) * _LINE, dtype=torch.uint8)
        content[: last - first] = torch.empty(0, dtype=torch.uint8).set_(storage)[first:last]
        saved[f"storage {number}"] = content
        for name in names:
            t = tensors[name]
            place = (tuple(t.shape), t.stride(), t.storage_offset() - first // t.itemsize)
            dtype = str(t.dtype).removeprefix("torch.")
            saved["tensors"][name] = (f"storage {number}", dtype, *place)
    return saved


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the bytes of its storage that a tensor reaches from and to."""
    start = int(tensor.storage_offset()) * tensor.itemsize
    if not tensor.numel():
        return start, start
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (int(reach) + 1) * tensor.itemsize


def _heading(verdict: Verdict, device: str) -> Iterator[str]:
    """Say what the script shows, as comments."""
    where = environment(device)
    title = str(verdict).split("\n  replay: ")[0]
    how = "interpreted" if where["interpreted"] else "compiled"
    text = [
        *title.splitlines(),
        "",
        *(f"{topic}: {told}" for topic, told in describe(verdict.case)),
        "",
        f"Judged with torch {where['torch']}, triton {where['triton']}, {how}, on "
        f"{where['device']}. The expected value is that of a float64 oracle, and the error "
        "allowed is all that rounding explains. With kda-verify installed:",
    ]
    for line in text:
        yield from (f"# {part}".rstrip() for part in _wrapped(line) or [""])
    yield f"# {verdict.replay}"


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Break text at spaces; the second line on is set in."""
    return textwrap.wrap(
        text, 96, initial_indent=indent, subsequent_indent=indent or "  ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _where(verdict: Verdict, answer: Answer) -> tuple[Expectation, tuple[int, ...]] | None:
    """Find the expectation of the worst element, and the element's index in it."""
    found = _ELEMENT.fullmatch(verdict.where)
    if found is None:
        return None
    operand, index = found[2], [int(i) for i in found[3].split(", ")]
    for expectation in answer.expectations:
        if expectation.operand != operand:
            continue
        local: list[int] = []
        for at, entry in zip(index, expectation.index, strict=False):
            if isinstance(entry, int):
                if at != entry:
                    break
            else:
                local.append(at - (entry.start or 0))
        else:
            place = (*local, *index[len(expectation.index) :])
            shape = expectation.want.value.shape
            if all(0 <= i < n for i, n in zip(place, shape, strict=True)):
                return expectation, place
    return None


def _compared(
    verdict: Verdict, expectation: Expectation, local: tuple[int, ...], *, returned: set[str]
) -> tuple[list[str], dict[str, Any]]:
    """Compare as the judge does: the element, or the norm of its column where that is bounded."""
    want, axis = expectation.want, expectation.column_axis
    value = want.value[local]
    place: list[int | slice] = list(local)
    pick = ""
    if axis is not None:
        place[axis] = slice(None)
        pick = f"[{local[axis]}]"
    spoilt = not bool(torch.isfinite(value))
    if spoilt:
        # NaN and infinity are not told apart: some element of the token and head must be either.
        keep = {expectation.head_axis, expectation.token_axis}
        place = [i if n in keep else slice(None) for n, i in enumerate(local)]
    at = tuple(place)
    whole = expectation.element(local)
    index = _text(expectation, at)
    name = expectation.operand
    source = name if name in returned else f'tensors["{name}"]'
    lines = [f"got = {source}[{index}].double()"]
    if spoilt:
        lines += [
            "if got.isfinite().all():",
            f'    sys.exit("FAILED: {name}[{index}] is finite, but a NaN went into it")',
            'print("ok")',
        ]
        return lines, {}
    allowed = float(want.error[at].max() + expectation.store[at].norm())
    accepts = expectation.accept_nan is not None and bool(expectation.accept_nan[local])
    lines += [
        'error, allowed = (got - saved["want"]).norm().item(), saved["allowed"]',
        f'print(f"{whole}: got {{got{pick}:.9g}}, expected {float(value):.9g}")',
        'print(f"error {error:.3g}, allowed {allowed:.3g}")',
        f"if not error <= allowed{' and not got.isnan().any()' * accepts}:",
        '    sys.exit("FAILED: the error is more than rounding explains")',
        'print("ok")',
    ]
    return lines, {"want": want.value[at].clone(), "allowed": allowed}


def _text(expectation: Expectation, at: tuple[int | slice, ...]) -> str:
    """Write an index of the operand for an index of the expectation."""
    rest, parts = list(at), []
    for entry in expectation.index:
        if isinstance(entry, int):
            parts.append(str(entry))
            continue
        inner, start = rest.pop(0), entry.start or 0
        whole = f"{start or ''}:{'' if entry.stop is None else entry.stop}"
        parts.append(str(start + inner) if isinstance(inner, int) else whole)
    return ", ".join([*parts, *(":" if isinstance(i, slice) else str(i) for i in rest)])


def _around(verdict: Verdict, tensors: Mapping[str, Any], call: list[str]) -> list[str]:
    """Look at bytes that the call does not own, before it and after."""
    found = _ELEMENT.fullmatch(verdict.where)
    if found is None or found[2] not in tensors:
        raise ValueError(f"`case` must fail in a tensor that is passed, got {verdict.where}")
    name, index = found[2], [int(i) for i in found[3].split(", ")]
    _, _, _, strides, offset = tensors[name]
    steps = index if found[1] else [i * s for i, s in zip(index, strides, strict=True)]
    return [
        f'spot = torch.as_strided(tensors["{name}"], (1,), (1,), {offset + sum(steps)})',
        "before = spot.clone()",
        *call,
        f'print(f"{verdict.where}: {{before.item()}} before the call, {{spot.item()}} after")',
        "if not torch.equal(before.view(torch.uint8), spot.view(torch.uint8)):",
        '    sys.exit("FAILED: the call changed what is not its own")',
        'print("ok")',
    ]
