"""What only a GPU can show: graph capture, streams, launch limits, no hidden synchronisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kda_kernels import kda_mtp_verify, kda_replay_commit
from kda_verify.cases.build import build
from kda_verify.cases.case import Case

NO_GPU = not torch.cuda.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NO_GPU, reason="not run: torch sees no CUDA GPU"),
]
VERIFY = Case(
    lengths=(3, 1, 0, 4), capacity=4, size_k=128, size_v=128, heads=2, dtype="bfloat16",
    logit_dtype="bfloat16", out_given=True, out_norm=True, records=("rings", "windows"),
)  # fmt: skip
COMMIT = Case(
    operation="commit", lengths=(3, 0, 4), capacity=4, size_k=128, size_v=128, heads=2,
    gate_form="given", conv=False,
)  # fmt: skip


def with_seed(case: Case, seed: int, padding: tuple[int, ...] = ()) -> Case:
    """Draw other contents for pools of the same size: padding leaves its slots spare."""
    spare = case.spare_slots + len(padding)
    return Case(**{**vars(case), "seed": seed, "padding": padding, "spare_slots": spare})


def tensors(arguments: dict[str, Any]) -> dict[str, Tensor]:
    return {n: v for n, v in arguments.items() if isinstance(v, Tensor)}


def assert_same_bits(left: dict[str, Any], right: dict[str, Any]) -> None:
    for name, tensor in tensors(left).items():
        mine, other = tensor.contiguous(), right[name].contiguous()
        assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8)), name


@pytest.mark.parametrize(
    ("case", "function"),
    [(VERIFY, kda_mtp_verify), (COMMIT, kda_replay_commit)],
    ids=["verify", "commit"],
)
def test_graph_replay_with_other_contents_equals_eager(case: Case, function: Any) -> None:
    """Capture once; replay with other values, slots and padding written into the same memory."""
    captured = build(case, "cuda")
    captured.frame.snapshot()
    function(**captured.arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function(**captured.arguments)
    for seed, padding in ((1, ()), (2, (0,)), (3, tuple(range(case.requests))), (4, (1, 2))):
        fresh = tensors(build(with_seed(case, seed, padding), "cuda").arguments)
        for name, tensor in fresh.items():
            captured.arguments[name].copy_(tensor)
        # Options are part of the capture.
        function(**{**captured.arguments, **fresh})
        graph.replay()
        torch.cuda.synchronize()
        assert_same_bits(fresh, captured.arguments)


def test_another_stream_gives_the_same_bits() -> None:
    one, two = build(VERIFY, "cuda"), build(VERIFY, "cuda")
    kda_mtp_verify(**one.arguments)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        kda_mtp_verify(**two.arguments)
    torch.cuda.synchronize()
    assert_same_bits(one.arguments, two.arguments)


def test_no_synchronisation() -> None:
    """Neither the checks nor the launches wait for the device."""
    verify, commit = build(VERIFY, "cuda"), build(COMMIT, "cuda")
    kda_mtp_verify(**verify.arguments)
    kda_replay_commit(**commit.arguments)
    torch.cuda.set_sync_debug_mode("error")
    try:
        kda_mtp_verify(**verify.arguments)
        kda_replay_commit(**commit.arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("requests", [65535, 65536, 65537])
def test_more_programs_than_a_grid_axis_of_65535(requests: int) -> None:
    """The last request of a huge batch equals the same request alone."""
    heads, size = 1, 16
    draw = torch.Generator("cuda").manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=draw)

    x = [normal(1, requests, heads, size) for _ in "qkvg"]
    beta, state = normal(1, requests, heads), normal(requests, heads, size, size)
    options: dict[str, Any] = {"max_tokens": 1, "lower_bound": -5.0}

    def run(rows: slice) -> Tensor:
        count = len(range(*rows.indices(requests)))
        return kda_mtp_verify(
            x_q=x[0][:, rows],
            x_k=x[1][:, rows],
            x_v=x[2][:, rows],
            g=x[3][:, rows],
            beta=beta[:, rows],
            recurrent_state=state[rows],
            ssm_state_indices=torch.arange(count, dtype=torch.int32, device="cuda"),
            cu_seqlens=torch.arange(count + 1, dtype=torch.int32, device="cuda"),
            **options,
        )

    assert torch.equal(run(slice(None))[:, -1:], run(slice(requests - 1, requests)))


@pytest.mark.parametrize(
    "bad",
    [
        {"ssm_state_indices": [10**6, 0, 1, 2]},
        {"cu_seqlens": [5, -3, 2**30, 1, 0]},
        {"cu_seqlens": [0, 8, 8, 8, 8]},
        {"intermediate_state_indices": [-7, 10**6, 0, 1]},
    ],
    ids=["slot", "offsets", "row-past-capacity", "scratch"],
)
def test_unchecked_bad_values_stay_inside_the_operands(bad: dict[str, list[int]]) -> None:
    """Values are not checked on a GPU by default; nothing outside the operands changes."""
    built = build(VERIFY, "cuda")
    for name, values in bad.items():
        built.arguments[name].copy_(torch.tensor(values, dtype=torch.int32))
    built.frame.snapshot()
    kda_mtp_verify(**built.arguments)
    torch.cuda.synchronize()
    written = ("out", "replayssm", "intermediate_conv")
    everything = {
        name: torch.ones(tensor.shape, dtype=torch.bool)
        for name, tensor in tensors(built.arguments).items()
        if name.startswith(written)
    }
    assert built.frame.trespasses(everything) == []
    with pytest.raises(ValueError, match=next(iter(bad))):
        kda_mtp_verify(**built.arguments, check_values=True)
