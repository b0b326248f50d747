"""A case in words, and scripts that show a failure where there is one and only there."""

from __future__ import annotations

import io
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kda_verify.cases import strategies
from kda_verify.cases.build import build
from kda_verify.cases.case import RECORDS, Case
from kda_verify.explain import words
from kda_verify.explain.script import make, pack
from kda_verify.faults.catalogue import find as find_fault
from kda_verify.faults.planted import planted
from kda_verify.judging.judge import judge
from kda_verify.judging.verdict import Outcome, Verdict
from kda_verify.operations import NAMES, facts
from kda_verify.plan import drawn
from kda_verify.subjects import Claims, find, ours
from property_tests.any_case import SMALL, cases

ROOT = Path(__file__).resolve().parent.parent

# Fields that are told only beside another, or not by a value of their own.
APART = {"lengths", "gate_bias", "gate_rate", "lower_bound"}
OTHER: dict[str, Any] = {
    "heads": 3, "group": 3, "size_k": 48, "size_v": 48, "padding": (1,), "slack_rows": 5,
    "capacity": 9, "spare_slots": 7, "index_stride": 4, "scale": 0.75, "seed": 12345, "layers": 3,
    "null_block": 4, "records": ("snapshots",),
}  # fmt: skip


def told(case: Case) -> str:
    return "\n".join(f"{topic}: {text}" for topic, text in words.describe(case))


@pytest.mark.parametrize("operation", NAMES)
def test_every_field_that_means_something_is_told(operation: str) -> None:
    meant = facts(operation)
    case = Case(
        operation=operation, lengths=(2, 2), capacity=3, conv=meant.takes("conv"), spare_slots=2,
        initial="pool" if meant.takes("initial") else "given",
    )  # fmt: skip
    for name in sorted(meant.fields - APART - ({"capacity"} if not meant.bounded else set())):
        value = getattr(case, name)
        options = words_of(name)
        other = OTHER.get(name, not value if isinstance(value, bool) else None)
        for new in options or [other]:
            if new != value:
                assert told(replace(case, **{name: new})) != told(case), f"{name} = {new!r}"


def words_of(name: str) -> list[Any]:
    """Return the allowed values of a field of words."""
    from kda_verify.cases import case

    return list(case._CHOICES.get(name, ()))


@given(cases())
def test_any_case_has_words(case: Case) -> None:
    text = told(case)
    for number in (case.heads_v, case.size_k, case.size_v, case.requests, case.seed):
        assert str(number) in text
    assert text.count("padding over") == len(case.padding)
    assert ("scale" in text) <= facts(case.operation).sequences
    assert len(text.splitlines()) == 9


def test_what_a_gate_lacks_is_told() -> None:
    assert "dt_bias" in told(Case(gate_bias=False)).split("without")[1]
    assert "A_log" in told(Case(gate_rate=False)).split("without")[1]
    assert "-3.5" in told(Case(lower_bound=-3.5))


@SMALL
@given(cases(), st.booleans())
def test_packed_tensors_come_back_as_they_lay(case: Case, whole: bool) -> None:
    given = {k: v for k, v in build(case).arguments.items() if isinstance(v, Tensor)}
    file = io.BytesIO()
    torch.save(pack(given, whole), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    for name, (storage, dtype, *place) in saved["tensors"].items():
        back = torch.as_strided(saved[storage].view(getattr(torch, dtype)), *place)
        assert back.stride() == given[name].stride()
        assert back.dtype == given[name].dtype
        assert torch.equal(bits(back), bits(given[name])), name
    shared = {t.untyped_storage().data_ptr() for t in given.values()}
    assert len(saved) == len(shared) + 1


def bits(tensor: Tensor) -> Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.itemsize])


def failing(name: str, operation: str, outcome: Outcome, package: str) -> Verdict:
    """Return the first failure of a planted kernel with that outcome."""
    sizes = (16, 24, 17)
    make_cases = getattr(strategies, f"{operation}_cases")
    subject = ours.subject(name, package)
    for case in drawn(make_cases(sizes=sizes, most=2), 60, 1):
        verdict = judge(case, subject)
        if verdict.outcome == outcome:
            return verdict
    raise AssertionError(f"no case ends as {outcome}")


FAULTS = {
    "decay-left-out": ("kda_mtp_verify", "verify", Outcome.INCORRECT),
    "nan-swallowed": ("kda_mtp_verify", "verify", Outcome.NON_FINITE),
    "ring-past-length": ("kda_mtp_verify", "verify", Outcome.WROTE_OUTSIDE),
    "commit-no-carry": ("kda_replay_commit", "commit", Outcome.INCORRECT),
    "first-block-only": ("kda_conv_commit", "conv_commit", Outcome.INCORRECT),
}


@pytest.fixture
def own_determinism() -> Iterator[None]:
    """Put back what a script sets for its process."""
    was = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(was)


@pytest.mark.usefixtures("own_determinism")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_script_fails_with_the_wrong_kernel_alone(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, operation, outcome = FAULTS[fault]
    path = tmp_path / "show.py"
    with planted(find_fault(fault)) as package:
        verdict = failing(name, operation, outcome, package)
        make(verdict, ours.subject(name, package)).write(path)
        with pytest.raises(SystemExit, match="FAILED: "):
            runpy.run_path(str(path))
        spot = verdict.where.replace(" (", "[").split("[")[0]
        assert spot in capsys.readouterr().out or outcome == Outcome.NON_FINITE
    make(verdict, find(name)).write(path)
    runpy.run_path(str(path))
    assert capsys.readouterr().out.splitlines()[-1] == "ok"


def test_a_script_runs_by_itself_in_a_fresh_process(tmp_path: Path) -> None:
    name, operation, outcome = FAULTS["decay-left-out"]
    plant = find_fault("decay-left-out")
    with planted(plant) as package:
        verdict = failing(name, operation, outcome, package)
    path = tmp_path / "show.py"
    make(verdict, find(name)).write(path)
    wrong = tmp_path / "wrong" / "kda_kernels"
    shutil.copytree(ROOT / "kda_kernels", wrong, ignore=shutil.ignore_patterns("__pycache__"))
    module = wrong / f"{plant.module}.py"
    module.write_text(plant.apply(module.read_text()))
    running = {
        folder: subprocess.Popen(
            [sys.executable, "-P", str(path)], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(folder)},
        )
        for folder in (wrong.parent, ROOT)
    }  # fmt: skip
    ended = {folder: (*p.communicate(timeout=120), p.returncode) for folder, p in running.items()}
    out, err, code = ended[wrong.parent]
    assert code == 1, err
    assert verdict.where in out
    assert "FAILED: " in err
    out, err, code = ended[ROOT]
    assert code == 0, err
    assert out.splitlines()[-1] == "ok"
    assert "FAILED" not in err


@dataclass(frozen=True)
class Mine:
    """A kernel of another package, in the fewest words an adapter needs."""

    name: str = "mine"
    operation: str = "verify"
    claims: Claims = Claims(triton=False)
    entry: tuple[str, str] = ("my_kernels", "my_verify")

    def unavailable(self) -> str:
        return ""

    def keywords(self, built: Any) -> dict[str, Any]:
        return dict(built.arguments)

    def call(self, built: Any) -> dict[str, Tensor]:
        raise RuntimeError("no such shape")


@pytest.mark.usefixtures("own_determinism")
def test_what_raises_raises_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_kernels.py").write_text(
        "def my_verify(**given):\n    raise RuntimeError('no such shape')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    verdict = judge(Case(), Mine())
    assert verdict.outcome == Outcome.RAISED
    path = tmp_path / "show.py"
    script = make(verdict, Mine())
    script.write(path)
    with pytest.raises(RuntimeError, match="no such shape"):
        runpy.run_path(str(path))
    body = script.text.split("\nimport torch\n")[1]
    assert "kda_verify" not in body
    assert "kda_ref" not in body


def test_refuses_what_tensors_do_not_show() -> None:
    verdict = Verdict(Outcome.NO_KERNEL, "kda_mtp_verify", Case())
    with pytest.raises(ValueError, match="`case` must end as pass, incorrect, .*, got no-kernel"):
        make(verdict, find("kda_mtp_verify"))
    with pytest.raises(ValueError, match="`kernel` must be a function of a package, got emulated"):
        make(Verdict(Outcome.PASS, "x", Case()), find("emulated.chunked"))
    outside = Verdict(Outcome.WROTE_OUTSIDE, "x", Case(), where="elsewhere (0,)")
    with pytest.raises(ValueError, match="must fail in a tensor that is passed, got elsewhere"):
        make(outside, find("kda_mtp_verify"))


def test_a_guard_is_looked_at_too() -> None:
    """A write past an operand is found at its offset, in a storage kept whole."""
    outside = Verdict(Outcome.WROTE_OUTSIDE, "x", Case(), where="guard of g (-3,)")
    script = make(outside, find("kda_mtp_verify"))
    offset = script.saved["tensors"]["g"][4] - 3
    assert f'torch.as_strided(tensors["g"], (1,), (1,), {offset})' in script.text
    storage = script.saved[script.saved["tensors"]["g"][0]].view(torch.float32)
    assert torch.isnan(storage[offset])


def test_every_record_is_told() -> None:
    assert all(r in told(Case(records=RECORDS, capacity=1)) for r in RECORDS)
