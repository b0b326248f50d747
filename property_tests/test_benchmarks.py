"""The benchmark without a GPU: its rows and bytes, its verdicts, its timer, its peers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from benchmarks import limits, precompile, rows, timing
from benchmarks.contenders import Contender
from benchmarks.inputs import SPARE, TOUCHED_BYTES, draw, set_count
from benchmarks.ours import Ours
from benchmarks.rows import Row, bytes_moved, select, traffic
from benchmarks.timing import Timing

POOLS = ("recurrent_state", "cs_", "intermediate_ssm", "intermediate_conv", "replayssm_")


def touched(row: Row) -> int:
    """Count the bytes of the tensors that were really built: of pools, the slots listed."""
    inputs = draw(row, "cpu", 0)
    total = 0
    for name, tensor in inputs.tensors().items():
        axis = 1 if row.layers > 1 and name not in ("ssm_state_indices", "accept_lens") else 0
        if name in ("checkpoint_state", "rawv", "rawk", "gk", "beta") and not row.is_verify:
            for n, count in enumerate(row.accepted):
                mine = tensor.select(axis, inputs.built.slots[n])
                if name == "checkpoint_state":
                    # Read and written, where anything is accepted.
                    total += 2 * mine.numel() * mine.element_size() * (count > 0)
                else:
                    entry = 2 + axis  # [layers,] heads, entries: the slot axis is gone
                    kept = mine.narrow(entry - 1, 0, count)
                    total += kept.numel() * kept.element_size()
        elif name.startswith(POOLS):
            assert tensor.shape[0] == row.requests + SPARE
            total += tensor[: row.requests].numel() * tensor.element_size()
        else:
            total += tensor.numel() * tensor.element_size()
    return total


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (2, 5)])
@pytest.mark.parametrize("operation", rows.OPERATIONS)
def test_bytes_are_those_of_the_tensors_built(
    operation: str, heads: int, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "LAYERS", 2)
    row = Row(operation, heads, *shape)
    assert bytes_moved(row) == touched(row)
    assert all(count >= 0 for count in traffic(row).values())


def test_the_table_has_every_operation_at_every_shape() -> None:
    every = rows.default_rows()
    assert len({row.name for row in every}) == len(every)
    assert sum(row.is_verify for row in every) == 2 * 3 * 3 * 4
    assert {row.heads for row in every if row.operation == "commit-layers"} == {12}
    assert {row.operation for row in every} == set(rows.OPERATIONS)
    assert {row.name for row in rows.quick_rows()} <= {row.name for row in every}


def test_every_row_rotates_over_more_than_a_cache() -> None:
    for row in rows.default_rows():
        sets = set_count(row)
        assert sets * bytes_moved(row) > TOUCHED_BYTES - bytes_moved(row)
        assert sets * bytes_moved(row) >= TOUCHED_BYTES
        assert (sets - 1) * bytes_moved(row) < TOUCHED_BYTES
        passes = timing.rounds(sets, bytes_moved(row))
        assert passes == 1 or passes * sets <= timing.GRAPH_CALLS


def test_a_mixed_commit_accepts_between_none_and_all() -> None:
    for row in rows.default_rows():
        if row.operation == "commit-mixed":
            assert any(row.accepted)
            assert set(row.accepted) <= set(range(row.tokens + 1))
            if row.requests > row.tokens:
                assert set(row.accepted) == set(range(row.tokens + 1))


def test_filters_keep_what_all_of_them_let_through() -> None:
    every = rows.default_rows()
    kept = select(every, operations=["ring"], heads=[12, 96], tokens=[8], requests=[1])
    assert [row.name for row in kept] == ["ring-H12-L8-N1", "ring-H96-L8-N1"]
    assert [r.name for r in select(every, names=["*-layers-H12-L1-N8"])] == [
        "commit-layers-H12-L1-N8"
    ]
    assert select(every) == every


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"heads": [13]}, "`heads` must be among 12, 32, 96, got 13"),
        ({"operations": ["fold"]}, "`operations` must be among ring, snapshot, .* got 'fold'"),
        ({"names": ["ring-H13-*"]}, "`rows` must match a row such as ring-H12-L1-N1, got"),
        ({"heads": [12], "names": ["ring-H32-*"]}, "`rows` must leave at least one row"),
    ],
)
def test_filters_refuse_what_no_row_has(filters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(rows.default_rows(), **filters)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("fold", 1, 1, 1), "`operation` must be one of ring, .* got 'fold'"),
        (("ring", 0, 1, 1), "`heads` must be an integer in 1..1024, got 0"),
        (("ring", 1, 17, 1), "`tokens` must be an integer in 1..16, got 17"),
        (("ring", 1, 1, True), "`requests` must be an integer in 1..65536, got True"),
    ],
)
def test_a_row_refuses_what_is_none(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Row(*values)


class FakeEvent:
    """Reads a clock that replays advance."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = FakeEvent.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: FakeEvent) -> float:
        return end.at - self.at


def test_a_call_takes_its_share_of_the_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches get slower and slower; the median and the quartiles are of a single call."""
    seen: list[str] = []
    batch = [0]

    class Graph:
        def replay(self) -> None:
            seen.append("replay")
            FakeEvent.now += 1.0 + batch[0]

    class Capture:
        def __init__(self, graph: Graph) -> None:
            pass

        def __enter__(self) -> None:
            seen.append("capture")

        def __exit__(self, *problem: object) -> None:
            seen.append("captured")

    def reset() -> None:
        seen.append("reset")
        batch[0] += 1

    for name, stand_in in (
        ("CUDAGraph", Graph), ("graph", Capture), ("Event", FakeEvent),
        ("synchronize", lambda: seen.append("synchronize")),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    calls: list[Callable[[], object]] = [lambda: seen.append("a"), lambda: seen.append("b")]
    timed = timing.replay_time(calls, timing.GRAPH_BYTES, reset)
    assert seen[:6] == ["a", "b", "synchronize", "capture", "a", "b"]
    assert seen[6:9] == ["captured", "replay", "replay"]
    # Two milliseconds of replays a batch, after one that warms up, each after a reset.
    assert seen[9:] == ["reset", *["replay"] * 3] * timing.BATCHES
    middle = (timing.BATCHES + 1) / 2
    assert timed.median == (1.0 + middle) / 2 * 1e3
    assert timed.low < timed.median < timed.high
    assert (timed.calls, timed.sets, timed.replays) == (2, 2, 2)
    assert timed.samples == tuple((2.0 + k) / 2 * 1e3 for k in range(timing.BATCHES))


def test_the_limit_is_bytes_over_bandwidth() -> None:
    timed = Timing(1.0, 1.0, 1.0, 1, 1, 1)
    assert limits.Limits(4e12, timed, timed).microseconds(164_000_000) == 41.0


def test_the_bandwidth_is_that_of_an_operation_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def timer(calls: list[Callable[[], object]], bytes_each: int, reset: object) -> Timing:
        asked.append((len(calls), bytes_each))
        for call in calls:
            call()
        return Timing(2.0, 2.0, 2.0, 1, 1, 1)

    drawn = torch.ones(16)
    monkeypatch.setattr(limits, "replay_time", timer)
    monkeypatch.setattr(torch, "randn", lambda size, device: drawn)
    found = limits.measure("cpu")
    assert asked[0] == (1, 2 * limits.BUFFER_BYTES)
    assert found.bandwidth == 2 * limits.BUFFER_BYTES / 2e-6
    assert found.smallest.median == 2.0
    assert torch.equal(drawn, -torch.ones(16))


def test_every_variant_is_compiled_ahead() -> None:
    batched = Contender()
    batched.name, batched.peer, batched.compiles_per_batch = "batched", "other", True
    plain = Contender()
    plain.name = plain.peer = "plain"
    every = rows.default_rows()
    todo = precompile.tasks(every, [Ours(), plain, batched])
    mine = [row for row, name in todo if name == "ours"]
    assert len(mine) == len(rows.OPERATIONS) * len(rows.TOKENS)
    assert {row.requests for row, name in todo if name != "batched"} == {1}
    assert len([name for _, name in todo if name == "batched"]) == len(every)
    assert len(set(todo)) == len(todo)
    sizes = [row.requests for row, name in todo if name == "batched"]
    assert all(a <= b for a, b in pairwise(sizes))
