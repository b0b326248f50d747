"""The gallery: faults that apply, checks that reject them, entries that can be kept."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kda_verify.faults import gallery
from kda_verify.faults.catalogue import FAULTS
from kda_verify.faults.gallery import Check, Entry, checks, run_fault, source_digest, tables
from kda_verify.faults.planted import Plant
from kda_verify.faults.plants import PLANTS
from kda_verify.faults.store import load
from kda_verify.subjects import ours


@pytest.mark.parametrize("plant", FAULTS, ids=lambda p: p.name)
def test_applies_to_the_present_source(plant: Plant) -> None:
    """A fault whose anchor has gone must be written anew, not left out."""
    assert source_digest(plant) != source_digest(replace(plant, replacement=plant.anchor))


@pytest.mark.parametrize("plant", FAULTS, ids=lambda p: p.name)
def test_is_asked_what_is_meant_for_it(plant: Plant) -> None:
    """A fault of the contract shows in no case, and a commit's in no verify."""
    if plant.operation == "contract":
        assert plant.module.startswith("contract/")
    else:  # a contract that refuses what is valid shows in the cases of an operation
        assert plant.operation in (*ours.GENERAL, "drop-in")


def test_faults_are_distinct() -> None:
    assert len({p.name for p in FAULTS}) == len(FAULTS)
    assert len({source_digest(p) for p in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize(
    ("name", "found_by"),
    [("conv-taps-reversed", "cases"), ("index-equals-limit", "contract")],
)
def test_finds_a_fault_and_passes_its_control(name: str, found_by: str) -> None:
    plant = next(p for p in FAULTS if p.name == name)
    entry = run_fault(plant, 60.0)
    assert (entry.found_by, entry.control, entry.found) == (found_by, True, True)
    assert entry.first
    assert entry.says


def test_a_change_that_changes_nothing_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = replace(PLANTS[0], replacement=f"{PLANTS[0].anchor}  # as before")
    few = list(zip(range(2), checks("verify"), strict=False))
    monkeypatch.setattr(gallery, "checks", lambda operation: iter([check for _, check in few]))
    entry = run_fault(plant, 60.0)
    assert (entry.found_by, entry.found, entry.says) == ("", False, "no check rejects it")
    assert run_fault(plant, 0.0).says == "no check in 0 s rejects it"


def test_a_check_that_rejects_the_kernel_as_it_is_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wolf = Check("cases", "any", lambda package: "wrong")
    monkeypatch.setattr(gallery, "checks", lambda operation: iter([wolf]))
    entry = run_fault(PLANTS[0], 60.0)
    assert (entry.found_by, entry.control, entry.found) == ("cases", False, False)
    assert "CONTROL FAILS" in str(list(tables([entry])[0].columns[2].cells))


def test_every_operation_is_asked_about_laws() -> None:
    for operation in ours.GENERAL:
        kinds = {check.kind for check in checks(operation)}
        exact = {"exact family"} if operation != "conv_commit" else set()
        assert kinds == {"cases", "other calls", "laws", *exact}


def entry_of(plant: Plant, **changes: object) -> Entry:
    entry = Entry(
        plant.name, plant.module, "", source_digest(plant), "cases", "{}", "wrong", True, 1.0
    )
    return replace(entry, **changes)  # type: ignore[arg-type]


def test_stored_entries_are_kept_while_the_source_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, stale = PLANTS[:2]
    store = tmp_path / "entries.jsonl"
    lines = [json.dumps(asdict(e)) for e in (entry_of(kept), entry_of(stale, digest="old"))]
    store.write_text("\n".join([*lines, '{"fault": "cut sh']))
    assert [e.fault for e in load(store, Entry)] == [kept.name, stale.name]
    ran = []

    def alone(plant: Plant, time_limit: float) -> Entry:
        ran.append(plant.name)
        return entry_of(plant, seconds=2.0)

    monkeypatch.setattr(gallery, "run_alone", alone)
    entries = gallery.run([kept, stale], 1, 1.0, store)
    assert ran == [stale.name]
    assert [e.seconds for e in entries] == [1.0, 2.0]
    assert load(store, Entry)[-1].digest == source_digest(stale)


def test_a_process_that_dies_has_a_control(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check it died on is asked of the kernel as it is, in a process of its own."""
    plant = replace(
        next(p for p in FAULTS if p.name == "conv-taps-reversed"),
        replacement="import os\nos._exit(3)",
    )
    plant = replace(plant, module="replay", anchor="CONV_COMMIT.validate(locals())")
    entry = gallery.run_alone(plant, 60.0)
    assert (entry.says, entry.found_by, entry.control) == ("the process died", "cases", True)
    monkeypatch.setattr(gallery, "_control", _dies)
    assert not gallery.run_alone(plant, 60.0).found


def test_a_kernel_that_never_ends_has_a_control(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = Plant("endless", "replay", "CONV_COMMIT.validate(locals())",
                  "while True:\n    pass", "", "conv_commit")  # fmt: skip
    monkeypatch.setattr(gallery, "CHECK_LIMIT_SECONDS", 15.0)
    entry = gallery.run_alone(plant, 0.0)
    assert (entry.says, entry.found_by, entry.control) == ("no answer in 15 s", "cases", True)


def test_drop_ins_are_asked_their_own_cases() -> None:
    asked = list(checks("drop-in"))
    assert {check.kind for check in asked} == {"cases"}
    assert any('"dtype": "bfloat16"' in check.of for check in asked)
    both = [check.of for check in checks("commit conv_commit")]
    assert both == [c.of for op in ("commit", "conv_commit") for c in checks(op)]


def _dies(operation: str, number: int) -> bool:
    os._exit(3)


def test_refuses_a_fault_it_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert gallery.main(["no-such-fault"]) == 2
    assert "no fault is named no-such-fault" in capsys.readouterr().err
