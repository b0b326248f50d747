"""The benchmark's record: of one run, written whole, rendered, drawn; and its command line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import measure, picture, record, rows, table
from benchmarks.record import NOT_TIMED, TIMED, Entry, Record, Result
from benchmarks.rows import Row, traffic
from benchmarks.timing import Timing
from benchmarks.verdict import RowVerdict

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RUN: dict[str, Any] = {
    "id": "a" * 32, "device": "a GPU", "torch": "2", "triton": "3", "commit": "c", "date": "d",
    "seed": 0,
}  # fmt: skip


def entry(peer: str, median: float | None, **other: Any) -> Entry:
    launches = ({"kernel": "scan_kernel", "programs": 4, "constants": {"num_warps": 4}},)
    verdict = RowVerdict("pass", 0.25, "out[0]", "", "8 of 8 requests", 1.0, launches)
    given: dict[str, Any] = {
        "contender": peer, "peer": peer, "partial": False, "note": "", "status": TIMED,
        "verdict": verdict, "timing": Timing(median or 1.0, 9.0, 11.0, 3, 20, 10, (9.5, 10.5)),
    }  # fmt: skip
    if median is None:
        given |= {"status": NOT_TIMED, "reason": "incorrect at out[0]", "timing": None}
    return Entry(**{**given, **other})


def result(row: Row, *entries: Entry) -> Result:
    return Result(row, RUN["id"], RUN["device"], traffic(row), 5.0, 0, 1.5, entries)


def synthetic() -> Record:
    """A record with a row won, a row lost, a partial peer alone, and a row that failed."""
    log = Record(
        dict(RUN), {"bandwidth_bytes_per_second": 4e12, "smallest_kernel": {"median": 2.0}}
    )
    log.not_run = {"fla": "it is not installed"}
    log.host = {"verify: whole call": 100.0}
    shapes = [Row("ring", 12, 8, n) for n in (1, 8)]
    partial = entry("fla", 3.0, partial=True, note="no windows")
    log.add(result(shapes[0], entry("ours", 10.0), entry("slow", 40.0), entry("sglang", 20.0)))
    log.add(result(shapes[1], entry("ours", 10.0), entry("sglang", 4.0), partial))
    log.add(result(Row("snapshot", 12, 8, 1), entry("ours", 10.0), entry("bad", None), partial))
    failed = RowVerdict("incorrect", 7.0, "out[1]", "expected 1", "1 of 1 requests")
    log.add(result(Row("commit", 96, 1, 1), entry("ours", None, verdict=failed)))
    log.not_reached = ["ring-H96-L8-N128"]
    return log


def text_of(log: Record) -> str:
    from rich.console import Console

    console = Console(width=250, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table.table(log))
    for shown in log.results:
        console.print(table.line(shown))
    for line in table.footer(log):
        console.print(line, markup=False)
    return console.export_text()


def test_the_best_whole_peer_is_compared() -> None:
    first, second, third, fourth = synthetic().results
    assert (first.fraction, first.ratio) == (0.5, 2.0)
    assert first.best() == first.entries[2]
    assert second.ratio == 0.4
    assert third.best() is None
    assert third.ratio is None
    assert third.best(partial=True) == third.entries[2]
    assert (fourth.fraction, fourth.ratio) == (None, None)


def test_the_text_says_all_of_it() -> None:
    text = text_of(synthetic())
    for expected in (
        "ring-H12-L8-N1", "2.00", "0.40", "9.0-11.0", "50%", "pass 0.250", "scan (4 warps)",
        "commit-H96-L1-N1: ours not timed: incorrect at out[0]",
        "sglang; pass 0.250 on 8 of 8 requests",
        "snapshot-H12-L8-N1: bad not timed: incorrect at out[0]",
        "fla, no windows: 3.0 us (less work, not compared)", "fla: not run: it is not installed",
        "not reached in the time given: ring-H96-L8-N128", "4.00 TB/s", "smallest kernel",
        "host, verify: whole call: 100 us",
    ):  # fmt: skip
        assert expected in text, expected


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    log = synthetic()
    log.save(tmp_path / "r.json")
    assert record.load(tmp_path / "r.json") == log
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize(("name", "value"), [("run", "b" * 32), ("device", "another GPU")])
def test_rows_of_two_runs_are_no_record(tmp_path: Path, name: str, value: str) -> None:
    log = synthetic()
    with pytest.raises(ValueError, match=f"ring-H12-L8-N1 must have {name} 'a.*', got '{value}'"):
        log.add(replace(log.results[0], **{name: value}))  # type: ignore[arg-type]
    data = log.to_dict()
    data["rows"][2][name] = value
    (tmp_path / "r.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="`rows` must all be of one run: snapshot-H12-L8-N1"):
        record.load(tmp_path / "r.json")
    assert command.main(["--render", str(tmp_path / "r.json")]) == command.EXIT_USAGE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "`render` must be a readable file"),
        ("{", "`render` must be JSON"),
        ("[]", "`render` must be a record of format 1, got 'list'"),
        ('{"format": 0}', "`render` must be a record of format 1, got 0"),
        ('{"format": 1}', "`render` must be a whole record, got KeyError: 'run'"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        record.load(tmp_path / "r.json")


def test_rendering_measures_nothing_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic().save(tmp_path / "r.json")
    arguments = ["--render", str(tmp_path / "r.json"), "--picture", str(tmp_path / "p.png")]
    # One row of it failed.
    assert command.main(arguments) == command.EXIT_FAIL
    assert "sglang" in capsys.readouterr().out
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_has_a_panel_per_operation_and_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path: drawn.append(self))
    picture.draw(synthetic(), Path("p.svg"))
    titles = [axes.get_title() for axes in drawn[0].axes]
    assert titles == [f"{o}, H = {h}" for o in ("ring", "snapshot", "commit") for h in (12, 96)]
    ring = drawn[0].axes[0]
    assert (ring.get_xscale(), ring.get_yscale()) == ("log", "log")
    curves = {line.get_label(): list(line.get_ydata()) for line in ring.lines}  # type: ignore[arg-type]
    assert curves == {
        "ours, L = 8": [10.0, 10.0],
        "best peer, L = 8": [20.0, 4.0],
        "limit, L = 8": [5.0, 5.0],
    }
    # No row is a ring at H = 96.
    assert list(drawn[0].axes[1].lines) == []


def test_a_picture_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"`picture` must end in .png, .svg, .pdf, got 'a.gif'"):
        picture.check(Path("a.gif"))
    with pytest.raises(ValueError, match="`record` must hold rows"):
        picture.draw(Record(dict(RUN)), Path("a.png"))
    monkeypatch.setattr(picture, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'kda-verify\[bench\]'"):
        picture.check(Path("a.png"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="not run: there is a GPU")
def test_without_a_gpu_it_says_what_can_be_had() -> None:
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks"], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == command.EXIT_NOTHING
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "no CUDA GPU" in done.stderr
    assert "make offline" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "13"], "`heads` must be among"),
        (["--rows", "nothing"], "`rows` must match a row"),
        (["--picture", "x.gif"], "`picture` must end in"),
        (["--render", "nowhere.json"], "`render` must be a readable file"),
    ],
)
def test_mistakes_end_with_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == command.EXIT_USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert message in shown.err


@pytest.mark.parametrize("arguments", [["--minutes", "0"], ["--heads", "x"], ["--jobs", "-1"]])
def test_numbers_are_refused_by_the_parser(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == command.EXIT_USAGE


def test_the_budget_stops_before_a_row_that_may_be_late(tmp_path: Path) -> None:
    todo, now, saved = rows.quick_rows()[:5], [0.0], []

    def one(row: Row) -> Result:
        now[0] += 10.0
        return result(row, entry("ours", 1.0))

    def shown(measured: Result, done: int) -> None:
        kept = record.load(tmp_path / "r.json")
        saved.append((len(kept.results), kept.complete, done))
        assert kept.not_reached == [row.name for row in todo[done:]]

    log = Record(dict(RUN))
    measure.measure_rows(
        todo, one, log, path=tmp_path / "r.json", seconds=35.0, clock=lambda: now[0], shown=shown
    )
    # A row that took ten seconds is not begun after the twenty-fifth.
    assert saved == [(1, False, 1), (2, False, 2), (3, False, 3)]
    assert log.not_reached == [row.name for row in todo[3:]]
    assert record.load(tmp_path / "r.json") == log
    assert not log.complete
    measure.measure_rows(todo[3:], one, log := Record(dict(RUN)))
    assert log.complete
    assert not log.not_reached


def test_a_run_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything but the GPU: small rows, interpreted, on a clock that stands still."""
    from benchmarks import host_cost, inputs, limits, participants, peers_sglang, precompile, timing
    from kda_verify.subjects import base

    timed = Timing(2.0, 1.0, 3.0, 1, 1, 1)
    compiled: list[precompile.Task] = []
    for home, name, value in (
        (rows, "HEADS", (1,)), (rows, "LAYERS_HEADS", 1), (rows, "LAYERS", 2),
        (rows, "TOKENS", (3,)), (rows, "REQUESTS", (2,)), (inputs, "TOUCHED_BYTES", 1),
        (command, "_no_gpu", lambda: ""), (command, "_device", lambda: DEVICE),
        (command, "_free_bytes", lambda device: 1 << 40), (base, "interpreted", lambda: False),
        (limits, "measure", lambda device: limits.Limits(4e12, timed, timed)),
        (host_cost, "measure", lambda: {"verify: whole call": 123.0}),
        (timing, "replay_time", lambda calls, bytes_each, reset: timed),
        (precompile, "compile_all", lambda todo, *_: compiled.extend(todo)),
        (peers_sglang, "MODULES", ("sglang_that_is_not_there",)),
        (participants.peers_fla, "contenders", list),
    ):  # fmt: skip
        monkeypatch.setattr(home, name, value)
    monkeypatch.delenv(peers_sglang.VARIABLE, raising=False)
    path = tmp_path / "r.json"
    assert command.main(["--json", str(path), "--seed", "7"]) == command.EXIT_PASS
    log = record.load(path)
    assert [r.row.operation for r in log.results] == list(rows.OPERATIONS)
    assert log.complete
    assert {r.ours.status for r in log.results} == {TIMED}
    assert all(r.ours.verdict is not None and r.ours.verdict.passed for r in log.results)
    assert {r.seed for r in log.results} == {7}
    assert log.limits["after"]["bandwidth_bytes_per_second"] == 4e12
    assert "sglang_that_is_not_there" in log.not_run["sglang"]
    for key in ("id", "device", "torch", "triton", "date", "commit", "seed"):
        assert key in log.run, key
    assert [name for _, name in compiled] == ["ours"] * len(rows.OPERATIONS)
    shown = capsys.readouterr().out
    assert "sglang: not run: sglang_that_is_not_there does not import" in shown
    assert "host, verify: whole call: 123 us" in shown
    assert shown.count("ring-H1-L3-N2") == 2  # as it was measured, and in the table
    # No time: nothing is measured, and what was left out is named.
    assert command.main(["--json", str(path), "--minutes", "1e-9"]) == command.EXIT_FAIL
    assert record.load(path).not_reached == [r.row.name for r in log.results]
    monkeypatch.setattr(base, "interpreted", lambda: True)
    assert command.main([]) == command.EXIT_USAGE
    assert "`TRITON_INTERPRET` must be unset" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: torch sees no CUDA GPU")
def test_rows_are_timed_on_a_gpu(tmp_path: Path) -> None:
    root, path = Path(__file__).resolve().parent.parent, tmp_path / "r.json"
    names = "ring-H12-L4-N8,snapshot-H12-L4-N8,commit-mixed-H12-L4-N8"
    arguments = ["--rows", names, "--peers", "none", "--jobs", "1", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == command.EXIT_PASS, done.stdout + done.stderr
    for result in record.load(path).results:
        timing = result.ours.timing
        assert timing is not None
        assert 0 < timing.low <= timing.median <= timing.high
