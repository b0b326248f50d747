"""Published acceptance rules, from both sides, and how detection is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kda_verify.cases.build import build
from kda_verify.cases.case import Case
from kda_verify.faults import detection
from kda_verify.faults.case_sets import CASE_SETS, cases_of
from kda_verify.faults.catalogue import FAULTS
from kda_verify.faults.detection import (
    JUDGES,
    NO_FRAME,
    OURS,
    OUTPUT_ONLY,
    Row,
    ablation_table,
    found,
    judge_all,
    opinions,
    published_table,
)
from kda_verify.faults.plants import PLANTS
from kda_verify.faults.published import (
    CRITERIA,
    Criterion,
    kernelbench,
    role,
    same_bits,
    torch_defaults,
)
from kda_verify.judging.expect import expect
from kda_verify.markers import replace_between
from kda_verify.subjects import find, ours
from kda_verify.subjects.base import effective_precision

RULES = {
    (criterion.name, kind): rule for criterion in CRITERIA for kind, rule in criterion.rules.items()
}
WANT = torch.tensor([1.0, -2.0, 0.5, 4.0])


def refuses_past(rule: tuple[str, str], relative: float) -> None:
    accepts = RULES[rule]
    assert accepts(WANT * (1 + 0.9 * relative), WANT)
    assert not accepts(WANT * (1 + 1.1 * relative), WANT)


@pytest.mark.parametrize(
    ("rule", "relative"),
    [
        (("FLA", "out"), 0.005),
        (("FLA", "state"), 0.005),
        # A largest error of 0.3 in a tensor whose largest value is 4.
        (("FLA in CI", "out"), 0.3 / 4),
        (("SGLang", "state"), 1e-3),
        (("vLLM", "out"), 3e-3),
        # |error| <= atol + rtol |x| is tightest where |x| is largest.
        (("SGLang", "out"), 1e-2 + 3e-3 / 4),
        (("FlashInfer", "out"), 2e-2 + 3e-2 / 4),
        (("cuLA", "state"), 2e-2 + 3e-2 / 4),
        (("aiter", "out"), 2e-2 + 5e-2 / 4),
        (("KernelBench", "ring"), 1e-4 + 1e-4 / 4),
        (("torch.testing", "out"), 1.3e-6 + 1e-5 / 4),
    ],
    ids=str,
)
def test_rules_accept_up_to_their_limit(rule: tuple[str, str], relative: float) -> None:
    refuses_past(rule, relative)


@pytest.mark.parametrize(("name", "kind"), RULES, ids=str)
def test_rules_accept_the_truth_and_refuse_nan(name: str, kind: str) -> None:
    rule = RULES[name, kind]
    assert rule(WANT, WANT)
    assert not rule(torch.full_like(WANT, torch.nan), WANT)


def test_rules_by_dtype() -> None:
    narrow = WANT.to(torch.bfloat16)
    assert kernelbench(narrow * 1.008, narrow)
    assert not kernelbench(WANT * 1.008, WANT)
    assert torch_defaults(narrow * 1.008, narrow)
    assert not same_bits(narrow * 1.008, narrow)


def test_every_operand_has_a_role() -> None:
    assert role("out") == "out"
    assert {role(f"{x}_state") for x in ("recurrent", "checkpoint", "final")} == {"state"}
    assert role("intermediate_ssm") == "state"
    assert role("cs_q") == role("intermediate_conv_v") == "window"
    assert role("replayssm_g") == "ring"


@pytest.mark.parametrize("criterion", CRITERIA, ids=lambda c: c.name)
def test_criteria_look_at_every_tensor_of_their_roles(criterion: Criterion) -> None:
    """The kernel's answer passes; spoilt by half in one operand, it passes only unseen."""
    case = Case(lengths=(2, 1), capacity=2, records=("rings", "snapshots", "windows"), seed=5)
    subject = find("kda_mtp_verify")
    answer = expect(build(case), effective_precision(subject.claims))
    built = build(case)
    left = {**built.arguments, **subject.call(built)}
    assert criterion.accepts(left, answer)
    for operand in {e.operand for e in answer.expectations}:
        spoilt = {**left, operand: left[operand] * 100}
        assert criterion.accepts(spoilt, answer) == (role(operand) not in criterion.rules), operand


def row(fault: str, kind: str = "nominal", **rejected: list[int]) -> Row:
    return Row(fault, "verify", kind, 3, {**dict.fromkeys(JUDGES, ()), **rejected})


def test_a_fault_seen_only_where_the_kernel_is_refused_is_not_found() -> None:
    control = row("", FLA=[1])
    rows = [control, row("", "generated"), row("a", FLA=[1]), row("b", FLA=[0, 1])]
    assert [found(r, rows, "FLA") for r in rows[2:]] == [False, True]
    text = published_table(rows)
    assert (
        "| FLA | RMS ratio 0.005 of output and state, or largest error 1e-6 | 0 of 0 | 0 of 3 | "
        in text
    )
    assert "| 1 of 2 | 1 of 3 |" in text
    assert "Not found by our comparison alone on the nominal cases: `a`, `b`." in text


def test_nominal_cases_are_like_common_recipes() -> None:
    cases = cases_of("verify", "nominal", 12)
    assert len(cases) > 3
    assert {(c.keys, c.gates, c.values, c.pool, c.padding) for c in cases} == {
        ("random", "mild", "unit", "dense", ())
    }
    assert all(length == c.capacity for c in cases for length in c.lengths)


def test_a_kernel_that_raises_is_refused_by_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = find("kda_mtp_verify")

    def broken(self: object, built: object) -> dict[str, torch.Tensor]:
        raise RuntimeError("no")

    case = Case(lengths=(1,), capacity=1)
    assert judge_all(subject, [case], "", "nominal").rejected[OURS] == []
    monkeypatch.setattr(type(subject), "call", broken)
    assert judge_all(subject, [case], "x", "nominal").rejected == {n: [0] for n in JUDGES}


def test_every_fault_of_a_general_operation_is_shown() -> None:
    shown = {plant.name for plant in detection.SHOWN}
    left_out = {plant.operation for plant in FAULTS if plant.name not in shown}
    assert left_out == {"contract", "drop-in"}
    assert {plant.operation for plant in detection.SHOWN} == set(ours.GENERAL)


def test_a_fault_is_done_with_when_everyone_has_found_it(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = find("kda_mtp_verify")
    cases = [Case(lengths=(1,), seed=seed) for seed in range(3)]
    control = judge_all(subject, cases, "", "nominal")
    assert (control.cases, control.rejected[OURS]) == (3, [])
    call = type(subject).call
    monkeypatch.setattr(
        type(subject), "call", lambda self, built: {"out": call(self, built)["out"] + 7.0}
    )
    assert judge_all(subject, cases, "x", "nominal", control).cases == 1


def test_what_is_left_of_the_judge_without_a_part() -> None:
    case = Case(lengths=(2, 1), capacity=2, records=("snapshots",), out_given=True, seed=5)
    subject = find("kda_mtp_verify")
    answer = expect(build(case), effective_precision(subject.claims))

    def ours(spoilt: str) -> tuple[bool, ...]:
        built = build(case)
        built.frame.snapshot()
        returned = subject.call(built)
        if spoilt:
            first = built.scratch_rows[0] if spoilt == "intermediate_ssm" else 0
            built.arguments[spoilt][first].view(-1)[0] += 1.0
        said = opinions(built, returned, answer, subject)
        return said[OURS], said[NO_FRAME], said[OUTPUT_ONLY]

    assert ours("") == (True, True, True)
    assert ours("g") == (False, True, False)
    assert ours("out") == (False, False, False)
    assert ours("intermediate_ssm") == (False, False, True)


@pytest.mark.parametrize("operation", ["verify", "commit", "conv_commit"])
def test_case_sets_give_up_what_they_say(operation: str) -> None:
    sets = {s.name: cases_of(operation, s.name, 12) for s in CASE_SETS}
    drawn = sets["generated"]
    assert all(0 < len(cases) <= len(drawn) for cases in sets.values())
    assert {c.poison for c in sets["no poison"]} == {"zeros"}
    assert {(c.values, c.keys, c.gates) for c in sets["unit values"]} == {
        ("unit", "random", "mild")
    }
    assert {c.lengths for c in sets["unit values"]} == {c.lengths for c in drawn}
    assert {c.size_k for c in sets["boundary shapes"]} <= {16, 64}
    assert set(sets["one per shape"]) <= set(drawn)
    shapes = [(c.heads, c.group, c.size_k, c.size_v, c.capacity) for c in sets["one per shape"]]
    assert len(set(shapes)) == len(shapes)


def test_the_ablation_names_what_is_lost() -> None:
    rows = [
        row(fault, s.name, **{OURS: [0] * (s.name == "generated" and fault != "")})
        for s in CASE_SETS
        for fault in ("", "a")
    ]
    text = ablation_table(rows)
    assert "| nothing: the cases as drawn | 1 of 1 | 0 of 3 |  |" in text
    assert "| value families | 0 of 1 | 0 of 3 | `a` |" in text


def test_stored_rows_are_kept_and_a_dead_process_is_found_by_everyone(tmp_path: Path) -> None:
    dies = replace(PLANTS[0], module="replay", anchor="CONV_COMMIT.validate(locals())",
                   replacement="import os\nos._exit(3)", operation="conv_commit")  # fmt: skip
    keep = tmp_path / "rows.jsonl"
    rows = detection.measure([dies], 1, 1, keep)
    mine = [r for r in rows if r.fault == dies.name]
    assert all(found(r, rows, judge) for r in mine for judge in JUDGES)
    assert len(mine) == len(CASE_SETS)
    before = keep.read_text()
    assert detection.measure([dies], 1, 1, keep) == rows
    assert keep.read_text() == before


def test_writes_between_the_markers_only(tmp_path: Path) -> None:
    document = tmp_path / "d.md"
    begin, end = detection.BEGIN.format("ablation"), detection.END.format("ablation")
    document.write_text(f"a\n{begin}\nold\n{end}\nb\n")
    replace_between(document, begin, end, "new")
    assert document.read_text() == f"a\n{begin}\n\nnew\n\n{end}\nb\n"
    document.write_text("no markers\n")
    with pytest.raises(ValueError, match="must hold the markers"):
        replace_between(document, begin, end, "new")
    assert document.read_text() == "no markers\n"


@pytest.mark.parametrize("name", ["published", "ablation"])
def test_the_document_has_its_place(name: str) -> None:
    root = Path(__file__).resolve().parent.parent
    text = (root / "docs" / "detection.md").read_text()
    assert detection.BEGIN.format(name) in text
    assert f"| {OURS} |" in text
