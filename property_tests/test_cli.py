"""The command line: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kda_verify import cli, fixtures
from kda_verify.cases.case import Case
from kda_verify.judging.judge import judge
from kda_verify.subjects import find

ONE = Case(lengths=(2,), capacity=2).to_json()


def run(*arguments: str) -> int:
    return cli.main(list(arguments))


def test_list_names_every_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--device", "cpu") == cli.EXIT_PASS
    shown = capsys.readouterr().out.replace("\n", "")
    for name in ("kda_mtp_verify", "kda_conv_commit", "fused_recurrent_kda"):
        assert name in shown


def test_replay_of_a_case_shows_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("replay", ONE, "--kernel", "kda_mtp_verify") == cli.EXIT_PASS
    shown = capsys.readouterr().out
    assert "kda_mtp_verify: pass at out[0, " in shown
    assert "stream_kernel" in shown


def test_the_replay_line_of_a_verdict_is_a_call_that_works(
    capsys: pytest.CaptureFixture[str], device: str
) -> None:
    import shlex

    verdict = judge(Case.from_json(ONE), find("kda_mtp_verify"), device)
    program, *arguments = shlex.split(verdict.replay)
    assert program == "kda-verify"
    assert run(*arguments) == cli.EXIT_PASS
    assert verdict.where in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", ONE], "`--kernel` must name a kernel"),
        (["replay", ONE, "--kernel", "mine"], "`kernel` must be one of kda_mtp_verify"),
        (["replay", "{}}", "--kernel", "kda_mtp_verify"], "`case` must be JSON"),
        (["replay", '{"heads": 0}', "--kernel", "kda_mtp_verify"], "`heads` must be a positive"),
        (["replay", "nowhere.json"], "`case` must be a fixture file or JSON"),
        (["run", "mine"], "`kernel` must be one of"),
    ],
)
def test_mistakes_end_with_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == cli.EXIT_USAGE
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said


def test_unknown_option_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("run", "--cases", "none")
    assert ended.value.code == cli.EXIT_USAGE
    assert "must be a positive integer, got 'none'" in capsys.readouterr().err


def test_a_case_that_nothing_here_can_judge_ends_with_code_3(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = run("replay", ONE, "--kernel", "kda_replay_commit")
    assert code == cli.EXIT_NOTHING
    assert "not-supported" in capsys.readouterr().out


def test_run_reports_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "deep" / "report.json"
    code = run(
        "run", "kda_conv_commit", "--cases", "4", "--workers", "1", "--json", str(report)
    )  # fmt: skip
    assert code == cli.EXIT_PASS
    data = json.loads(report.read_text())
    (subject,) = data["subjects"]
    assert subject["kernel"] == "kda_conv_commit"
    assert subject["verdict"] == "pass"
    assert subject["kernels_that_ran"]["conv_commit_kernel"] == subject["outcomes"]["pass"]
    assert data["environment"]["torch"]
    assert "conv_commit" in capsys.readouterr().out


def test_a_failure_is_shrunk_stored_and_ends_with_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runner, fed by a kernel with a planted fault, in this process."""
    from kda_verify import run as runner
    from kda_verify.faults.planted import Planted
    from kda_verify.plan import Batch, Draws

    planted = Planted(find("kda_replay_commit"), "no carry")
    monkeypatch.setattr(runner, "find", lambda name: planted)
    draws = Draws("kda_replay_commit", "commit_cases", 10)
    verdicts = runner.judge_batch(Batch(draws, seed=1), "cpu")
    assert verdicts[-1].failed
    assert all(not v.failed for v in verdicts[:-1])
    smallest = verdicts[-1].case
    assert (smallest.heads, smallest.group, len(smallest.lengths)) == (1, 1, 1)
    monkeypatch.setattr(fixtures, "REGRESSIONS", tmp_path, raising=True)
    path = fixtures.write_regression(verdicts[-1])
    assert fixtures.load(path).case == smallest


def test_the_smallest_faults_can_be_left_out(tmp_path: Path) -> None:
    """The verdicts are the same; only what each case would have shown is not looked for."""
    reports = []
    for more in ([], ["--no-sensitivity"]):
        file = tmp_path / f"report-{len(more)}.json"
        call = ("run", "kda_conv_commit", "--cases", "5", "--workers", "1", "--json", str(file))
        assert run(*call, "--device", "cpu", *more) == cli.EXIT_PASS
        reports.append(json.loads(file.read_text())["subjects"][0])
    whole, less = reports
    assert whole["smallest_fault"]
    assert less["smallest_fault"] == []
    assert less["regions"] == whole["regions"]
    assert less["worst"]["ratios"] == whole["worst"]["ratios"]
