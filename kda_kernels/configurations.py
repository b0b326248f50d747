"""The default configurations: what serving runs, as launches over tensors without data.

K = V = 128 in bf16 with rings, snapshots and the output norm, one fp32 form with everything
given, and the largest sizes. Only what is compiled in matters here; counts are arbitrary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .launch import Launch
from .plan import (
    CommitOperands,
    ConvCommitOperands,
    VerifyOperands,
    plan_commit,
    plan_conv_commit,
    plan_verify,
)

REQUESTS, SLOTS, HEADS = 2, 4, 2


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _indices(count: int = REQUESTS) -> Tensor:
    return _empty(count, dtype=torch.int32)


def verify_operands(
    *,
    size: int = 128,
    max_tokens: int = 8,
    dtype: torch.dtype = torch.bfloat16,
    rings: bool = False,
    snapshots: bool = False,
    norm: bool = False,
    given: bool = False,
    gate_form: str = "lower_bound",
) -> VerifyOperands:
    """Build the operands of a verify with K = V = size and H = HV, without data.

    Args:
        size: K and V.
        max_tokens: rows of each request.
        dtype: dtype of x.
        rings, snapshots, norm: what is recorded and fused.
        given: no convolution, gate and beta given.
        gate_form: gate where it is not given.
    """
    rows, channels = REQUESTS * max_tokens, HEADS * size
    x = _empty(1, rows, HEADS, size, dtype=dtype)
    taps = None if given else _empty(channels, 4)
    history = None if given else _empty(SLOTS, channels, 3, dtype=dtype)
    window = None if given else _empty(REQUESTS, max_tokens, channels, 3, dtype=dtype)
    ring_x = _empty(SLOTS, HEADS, 16, size, dtype=dtype) if rings else None
    return VerifyOperands(
        x_q=x, x_k=x, x_v=x, w_q=taps, w_k=taps, w_v=taps, cs_q=history, cs_k=history, cs_v=history,
        g=x, beta=_empty(1, rows, HEADS, dtype=dtype),
        A_log=None if given else _empty(HEADS), dt_bias=None if given else _empty(channels),
        recurrent_state=_empty(SLOTS, HEADS, size, size),
        intermediate_ssm=(
            _empty(REQUESTS, max_tokens, HEADS, size, size) if snapshots else None
        ),
        intermediate_state_indices=_indices(),
        intermediate_conv_q=window, intermediate_conv_k=window, intermediate_conv_v=window,
        ssm_state_indices=_indices(), cu_seqlens=_indices(REQUESTS + 1), max_tokens=max_tokens,
        gate_form="given" if given else gate_form,
        lower_bound=-5.0 if gate_form == "lower_bound" and not given else None,
        beta_form="given" if given else "sigmoid", use_qk_l2norm_in_kernel=True, scale=None,
        replayssm_rawv=ring_x, replayssm_rawk=ring_x,
        replayssm_g=_empty(SLOTS, HEADS, 16, size) if rings else None,
        replayssm_beta=_empty(SLOTS, HEADS, 16) if rings else None,
        onorm_gate=x if norm else None, onorm_weight=_empty(size) if norm else None,
        onorm_eps=1e-5 if norm else None, out=x,
    )  # fmt: skip


def commit_operands(
    *, size: int = 128, dtype: torch.dtype = torch.bfloat16, track: bool = False
) -> CommitOperands:
    """Build the operands of a replay commit with K = V = size, without data."""
    ring = _empty(SLOTS, HEADS, 16, size, dtype=dtype)
    tracked = _indices() if track else None
    return CommitOperands(
        _empty(SLOTS, HEADS, size, size), ring, ring, _empty(SLOTS, HEADS, 16, size),
        _empty(SLOTS, HEADS, 16), _indices(), _indices(), -1, tracked, tracked, True,
    )  # fmt: skip


def conv_commit_operands(*, dtype: torch.dtype = torch.bfloat16) -> ConvCommitOperands:
    """Build the operands of a conv commit, without data."""
    pool = _empty(SLOTS, HEADS * 128, 3, dtype=dtype)
    window = _empty(REQUESTS, 8, HEADS * 128, 3, dtype=dtype)
    return ConvCommitOperands(
        pool, pool, pool, window, window, window, _indices(), _indices(), _indices(), -1
    )


def default_launches() -> Iterator[tuple[str, Launch]]:
    """Yield (configuration, launch) for every default configuration of every kernel."""
    verifies = {
        "ring-norm-1": verify_operands(max_tokens=1, rings=True, norm=True),
        "ring-norm-8": verify_operands(rings=True, norm=True),
        "ring-norm-16": verify_operands(max_tokens=16, rings=True, norm=True),
        "snapshot-8": verify_operands(snapshots=True),
        "softplus-64": verify_operands(size=64, rings=True, gate_form="softplus"),
        "given-fp32-8": verify_operands(dtype=torch.float32, given=True),
        "wide-norm-16": verify_operands(
            size=256, max_tokens=16, rings=True, snapshots=True, norm=True
        ),
    }
    for name, operands in verifies.items():
        for launch in plan_verify(operands):
            yield name, launch
    for name, commit in {
        "ring": commit_operands(),
        "ring-track": commit_operands(track=True),
        "wide-track": commit_operands(size=256, track=True),
    }.items():
        for launch in plan_commit(commit):
            yield name, launch
    for launch in plan_conv_commit(conv_commit_operands()):
        yield "windows", launch
