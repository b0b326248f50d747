"""Mutation: what is left out, what is drawn, what is noticed, and equivalents that are stale."""

from __future__ import annotations

import ast
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kda_verify.faults.gallery import Entry
from kda_verify.mutation import run, score, trees
from kda_verify.mutation.__main__ import main
from kda_verify.mutation.mutants import (
    GROUPS,
    LEFT_OUT,
    OPERATIONS,
    ROOT,
    Mutant,
    Rule,
    sample,
    sites,
    wanted,
)

pytest.importorskip(
    "cosmic_ray", reason="cosmic-ray makes the mutants; it comes with the dev extra"
)

SOURCE = """
@cache(maxsize=3)
def f(x: int | None, y: list[2] = 4) -> int | str:
    a: int | None = 5 + x
    Kind = int | str
    p = tl.multiple_of(a, 6)
    g(num_warps=7, other=8)
    for u, v in zip(x, y, strict=True):
        raise ValueError(f"{9 + u}" + str(10))
    return 11

def g(c, /, d=12, *, e: int = 13): ...
def h(*rows, k=14): ...
"""


def places(text: str) -> tuple[int, int]:
    line = next(n for n, row in enumerate(SOURCE.splitlines(), 1) if text in row)
    return line, SOURCE.splitlines()[line - 1].index(text)


LEFT = ("/, d", "*, e", "3)", "| None,", "2]", "| str:", "6)", "7,", "True", "9 +", "10)")
KEPT = ("12", "13", "14", "4)", "5 + x", "8)", "11")


@pytest.mark.parametrize("text", [*LEFT, *KEPT])
def test_the_rule_leaves_out_what_means_nothing(text: str) -> None:
    rule = Rule()
    rule.visit(ast.parse(SOURCE))
    assert rule.holds(places(text)) == (text in LEFT)


@pytest.mark.parametrize(
    ("operator", "made"),
    [
        ("core/ReplaceBinaryOperator_Add_Sub", True),
        ("core/ReplaceBinaryOperator_Add_LShift", False),
        ("core/ReplaceComparisonOperator_Lt_LtE", True),
        ("core/ReplaceComparisonOperator_Lt_Is", False),
        ("core/ReplaceComparisonOperator_Is_IsNot", True),
        ("core/NumberReplacer", True),
        ("core/RemoveDecorator", False),
    ],
)
def test_operators(operator: str, made: bool) -> None:
    assert wanted(operator) == made


def test_files_that_are_left_out_exist() -> None:
    assert all((ROOT / path).is_file() and reason for path, reason in LEFT_OUT.items())


def test_every_module_of_the_kernels_is_asked_for_or_left_out() -> None:
    modules = {path.stem for path in (ROOT / "kda_kernels").glob("*.py")}
    left_out = {Path(path).stem for path in LEFT_OUT if path.count("/") == 1}
    assert modules == set(OPERATIONS) | left_out


def test_the_sample_is_seeded_stratified_and_nested() -> None:
    every = sites()
    assert {site.path for site in every}.isdisjoint(LEFT_OUT)
    few, more, other = (sample(every, n, seed) for n, seed in ((24, 0), (48, 0), (24, 1)))
    assert more[:24] == few
    assert few != other
    share = Counter(site.group for site in every)
    for group in GROUPS:
        expected = 48 * share[group] / len(every)
        assert abs(sum(m.group == group for m in more) - expected) <= 4
    with pytest.raises(ValueError, match="`count` must be at least 1, got 0"):
        sample(every, 0, 0)


@pytest.fixture(scope="module")
def mutants() -> list[Mutant]:
    """One mutant of each kind of group that is noticed at once, and one that changes nothing."""
    every = sites()

    def first(path: str, operator: str, before: str) -> Mutant:
        mine = (s.mutant() for s in every if (s.path, s.operator) == (path, operator))
        return next(m for m in mine if m is not None and before in m.before)

    return [
        first("kda_kernels/prepare.py", "core/ReplaceBinaryOperator_Add_Sub", "entries +"),
        first("kda_ref/bounded.py", "core/ReplaceBinaryOperator_Add_Sub", "x.value + x.error"),
    ]


def test_what_is_wrong_is_noticed_and_stored(
    mutants: list[Mutant], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(trees.TESTS, "budget", ("test_bounded.py",))
    keep = tmp_path / "entries.jsonl"
    entries = run.run(mutants, 1, keep)
    assert [entries[m.name].found for m in mutants] == [True, True]
    assert [entries[m.name].found_by for m in mutants] == ["cases", "tests"]
    before = keep.read_text()
    assert run.run(mutants, 1, keep) == entries
    assert keep.read_text() == before


def test_what_changes_nothing_survives(
    mutants: list[Mutant], monkeypatch: pytest.MonkeyPatch
) -> None:
    same = replace(mutants[1], operator="same", name="mutant-same")
    monkeypatch.setattr(Mutant, "apply", lambda self, source: source + "\n")
    monkeypatch.setitem(trees.TESTS, "budget", ("test_bounded.py",))
    entry = run.run([same], 1, None)["mutant-same"]
    assert (entry.found, entry.found_by) == (False, "")


def test_what_raises_ends_no_run(mutants: list[Mutant], monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: object) -> Entry:
        raise KeyError("no such clause")

    monkeypatch.setattr(run, "run_alone", raises)
    entry = run.run(mutants[:1], 1, None)[mutants[0].name]
    assert (entry.found, entry.found_by) == (True, "raised")
    assert entry.says == "KeyError: 'no such clause'"
    assert run.current(entry, mutants[0])


def test_what_the_checks_pass_over_meets_the_tests(
    mutants: list[Mutant], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missed = Entry(mutants[0].name, "", "", "", "", "", "no check rejects it", False, 1.0)
    monkeypatch.setattr(run, "run_alone", lambda *_: missed)
    monkeypatch.setattr(trees, "_failed_test", lambda *_: ("FAILED x", 1.0))
    with pytest.raises(RuntimeError, match="the tests of kernels fail as they are: FAILED x"):
        run.run(mutants[:1], 1, None)
    answers = iter([("", 1.0), ("", 1.0), ("FAILED x - because", 1.0)])
    monkeypatch.setattr(trees, "_failed_test", lambda *_: next(answers))
    entry = run.run(mutants[:1], 1, tmp_path / "entries.jsonl")[mutants[0].name]
    assert (entry.found_by, entry.first, entry.found) == ("tests", "FAILED x", True)
    assert run.current(entry, mutants[0])
    assert not run.current(replace(entry, found_by="cases"), mutants[0])


def test_the_score_leaves_equivalents_out(mutants: list[Mutant]) -> None:
    one = Entry("", "", "", "", "tests", "", "no answer in 9 s", True, 1.0)
    entries = {
        mutants[0].name: replace(one, fault=mutants[0].name),
        mutants[1].name: replace(one, fault=mutants[1].name, found_by=""),
    }
    assert score.summary(mutants, entries, {})[1] == 0.5
    assert score.summary(mutants, entries, {mutants[1].name: "why"})[1] == 1.0


def test_equivalents_must_be_there_and_have_a_reason(mutants: list[Mutant], tmp_path: Path) -> None:
    file = tmp_path / "equivalents.json"
    mutant = mutants[1]
    entry = {"path": mutant.path, "before": mutant.before, "after": mutant.after, "reason": "it is"}
    file.write_text(json.dumps([entry]))
    assert score.equivalents(mutants, file) == {mutant.name: "it is"}
    file.write_text(json.dumps([{**entry, "reason": ""}]))
    with pytest.raises(ValueError, match="`reason` must say why"):
        score.equivalents(mutants, file)
    file.write_text(json.dumps([{**entry, "before": "x = gone"}]))
    with pytest.raises(ValueError, match="`before` must be text of kda_ref/bounded.py"):
        score.equivalents(mutants, file)
    # Those of the project are of the present source, for none of them raises.
    assert set(score.equivalents(mutants)) <= {m.name for m in mutants}


def test_a_call_that_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sample", "0"]) == 2
    assert "`count` must be at least 1, got 0" in capsys.readouterr().err
