"""The gallery: faults that apply, checks that reject them, entries that can be kept."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kda_verify.faults import gallery
from kda_verify.faults.gallery import STAGES, Entry, checks, load, run_fault, source_digest, tables
from kda_verify.faults.planted import Plant
from kda_verify.faults.plants import PLANTS

EVERY = [(stage, plant) for stage, faults in STAGES.items() for plant in faults]


@pytest.mark.parametrize(("stage", "plant"), EVERY, ids=[p.name for _, p in EVERY])
def test_applies_to_the_present_source(stage: str, plant: Plant) -> None:
    """A fault whose anchor has gone must be written anew, not skipped."""
    assert source_digest(plant) != source_digest(replace(plant, replacement=plant.anchor)), stage


def test_faults_are_distinct() -> None:
    plants = [plant for _, plant in EVERY]
    assert len({p.name for p in plants}) == len(plants)
    assert len({source_digest(p) for p in plants}) == len(plants)


@pytest.mark.parametrize(
    ("name", "found_by"),
    [("conv-taps-reversed", "cases"), ("index-equals-limit", "contract")],
)
def test_finds_a_fault_and_passes_its_control(name: str, found_by: str) -> None:
    stage, plant = next((s, p) for s, p in EVERY if p.name == name)
    entry = run_fault(plant, stage, 60.0)
    assert (entry.found_by, entry.control, entry.found) == (found_by, True, True)
    assert entry.first
    assert entry.says


def test_a_change_that_changes_nothing_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = replace(PLANTS[0], replacement=f"{PLANTS[0].anchor}  # as before")
    few = list(zip(range(2), checks("verify"), strict=False))
    monkeypatch.setattr(gallery, "checks", lambda operation: (check for _, check in few))
    entry = run_fault(plant, "stream and scan", 60.0)
    assert (entry.found_by, entry.found) == ("", False)


def test_a_check_that_rejects_the_kernel_as_it_is_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wolf = gallery.Check("cases", "any", lambda package: "wrong")
    monkeypatch.setattr(gallery, "checks", lambda operation: iter([wolf]))
    entry = run_fault(PLANTS[0], "stream and scan", 60.0)
    assert (entry.found_by, entry.control, entry.found) == ("cases", False, False)
    assert "CONTROL FAILS" in str(list(tables([entry])[0].columns[2].cells))


def test_every_operation_is_asked_about_laws() -> None:
    for operation in gallery.SUBJECT_OF:
        kinds = {check.kind for check in checks(operation)}
        exact = {"exact family"} if operation != "conv_commit" else set()
        assert kinds == {"cases", "laws", *exact}


def entry_of(plant: Plant, **changes: object) -> Entry:
    entry = Entry(
        plant.name, "prepare", "", source_digest(plant), "cases", "{}", "wrong", True, 1.0
    )
    return replace(entry, **changes)  # type: ignore[arg-type]


def test_stored_entries_are_kept_while_the_source_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, stale = PLANTS[:2]
    store = tmp_path / "entries.jsonl"
    lines = [json.dumps(asdict(e)) for e in (entry_of(kept), entry_of(stale, digest="old"))]
    store.write_text("\n".join([*lines, '{"fault": "cut sh']))
    assert [e.fault for e in load(store)] == [kept.name, stale.name]
    ran = []

    def alone(plant: Plant, stage: str, time_limit: float) -> Entry:
        ran.append(plant.name)
        return entry_of(plant, seconds=2.0)

    monkeypatch.setattr(gallery, "_alone", alone)
    entries = gallery.run([("a", kept), ("a", stale)], 1, 1.0, store)
    assert ran == [stale.name]
    assert [e.seconds for e in entries] == [1.0, 2.0]
    assert load(store)[-1].digest == source_digest(stale)


def test_refuses_a_fault_it_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert gallery.main(["no-such-fault"]) == 2
    assert "no fault is named no-such-fault" in capsys.readouterr().err
