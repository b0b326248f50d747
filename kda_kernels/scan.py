"""Snapshot pass of a verify: the state after every token, in token order.

Reads what the first pass kept per token and stores S after each S <- S diag(a) + u k^T. Rows of
the state (value channels) are independent, so programs split them.
"""

import triton.language as tl

from .launch import kernel
from .recurrence import request_rows, token_update


@kernel
def scan_kernel(
    recurrent_state,
    workspace,
    snapshots,
    slot_indices,
    scratch_indices,
    cu_seqlens,
    value_heads: tl.int64,
    total_rows: tl.int64,
    slots: tl.int64,
    scratch_rows: tl.int64,
    max_tokens: tl.int64,
    slot_index_stride: tl.int64,
    scratch_index_stride: tl.int64,
    cu_stride: tl.int64,
    state_pitch: tl.int64,
    snapshot_row: tl.int64,
    snapshot_token: tl.int64,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILE_V: tl.constexpr,
    TILES: tl.constexpr,
    CAPACITY: tl.constexpr,
    RECORD: tl.constexpr,
):
    """Snapshot some value rows of one request and value head; the tile index varies fastest."""
    program = tl.program_id(0).to(tl.int64)
    tile = program % TILES
    pair = program // TILES
    request = pair // value_heads
    head_v = pair % value_heads

    slot = tl.load(slot_indices + request * slot_index_stride).to(tl.int64)
    scratch = tl.load(scratch_indices + request * scratch_index_stride).to(tl.int64)
    start, end = request_rows(cu_seqlens, cu_stride, request, total_rows, max_tokens)
    is_live = (slot >= 0) & (slot < slots)
    has_scratch = (scratch >= 0) & (scratch < scratch_rows)
    length = tl.where(is_live & has_scratch, end - start, 0)

    if length > 0:
        key_lanes = tl.arange(0, BLOCK_K)
        value_lanes = tile * TILE_V + tl.arange(0, TILE_V)
        in_key = key_lanes < K
        in_value = value_lanes < V
        in_tile = in_value[:, None] & in_key[None, :]
        offsets = head_v * (V * K) + value_lanes[:, None] * K + key_lanes[None, :]
        record = tl.multiple_of(workspace + pair * RECORD, 16)
        kept_keys = record + CAPACITY * (K + V)
        kept_decays = kept_keys + CAPACITY * K
        kept_values = kept_decays + CAPACITY * K
        kept_strengths = kept_values + CAPACITY * V
        # The contract: pitches and storage offsets of both pools are multiples of 4 elements.
        pool = tl.multiple_of(recurrent_state + slot * state_pitch, 16)
        state = tl.load(pool + offsets, mask=in_tile, other=0.0)

        entry = tl.cast(0, tl.int64)
        while entry < length:
            key = tl.load(kept_keys + entry * K + key_lanes, mask=in_key, other=0.0)
            decay = tl.load(kept_decays + entry * K + key_lanes, mask=in_key, other=0.0)
            value = tl.load(kept_values + entry * V + value_lanes, mask=in_value, other=0.0)
            strength = tl.load(kept_strengths + entry)
            state = token_update(state, key, value, decay, strength)
            snapshot = snapshots + scratch * snapshot_row + entry * snapshot_token
            tl.store(tl.multiple_of(snapshot, 16) + offsets, state, mask=in_tile)
            entry += 1
