"""What a run stores for its report, and the commands that read it: their words and exit codes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kda_verify import cli, listing
from kda_verify.cases.case import Case
from kda_verify.judging.judge import judge
from kda_verify.reporting import files, junit, page, stored
from kda_verify.reporting.outputs import BINS_PER_DECADE, OutputRatios
from kda_verify.subjects import Claims, Subject, all_subjects, find
from property_tests.any_run import RATIOS
from property_tests.test_page import example

ONE = Case(lengths=(4,), capacity=4)


@given(st.lists(st.tuples(RATIOS, st.lists(RATIOS, max_size=3), st.integers(0, 3)), min_size=1))
def test_what_is_stored_of_an_output(cases: list[tuple[float, list[float], int]]) -> None:
    outputs = OutputRatios()
    for ratio, positions, longest in cases:
        outputs.add(ratio, positions, longest)
    told = outputs.to_dict("out")
    ratios = [ratio for ratio, _, _ in cases]
    assert told["worst"] == max(ratios)
    assert sum(told["bins"].values()) + told["exact"] + told["unbounded"] == len(cases)
    for b, count in told["bins"].items():
        low, high = (10 ** (int(b) / BINS_PER_DECADE) for b in (int(b), int(b) + 1))
        inside = [r for r in ratios if 0 < r < math.inf and low * 0.999 <= r <= high * 1.001]
        assert len(inside) >= count
    for place, worst in enumerate(told["by_position"]):
        there = [positions[place] for _, positions, _ in cases if len(positions) > place]
        assert worst == pytest.approx(max(there), rel=1e-3)
    for longest, worst in told["by_longest_request"].items():
        assert worst == pytest.approx(max(r for r, _, n in cases if str(n) == longest), rel=1e-3)


@dataclass(frozen=True)
class Late:
    """A verify that is wrong from one token on."""

    subject: Subject
    token: int
    name: str = "late"

    @property
    def operation(self) -> str:
        return self.subject.operation

    @property
    def claims(self) -> Claims:
        return self.subject.claims

    def unavailable(self) -> str:
        return ""

    def call(self, built: Any) -> dict[str, Tensor]:
        returned = self.subject.call(built)
        returned["out"][:, self.token :] += 1.0
        return returned


@pytest.mark.parametrize("token", range(4))
def test_the_error_is_stored_where_it_is(token: int, device: str) -> None:
    right = judge(ONE, find("kda_mtp_verify"), device).positions["out"]
    wrong = judge(ONE, Late(find("kda_mtp_verify"), token), device).positions["out"]
    assert len(right) == len(wrong) == 4
    assert [a == b for a, b in zip(right, wrong, strict=True)] == [n < token for n in range(4)]
    assert [ratio > 1 for ratio in wrong] == [n >= token for n in range(4)]


def test_positions_are_those_of_requests_and_leave_out_what_is_exact(device: str) -> None:
    case = Case(lengths=(1, 0, 3), capacity=3, padding=(1,), slack_rows=9, records=("windows",))
    verdict = judge(case, find("kda_mtp_verify"), device)
    assert {name: len(p) for name, p in verdict.positions.items()} == {"out": 3}
    assert max(verdict.positions["out"]) == verdict.ratios["out"]
    assert judge(Case(operation="conv_commit"), find("kda_conv_commit"), device).positions == {}


def run(*arguments: str | Path) -> int:
    return cli.main([str(a) for a in arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(stored.text(example()))
    return path


def test_report_writes_what_is_asked_and_ends_as_its_run(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html, xml = file.with_suffix(".html"), file.parent / "deep" / "run.xml"
    assert run("report", file, "--html", html, "--junit", xml) == cli.EXIT_FAIL
    assert html.read_text() == page.render(example(), "run.json")
    assert xml.read_text() == junit.render(example())
    said = capsys.readouterr().out
    assert "mine: incorrect, 1 cases, worst ratio 4.1e+03 at out[0, 1]" in said
    assert not list(file.parent.glob(".*.part"))
    passing = example()
    passing["subjects"] = passing["subjects"][:1]
    file.write_text(stored.text(passing))
    assert run("report", file) == cli.EXIT_PASS
    file.write_text(stored.text({**passing, "subjects": []}))
    assert run("report", file) == cli.EXIT_NOTHING


def test_report_says_what_an_older_run_lacks(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = example()
    for subject in old["subjects"]:
        del subject["outputs"]
    file.write_text(json.dumps(old))
    assert run("report", file, "--html", file.with_suffix(".html")) == cli.EXIT_FAIL
    assert "missing in" in (said := capsys.readouterr().out)
    assert said.count("outputs") == 1


def test_diff_ends_with_1_where_the_later_run_is_worse(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = example()
    worse["subjects"][0]["verdict"] = "raised"
    other = file.with_name("later.json")
    other.write_text(stored.text(worse))
    assert run("diff", file, other) == cli.EXIT_FAIL
    assert "worse  kda_mtp_verify: verdict pass -> raised" in capsys.readouterr().out
    assert run("diff", other, file) == cli.EXIT_PASS
    assert run("diff", file, file) == cli.EXIT_PASS
    assert "nothing worse, 0 changes" in capsys.readouterr().out
    other.write_text(stored.text({**worse, "subjects": worse["subjects"][2:]}))
    assert run("diff", other, other) == cli.EXIT_NOTHING


def test_explain_writes_a_script_and_never_over_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, tensors = tmp_path / "show.py", tmp_path / "show.pt"
    call = ("explain", ONE.to_json(), "--kernel", "kda_mtp_verify", "--script", script)
    assert run(*call, "--device", "cpu") == cli.EXIT_PASS
    assert "requests:  0: 4 tokens" in capsys.readouterr().out
    written = script.read_text(), tensors.read_bytes()
    tensors.write_bytes(b"mine")
    script.unlink()
    assert run(*call) == cli.EXIT_USAGE
    assert "show.pt exists; --force replaces it" in capsys.readouterr().err
    assert not script.exists()
    assert run(*call, "--device", "cpu", "--force") == cli.EXIT_PASS
    assert (script.read_text(), tensors.read_bytes()) == written


def test_explain_ends_as_its_verdict(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    assert run("explain", ONE.to_json()) == cli.EXIT_PASS
    call = ("explain", ONE.to_json(), "--kernel", "kda_replay_commit", "--script", script)
    assert run(*call) == cli.EXIT_NOTHING
    assert not script.exists()


def spoilt(edit: Callable[[dict[str, Any]], object]) -> str:
    data = example()
    edit(data)
    return json.dumps(data)


MISTAKES = {
    "no file": (None, "`RUN` must be a readable file, got"),
    "not JSON": ("{", "`RUN` must be JSON, got"),
    "not text": ("\udcff", "`RUN` must be JSON, got"),
    "a list": ("[]", "must be an object at the top, got []"),
    "no subjects": ("{}", "must be an object with `subjects`, got none"),
    "no verdict": (spoilt(lambda d: d["subjects"][1].pop("verdict")), "/subjects/1/verdict"),
    "a number for a text": (
        spoilt(lambda d: d["subjects"][0].update(kernel=3)), "a text at /subjects/0/kernel, got 3",
    ),
    "a truth for a number": (
        spoilt(lambda d: d["subjects"][0].update(distinct_cases=True)), "an integer at /subjects/0",
    ),
    "a text for a ratio": (
        spoilt(lambda d: d["subjects"][0]["outputs"][0].update(worst="x")), "a number or null at",
    ),
    "a kernel twice": (
        spoilt(lambda d: d["subjects"].append(d["subjects"][0])), "about different kernels, got",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_no_run_is_refused_in_one_line(
    mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, message = MISTAKES[mistake]
    path, html = tmp_path / "run.json", tmp_path / "run.html"
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert run("report", path, "--html", html) == cli.EXIT_USAGE
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
    assert not html.exists()


def test_outputs_that_cannot_be_written_are_refused_before_judging(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_judge", lambda *_: pytest.fail("judged first"))
    calls = {
        ("--html", file.parent): "`--html` must name a file, got",
        ("--junit", file / "below.xml"): "`--junit` must name a file, got",
        ("--json", file, "--html", file): "`--json` and `--html` must name different files",
    }
    for arguments, message in calls.items():
        assert run("run", "kda_conv_commit", *arguments) == cli.EXIT_USAGE
        assert message in capsys.readouterr().err
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    assert run("run", "kda_conv_commit", "--html", file.with_suffix(".html")) == cli.EXIT_USAGE
    assert "pip install 'kda-verify[report]'" in capsys.readouterr().err
    assert run("report", file, "--html", file) == cli.EXIT_USAGE


def test_a_file_is_written_whole_or_not_at_all(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    html = file.with_suffix(".html")
    html.write_text("before")

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ValueError, match="`--html` must be writable, got .*: No space left"):
        files.write(example(), {"--html": html}, "run")
    assert html.read_text() == "before"
    assert sorted(p.name for p in file.parent.iterdir()) == ["run.html", "run.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["diff", "A", "A", "--factor", "1"], "`--factor` must be over 1, got 1.0"),
        (["explain", "nowhere.json"], "`case` must be a fixture file or JSON, got 'nowhere.json'"),
        (["explain", "{}", "--kernel", "mine"], "`kernel` must be one of"),
        (["explain", "{}", "--script", "a.py"], "`--kernel` must name a kernel"),
        (["explain", "{}", "--script", "a.txt"], "`--script` must name a .py file, got a.txt"),
        (
            ["explain", '{"operation": "verify"}', "--kernel", "emulated.chunked",
             "--script", "never.py"],
            "`kernel` must be a function of a package, got emulated.chunked",
        ),
    ],
)  # fmt: skip
def test_mistakes_end_with_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == cli.EXIT_USAGE
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said


def test_list_says_what_is_claimed_and_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    fla = find("fla.fused_recurrent_kda")
    assert "softplus without its tail" in listing.claimed(fla.claims)
    assert "conv False only" in listing.claimed(fla.claims)
    assert "spreads NaN by token" in listing.claimed(fla.claims)
    monkeypatch.setattr(type(fla), "unavailable", lambda self: "it is not installed")
    assert listing.here(fla, "cpu") == "cannot run: it is not installed"
    assert listing.here(find("emulated.chunked"), "cpu") == "can run: torch on cpu"
    for subject in all_subjects():
        claimed = listing.claimed(subject.claims)
        for reason, _ in subject.claims.conditions:
            assert reason in claimed
        assert claimed[0] == "fp32 products"


def test_interpreted_fla_names_the_triton_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    from kda_verify.subjects import fla

    monkeypatch.setattr(fla, "interpreted", lambda: True)
    monkeypatch.setattr(fla, "version", lambda name: "3.6.0")
    reason = find("fla.fused_recurrent_kda").unavailable()
    assert reason == "interpreted FLA needs triton 3.7 or newer, got 3.6.0"
    monkeypatch.setattr(fla, "version", lambda name: "3.10.1")
    assert find("fla.fused_recurrent_kda").unavailable() == ""
