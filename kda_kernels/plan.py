"""From the operands of an operation to its launches: sizes, strides, compile-time constants."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import targets
from .commit import commit_kernel, conv_commit_kernel
from .launch import Launch
from .prepare import prepare_kernel
from .scan import scan_kernel
from .stream import stream_kernel


class VerifyOperands(NamedTuple):
    """Operands of a multi-token verify, in the order of the registered schema."""

    x_q: Tensor
    x_k: Tensor
    x_v: Tensor
    w_q: Tensor | None
    w_k: Tensor | None
    w_v: Tensor | None
    cs_q: Tensor | None
    cs_k: Tensor | None
    cs_v: Tensor | None
    g: Tensor
    beta: Tensor
    A_log: Tensor | None
    dt_bias: Tensor | None
    recurrent_state: Tensor
    intermediate_ssm: Tensor | None
    intermediate_state_indices: Tensor | None
    intermediate_conv_q: Tensor | None
    intermediate_conv_k: Tensor | None
    intermediate_conv_v: Tensor | None
    ssm_state_indices: Tensor
    cu_seqlens: Tensor
    max_tokens: int
    gate_form: str
    lower_bound: float | None
    beta_form: str
    use_qk_l2norm_in_kernel: bool
    scale: float | None
    replayssm_rawv: Tensor | None
    replayssm_rawk: Tensor | None
    replayssm_g: Tensor | None
    replayssm_beta: Tensor | None
    onorm_gate: Tensor | None
    onorm_weight: Tensor | None
    onorm_eps: float | None
    out: Tensor


class CommitOperands(NamedTuple):
    """Operands of a replay commit, in the order of the registered schema."""

    checkpoint_state: Tensor
    rawv: Tensor
    rawk: Tensor
    gk: Tensor
    beta: Tensor
    ssm_state_indices: Tensor
    accept_lens: Tensor
    null_block_id: int
    mamba_track_indices: Tensor | None
    mamba_steps_to_track: Tensor | None
    use_qk_l2norm_in_kernel: bool


class ConvCommitOperands(NamedTuple):
    """Operands of a conv commit, in the order of the registered schema."""

    cs_q: Tensor
    cs_k: Tensor
    cs_v: Tensor
    intermediate_conv_q: Tensor
    intermediate_conv_k: Tensor
    intermediate_conv_v: Tensor
    intermediate_state_indices: Tensor
    ssm_state_indices: Tensor
    accept_lens: Tensor
    null_block_id: int


def workspace_record(key_size: int, value_size: int, capacity: int, snapshots: bool) -> int:
    """Count the fp32 elements of workspace that one request and value head needs.

    P [capacity, K] and W [capacity, V]; for snapshots also key and decay [capacity, K], value
    [capacity, V] and strength [capacity]. Rounded up to 16 bytes.
    """
    size = capacity * (key_size + value_size)
    if snapshots:
        size += capacity * (2 * key_size + value_size + 1)
    return (size + 3) // 4 * 4


def _strides(tensor: Tensor | None, count: int, skip: int = 0) -> tuple[int, ...]:
    """Strides of `count` axes after the first `skip`; zeros for an absent tensor."""
    if tensor is None:
        return (0,) * count
    return tensor.stride()[skip : skip + count]


def plan_verify(o: VerifyOperands) -> list[Launch]:
    """Lay out the launches of a verify and allocate the workspace they share."""
    _, total_rows, heads, key_size = o.x_q.shape
    value_heads, value_size = o.x_v.shape[2:]
    requests = o.ssm_state_indices.shape[0]
    slots = o.recurrent_state.shape[0]
    snapshots = o.intermediate_ssm is not None
    windows = o.intermediate_conv_q is not None
    recorded = (o.intermediate_ssm, *o[16:19])
    scratch_rows = min([b.shape[0] for b in recorded if b is not None], default=0)
    capacity = targets.capacity(o.max_tokens)
    record = workspace_record(key_size, value_size, capacity, snapshots)
    workspace = torch.empty(
        requests * value_heads * record, dtype=torch.float32, device=o.x_q.device
    )
    index_strides = o.ssm_state_indices.stride()
    scratch_strides = _strides(o.intermediate_state_indices, 1)
    cu_strides = o.cu_seqlens.stride()
    state_pitch = o.recurrent_state.stride(0)
    block_k = targets.block(key_size)
    block_v = targets.block(value_size)

    launches = [
        Launch(
            prepare_kernel,
            requests * value_heads,
            (
                *o[:13],
                o.ssm_state_indices,
                o.intermediate_state_indices,
                o.cu_seqlens,
                *o[16:19],
                *o[27:31],
                workspace,
                0.0 if o.lower_bound is None else float(o.lower_bound),
                key_size**-0.5 if o.scale is None else float(o.scale),
                value_heads,
                total_rows,
                slots,
                scratch_rows,
                o.max_tokens,
                *index_strides,
                *scratch_strides,
                *cu_strides,
                *_strides(o.x_q, 2, 1),
                *_strides(o.x_k, 2, 1),
                *_strides(o.x_v, 2, 1),
                *_strides(o.g, 2, 1),
                *_strides(o.beta, 2, 1),
                *_strides(o.A_log, 1),
                *_strides(o.dt_bias, 1),
                *_strides(o.w_q, 1),
                *_strides(o.w_k, 1),
                *_strides(o.w_v, 1),
                *_strides(o.cs_q, 3),
                *_strides(o.cs_k, 3),
                *_strides(o.cs_v, 3),
                *_strides(o.intermediate_conv_q, 4),
                *_strides(o.intermediate_conv_k, 4),
                *_strides(o.intermediate_conv_v, 4),
                *_strides(o.replayssm_rawv, 3),
                *_strides(o.replayssm_rawk, 3),
                *_strides(o.replayssm_g, 3),
                *_strides(o.replayssm_beta, 3),
            ),
            dict(
                K=key_size,
                V=value_size,
                GROUP=value_heads // heads,
                BLOCK_K=block_k,
                BLOCK_V=block_v,
                CAPACITY=capacity,
                RECORD=record,
                GATE_FORM=o.gate_form,
                BETA_FORM=o.beta_form,
                HAS_RATE=o.A_log is not None,
                HAS_BIAS=o.dt_bias is not None,
                NORMALISE=o.use_qk_l2norm_in_kernel,
                HAS_CONV=o.w_q is not None,
                HAS_WINDOWS=windows,
                HAS_RINGS=o.replayssm_rawv is not None,
                HAS_SNAPSHOTS=snapshots,
                num_warps=targets.prepare_warps(key_size, value_size),
            ),
        ),
        Launch(
            stream_kernel,
            requests * value_heads,
            (
                o.recurrent_state,
                workspace,
                o.onorm_gate,
                o.onorm_weight,
                o.out,
                o.ssm_state_indices,
                o.cu_seqlens,
                0.0 if o.onorm_eps is None else float(o.onorm_eps),
                requests,
                value_heads,
                total_rows,
                slots,
                o.max_tokens,
                *index_strides,
                *cu_strides,
                state_pitch,
                *_strides(o.onorm_gate, 2, 1),
                *_strides(o.onorm_weight, 1),
                *_strides(o.out, 2, 1),
            ),
            dict(
                K=key_size,
                V=value_size,
                BLOCK_V=block_v,
                STEP=min(targets.STREAM_STEP, block_k),
                ROWS=max(targets.MIN_BLOCK, capacity),
                CAPACITY=capacity,
                RECORD=record,
                HAS_NORM=o.onorm_gate is not None,
                PRECISION=targets.DOT_PRECISION[targets.backend()],
                num_warps=targets.stream_warps(value_size),
            ),
        ),
    ]
    if snapshots:
        tile_rows = targets.tile_rows(key_size, value_size)
        tiles = -(-value_size // tile_rows)
        launches.append(
            Launch(
                scan_kernel,
                requests * value_heads * tiles,
                (
                    o.recurrent_state,
                    workspace,
                    o.intermediate_ssm,
                    o.ssm_state_indices,
                    o.intermediate_state_indices,
                    o.cu_seqlens,
                    value_heads,
                    total_rows,
                    slots,
                    scratch_rows,
                    o.max_tokens,
                    *index_strides,
                    *scratch_strides,
                    *cu_strides,
                    state_pitch,
                    *_strides(o.intermediate_ssm, 2),
                ),
                dict(
                    K=key_size,
                    V=value_size,
                    BLOCK_K=block_k,
                    TILE_V=tile_rows,
                    TILES=tiles,
                    CAPACITY=capacity,
                    RECORD=record,
                    num_warps=targets.TILE_WARPS,
                ),
            )
        )
    return launches


def _layered(tensor: Tensor, is_stacked: bool, count: int) -> tuple[int, ...]:
    """Layer stride (zero without a layer axis) and the next `count` strides."""
    strides = tensor.stride()
    return strides[: count + 1] if is_stacked else (0, *strides[:count])


def plan_commit(o: CommitOperands) -> list[Launch]:
    """Lay out the one launch of a replay commit."""
    is_stacked = o.checkpoint_state.dim() == 5
    layers = o.checkpoint_state.shape[0] if is_stacked else 1
    slots, value_heads, value_size, key_size = o.checkpoint_state.shape[-4:]
    heads, entries = o.rawk.shape[-3:-1]
    requests = o.ssm_state_indices.shape[0]
    tile_rows = targets.tile_rows(key_size, value_size)
    tiles = -(-value_size // tile_rows)
    arguments: tuple[Any, ...] = (
        *o[:7],
        o.mamba_track_indices,
        o.mamba_steps_to_track,
        requests,
        value_heads,
        slots,
        entries,
        o.null_block_id,
        *o.ssm_state_indices.stride(),
        *o.accept_lens.stride(),
        *_strides(o.mamba_track_indices, 1),
        *_strides(o.mamba_steps_to_track, 1),
        *_layered(o.checkpoint_state, is_stacked, 1),
        *_layered(o.rawv, is_stacked, 3),
        *_layered(o.rawk, is_stacked, 3),
        *_layered(o.gk, is_stacked, 3),
        *_layered(o.beta, is_stacked, 3),
    )
    constants = dict(
        K=key_size,
        V=value_size,
        GROUP=value_heads // heads,
        BLOCK_K=targets.block(key_size),
        TILE_V=tile_rows,
        TILES=tiles,
        NORMALISE=o.use_qk_l2norm_in_kernel,
        HAS_TRACK=o.mamba_track_indices is not None,
        **targets.commit_options(targets.capability(o.checkpoint_state.device)),
    )
    return [Launch(commit_kernel, layers * requests * value_heads * tiles, arguments, constants)]


def plan_conv_commit(o: ConvCommitOperands) -> list[Launch]:
    """Lay out the one launch of a conv commit."""
    is_stacked = o.cs_q.dim() == 4
    layers = o.cs_q.shape[0] if is_stacked else 1
    pools, recorded = o[:3], o[3:6]
    requests = o.ssm_state_indices.shape[0]
    channels_k, channels_v = o.cs_q.shape[-2], o.cs_v.shape[-2]
    blocks = 2 * -(-channels_k // targets.COPY_BLOCK) + -(-channels_v // targets.COPY_BLOCK)
    arguments: tuple[Any, ...] = (
        *o[:9],
        requests,
        min(pool.shape[-3] for pool in pools),
        min(windows.shape[-4] for windows in recorded),
        min(windows.shape[-3] for windows in recorded),
        o.null_block_id,
        channels_k,
        channels_v,
        *o.intermediate_state_indices.stride(),
        *o.ssm_state_indices.stride(),
        *o.accept_lens.stride(),
        *(stride for pool in pools for stride in _layered(pool, is_stacked, 3)),
        *(stride for windows in recorded for stride in _layered(windows, is_stacked, 4)),
    )
    constants = dict(BLOCK=targets.COPY_BLOCK, num_warps=targets.COPY_WARPS)
    return [Launch(conv_commit_kernel, layers * requests * blocks, arguments, constants)]
