"""The benchmark's verdicts: what does not pass is not timed, and every check can fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import inputs as operands
from benchmarks import limits, measure, peers_fla, peers_sglang, rows
from benchmarks.contenders import PEER_TOLERANCE, Call, Contender, NotRun
from benchmarks.inputs import SPARE, Inputs, draw
from benchmarks.ours import Ours
from benchmarks.record import NOT_SUPPORTED, NOT_TIMED, TIMED, Entry, Result
from benchmarks.rows import Row, bytes_moved
from benchmarks.timing import Timing
from benchmarks.verdict import Judge

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VERIFY, MIXED = Row("ring", 1, 3, 2), Row("commit-mixed", 1, 3, 3)
SMALL = (VERIFY, Row("snapshot", 2, 1, 2), Row("commit", 1, 2, 2), MIXED)


@pytest.mark.parametrize("row", SMALL, ids=lambda row: row.name)
def test_ours_passes_and_leaves_the_operands(row: Row) -> None:
    inputs = draw(row, DEVICE, 3)
    before = {name: t.clone() for name, t in inputs.inputs().items()}
    verdict = Judge(inputs).judge(Ours())
    assert verdict.passed, verdict.reason
    assert verdict.judged == f"{row.requests} of {row.requests} requests"
    assert 0 < verdict.ratio <= verdict.tolerance == 1
    kernels = [launch["kernel"] for launch in verdict.launches]
    ends = {"ring": "stream_kernel", "snapshot": "scan_kernel"}
    assert kernels[-1] == ends.get(row.operation, "commit_kernel")
    assert all(launch["constants"]["num_warps"] > 0 for launch in verdict.launches)
    for name, tensor in before.items():
        assert torch.equal(tensor, inputs.built.arguments[name]), name


def test_a_commit_of_many_layers_is_judged_on_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LAYERS", 4)
    inputs = draw(Row("commit-layers", 1, 1, 2), DEVICE, 0)
    verdict = Judge(inputs).judge(Ours())
    assert verdict.passed, verdict.reason
    assert verdict.judged == "2 of 2 requests in 3 of 4 layers"

    def spoil(inputs: Inputs) -> None:
        inputs.built.arguments["checkpoint_state"][3, inputs.built.slots[1], 0, 5, 5] += 1

    assert "incorrect at checkpoint_state" in Judge(inputs).judge(Wrong(spoil)).reason


class Wrong(Ours):
    """Ours, with something done to the operands after the call (or before)."""

    def __init__(self, after: Callable[[Inputs], None], name: str = "ours") -> None:
        self.name, self.after = name, after

    def bind(self, inputs: Inputs) -> Call:
        right = super().bind(inputs)

        def call() -> Mapping[str, Tensor]:
            right()
            self.after(inputs)
            return {}

        return call


def arguments(inputs: Inputs) -> dict[str, Any]:
    return inputs.built.arguments


def free(inputs: Inputs, listed: list[int]) -> int:
    return next(s for s in range(inputs.row.requests + SPARE) if s not in listed)


FAULTS: dict[str, tuple[Row, Callable[[Inputs], None], str]] = {
    "zeros": (VERIFY, lambda i: arguments(i)["out"].zero_(), "incorrect at out["),
    "unwritten": (VERIFY, lambda i: arguments(i)["out"].fill_(torch.nan), "non-finite at out["),
    "window": (
        VERIFY,
        lambda i: arguments(i)["intermediate_conv_k"][i.built.scratch_rows[1], 2, 7, 1].add_(1),
        "incorrect at intermediate_conv_k[",
    ),
    "ring": (
        VERIFY,
        lambda i: arguments(i)["replayssm_g"][i.built.slots[0], 0, 1].mul_(1.001),
        "incorrect at replayssm_g[",
    ),
    "snapshot": (
        SMALL[1],
        lambda i: arguments(i)["intermediate_ssm"].mul_(1.001),
        "incorrect at intermediate_ssm[",
    ),
    "state": (
        VERIFY,
        lambda i: arguments(i)["recurrent_state"][0, 0, 0, 0].add_(1),
        "wrote-outside at recurrent_state",
    ),
    "spare ring": (
        VERIFY,
        lambda i: arguments(i)["replayssm_beta"][free(i, i.built.slots)].zero_(),
        "wrote-outside at replayssm_beta",
    ),
    "spare row": (
        VERIFY,
        lambda i: arguments(i)["intermediate_conv_v"][free(i, i.built.scratch_rows)].zero_(),
        "wrote-outside at intermediate_conv_v",
    ),
    "commit": (
        MIXED,
        lambda i: arguments(i)["checkpoint_state"][i.built.slots[0]].mul_(1.001),
        "incorrect at checkpoint_state[",
    ),
    "rejected": (
        MIXED,
        lambda i: arguments(i)["checkpoint_state"][i.built.slots[i.row.accepted.index(0)]].add_(1),
        "wrote-outside at checkpoint_state",
    ),
    "raises": (MIXED, lambda i: arguments(i)["nothing"], "raised: KeyError: 'nothing'"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    row, after, expected = FAULTS[fault]
    inputs = draw(row, DEVICE, 1)
    judge = Judge(inputs)
    assert expected in judge.judge(Wrong(after)).reason
    # The next contender gets the operands as they were.
    assert judge.judge(Ours()).passed


def test_a_tolerance_is_not_another_class() -> None:
    """What a peer may err by still shows a small fault."""

    def nearly(inputs: Inputs) -> None:
        arguments(inputs)["intermediate_ssm"].mul_(1 + 1e-4)

    inputs, peer = draw(SMALL[1], DEVICE, 1), Wrong(nearly, "peer")
    peer.tolerance = PEER_TOLERANCE
    judge = Judge(inputs)
    found = judge.judge(peer)
    assert "incorrect at intermediate_ssm[" in found.reason
    assert found.ratio > PEER_TOLERANCE
    peer.tolerance = found.ratio * 1.01
    assert judge.judge(peer).passed


def test_memory_that_is_allocated_holds_no_answer() -> None:
    seen: list[bool] = []

    def look(inputs: Inputs) -> None:
        seen.append(bool(torch.empty(64, device=DEVICE).isnan().all()))

    assert Judge(draw(VERIFY, DEVICE, 0)).judge(Wrong(look)).passed
    assert seen == [True]


def test_requests_are_judged_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import verdict

    monkeypatch.setattr(verdict, "SLICE_BYTES", 1)
    inputs = draw(Row("ring", 1, 1, 3), DEVICE, 2)
    judge = Judge(inputs)
    assert judge.judge(Ours()).passed
    for n in range(3):
        spoil = Wrong(lambda i, n=n: arguments(i)["out"][0, n].mul_(2))  # type: ignore[misc]
        assert f"incorrect at out[0, {n}, 0, " in judge.judge(spoil).reason


def test_peers_are_judged_on_some_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row("ring", 1, 1, 4)
    peer = Wrong(lambda i: arguments(i)["out"][0, 3].mul_(2), "peer")
    peer.judged_requests = 3
    found = Judge(draw(row, DEVICE, 2)).judge(peer)
    assert found.judged == "3 of 4 requests"
    # The last is always among them.
    assert "incorrect at out[0, 3, 0, " in found.reason


def test_an_answer_without_a_kernel_is_none() -> None:
    class Fallback(Ours):
        def bind(self, inputs: Inputs) -> Call:
            return lambda: {}

    assert Judge(draw(VERIFY, DEVICE, 0)).judge(Fallback()).outcome == "no-kernel"


class FakeTimer:
    """Counts the calls it is given, makes the first, and says it took one microsecond."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.states: list[Tensor] = []

    def __call__(
        self, calls: Any, bytes_each: int, reset: Callable[[], None]
    ) -> Timing:  # fmt: skip
        self.calls.append(len(calls))
        for call in calls:
            call()
        reset()
        return Timing(1.0, 1.0, 1.0, 1, len(calls), len(calls))


def measured(row: Row, *contenders: Contender, **options: Any) -> tuple[Result, FakeTimer]:
    fake = FakeTimer()
    timed = Timing(1.0, 1.0, 1.0, 1, 1, 1)
    found = measure.measure_row(
        row, contenders, run={"id": "r", "device": "d", "seed": 5},
        limits=limits.Limits(4e12, timed, timed), timer=fake, device=DEVICE, **options,
    )  # fmt: skip
    return found, fake


def by_name(found: Result) -> dict[str, Entry]:
    return {entry.contender: entry for entry in found.entries}


class Peer(Ours):
    """Ours under another name."""

    name = peer = "peer"


def zeros(inputs: Inputs) -> None:
    arguments(inputs)["out"].zero_()


def test_what_passes_is_timed_on_distinct_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "TOUCHED_BYTES", 2 * bytes_moved(VERIFY) + 1)
    bound: list[int] = []

    class Watched(Ours):
        def bind(self, inputs: Inputs) -> Call:
            bound.append(arguments(inputs)["recurrent_state"].data_ptr())
            return super().bind(inputs)

    found, fake = measured(VERIFY, Watched(), Peer())
    assert fake.calls == [3, 3]
    # One is bound to be judged, then three to be timed, the judged one among them.
    assert len(bound) == 4
    assert len(set(bound)) == 3
    assert [entry.status for entry in found.entries] == [TIMED, TIMED]
    assert found.limit == bytes_moved(VERIFY) / 4e12 * 1e6
    assert (found.run, found.device, found.seed) == ("r", "d", 5)


def test_where_ours_fails_nobody_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "TOUCHED_BYTES", 1)
    found, fake = measured(VERIFY, Wrong(zeros), Peer())
    assert fake.calls == []
    assert found.ours.status == NOT_TIMED
    assert found.ours.reason.startswith("incorrect at out[")
    peer = by_name(found)["peer"]
    assert (peer.status, peer.reason) == (NOT_TIMED, "ours did not pass on this row")
    assert found.fraction is None


def test_a_wrong_peer_is_not_timed_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "TOUCHED_BYTES", 1)
    wrong = Wrong(zeros, "wrong peer")
    wrong.peer = "wrong"

    class Unable(Peer):
        def refusal(self, row: Row) -> str:
            return "it is a commit"

    found, fake = measured(VERIFY, Ours(), wrong, Unable())
    assert fake.calls == [1]
    entries = by_name(found)
    assert entries["ours"].status == TIMED
    assert entries["wrong peer"].status == NOT_TIMED
    assert entries["wrong peer"].reason.startswith("incorrect at out[")
    assert (entries["peer"].status, entries["peer"].reason) == (NOT_SUPPORTED, "it is a commit")
    assert found.ratio is None


def test_what_cannot_be_timed_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "TOUCHED_BYTES", 1)
    found, fake = measured(VERIFY, Ours(), free_bytes=lambda: 0)
    assert fake.calls == []
    assert "GiB, has 0" in found.ours.reason

    def broken(*given: Any) -> Timing:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(FakeTimer, "__call__", broken)
    found, _ = measured(VERIFY, Ours())
    assert found.ours.reason == "RuntimeError: operation not permitted when stream is capturing"
    assert found.ours.verdict is not None
    assert found.ours.verdict.passed


def test_states_of_commits_are_put_back() -> None:
    sets = [draw(MIXED, DEVICE, seed) for seed in (1, 2)]
    before = [arguments(inputs)["checkpoint_state"].clone() for inputs in sets]
    reset = measure.restore(sets)
    for inputs in sets:
        Ours().bind(inputs)()
    changed = [arguments(inputs)["checkpoint_state"] for inputs in sets]
    assert not any(torch.equal(a, b) for a, b in zip(before, changed, strict=True))
    reset()
    assert all(torch.equal(a, b) for a, b in zip(before, changed, strict=True))


def test_estimates_of_memory_cover_what_is_built() -> None:
    for row in SMALL:
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
                    for t in draw(row, DEVICE, 0).tensors().values()}  # fmt: skip
        assert operands.allocated_bytes(row) >= sum(storages.values()), row.name


def test_a_folder_without_sglang_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="`sglang` must be a folder that holds sglang/, got"):
        peers_sglang.contenders(tmp_path)
    monkeypatch.setenv(peers_sglang.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="`sglang` must be a folder that holds sglang/, got"):
        peers_sglang.contenders()


def test_peers_that_do_not_import_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    monkeypatch.delenv(peers_sglang.VARIABLE, raising=False)
    monkeypatch.setattr(peers_sglang, "MODULES", ("sglang_that_is_not_there.fused",))
    found = peers_sglang.contenders()
    assert isinstance(found, NotRun)
    assert "No module named 'sglang_that_is_not_there'" in found.reason

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(peers_fla, "version", missing)
    found = peers_fla.contenders()
    assert isinstance(found, NotRun)
    assert found.reason == "fla-core is not installed: pip install 'kda-verify[peers]'"


def plain_norm(
    o: Tensor, gate: Tensor, weight: Tensor, bias: None, *, activation: str, eps: float
) -> Tensor:
    """The gated norm; FLA's own is autotuned, which needs a GPU. Truncates, as a kernel here."""
    x = o.float()
    y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight * gate.float().sigmoid()
    return (y.view(torch.int32) & -65536).view(torch.float32).to(o.dtype)


def loud_norm(*given: Any, **options: Any) -> Tensor:
    return plain_norm(*given, **{**options, "eps": 0.5})


@pytest.mark.skipif(torch.cuda.is_available(), reason="not run: compiled, FLA's own norm is judged")
def test_fla_passes_what_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = peers_fla.contenders()
    if isinstance(found, NotRun):
        pytest.skip(f"not run: {found.reason}")
    import fla.modules.norm.fused_norm_gate as norm

    monkeypatch.setattr(norm, "rms_norm_gated", plain_norm)
    row = Row("snapshot", 1, 2, 2)
    verdict = Judge(draw(row, DEVICE, 0)).judge(found[0])
    assert verdict.passed, verdict.reason
    assert verdict.ratio <= 1
    monkeypatch.setattr(norm, "rms_norm_gated", loud_norm)
    assert "incorrect at out[" in Judge(draw(row, DEVICE, 0)).judge(found[0]).reason
    assert found[0].partial
    assert found[0].refusal(VERIFY) == "it has no rings"
    assert found[0].refusal(MIXED) == "it has no replay commit"


@pytest.mark.parametrize("operation", ["ring", "snapshot"])
def test_sglang_passes_interpreted(operation: str) -> None:
    found = peers_sglang.contenders()
    if isinstance(found, NotRun):
        pytest.skip(f"not run: {found.reason}")
    assert peers_sglang.identity()
    row = Row(operation, 1, 3, 2)
    judge = Judge(draw(row, DEVICE, 0))
    # The widest tile and the pair; the narrow tiles take the interpreter many times as long.
    for contender in [c for c in found if not c.refusal(row)][-2:]:
        verdict = judge.judge(contender)
        assert verdict.passed, verdict.reason
        assert verdict.ratio <= 1
