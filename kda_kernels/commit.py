"""Commit of accepted tokens: fold ring entries into the state pool, copy conv windows.

Per accepted token k <- k / sqrt(sum k^2 + 1e-6), S <- S diag(exp gk), u = beta (v - S k),
S <- S + u k^T, in the arithmetic of the snapshot pass. All layers of a stacked pool go in one
launch, with 64-bit layer offsets.
"""

import triton
import triton.language as tl

from .launch import kernel
from .recurrence import token_update, unit_vector


@kernel
def commit_kernel(
    checkpoint,
    raw_v,
    raw_k,
    gates,
    strengths,
    slot_indices,
    accept_lens,
    track_indices,
    track_steps,
    requests: tl.int64,
    value_heads: tl.int64,
    slots: tl.int64,
    entries: tl.int64,
    null_block: tl.int64,
    slot_index_stride: tl.int64,
    accept_stride: tl.int64,
    track_index_stride: tl.int64,
    track_step_stride: tl.int64,
    checkpoint_layer: tl.int64,
    checkpoint_slot: tl.int64,
    v_layer: tl.int64,
    v_slot: tl.int64,
    v_head: tl.int64,
    v_entry: tl.int64,
    k_layer: tl.int64,
    k_slot: tl.int64,
    k_head: tl.int64,
    k_entry: tl.int64,
    g_layer: tl.int64,
    g_slot: tl.int64,
    g_head: tl.int64,
    g_entry: tl.int64,
    b_layer: tl.int64,
    b_slot: tl.int64,
    b_head: tl.int64,
    b_entry: tl.int64,
    K: tl.constexpr,
    V: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILE_V: tl.constexpr,
    TILES: tl.constexpr,
    NORMALISE: tl.constexpr,
    HAS_TRACK: tl.constexpr,
):
    """Commit some value rows of one layer, request and value head; the tile varies fastest."""
    program = tl.program_id(0).to(tl.int64)
    tile = program % TILES
    head_v = (program // TILES) % value_heads
    request = (program // TILES // value_heads) % requests
    layer = program // TILES // value_heads // requests
    head = head_v // GROUP

    slot = tl.load(slot_indices + request * slot_index_stride).to(tl.int64)
    accepted = tl.load(accept_lens + request * accept_stride).to(tl.int64)
    accepted = tl.minimum(tl.maximum(accepted, 0), entries)
    is_live = (slot > null_block) & (slot >= 0) & (slot < slots)
    length = tl.where(is_live, accepted, 0)

    if length > 0:
        key_lanes = tl.arange(0, BLOCK_K)
        value_lanes = tile * TILE_V + tl.arange(0, TILE_V)
        in_key = key_lanes < K
        in_value = value_lanes < V
        in_tile = in_value[:, None] & in_key[None, :]
        offsets = head_v * (V * K) + value_lanes[:, None] * K + key_lanes[None, :]
        layer_pool = checkpoint + layer * checkpoint_layer
        # The contract: pitches and storage offset of the pool are multiples of 4 elements.
        pool = tl.multiple_of(layer_pool + slot * checkpoint_slot, 16) + offsets
        k_row = raw_k + layer * k_layer + slot * k_slot + head * k_head + key_lanes
        v_row = raw_v + layer * v_layer + slot * v_slot + head_v * v_head + value_lanes
        g_row = gates + layer * g_layer + slot * g_slot + head_v * g_head + key_lanes
        b_at = strengths + layer * b_layer + slot * b_slot + head_v * b_head
        if HAS_TRACK:
            track_slot = tl.load(track_indices + request * track_index_stride).to(tl.int64)
            track_step = tl.load(track_steps + request * track_step_stride).to(tl.int64)
            can_track = (track_slot >= 0) & (track_slot < slots)
            tracked = tl.multiple_of(layer_pool + track_slot * checkpoint_slot, 16) + offsets

        state = tl.load(pool, mask=in_tile, other=0.0)
        entry = tl.cast(0, tl.int64)
        while entry < length:
            raw_key = tl.load(k_row + entry * k_entry, mask=in_key, other=0.0).to(tl.float32)
            value = tl.load(v_row + entry * v_entry, mask=in_value, other=0.0).to(tl.float32)
            log_decay = tl.load(g_row + entry * g_entry, mask=in_key, other=0.0)
            strength = tl.load(b_at + entry * b_entry)
            key = unit_vector(raw_key, NORMALISE)
            decay = tl.exp(log_decay)
            state = token_update(state, key, value, decay, strength)
            if HAS_TRACK:
                tl.store(tracked, state, mask=in_tile & (can_track & (entry == track_step)))
            entry += 1
        tl.store(pool, state, mask=in_tile)


@triton.jit
def copy_windows(pool, pool_channel, pool_tap, windows, window_channel, window_tap, lanes, mask):
    """Copy the three taps of some channels; lanes are 64-bit channel numbers."""
    for tap in tl.static_range(3):
        source = windows + lanes * window_channel + tap * window_tap
        value = tl.load(source, mask=mask, other=0.0)
        tl.store(pool + lanes * pool_channel + tap * pool_tap, value, mask=mask)


@kernel
def conv_commit_kernel(
    cs_q,
    cs_k,
    cs_v,
    window_q,
    window_k,
    window_v,
    scratch_indices,
    slot_indices,
    accept_lens,
    requests: tl.int64,
    slots: tl.int64,
    scratch_rows: tl.int64,
    depth: tl.int64,
    null_block: tl.int64,
    channels_k: tl.int64,
    channels_v: tl.int64,
    scratch_index_stride: tl.int64,
    slot_index_stride: tl.int64,
    accept_stride: tl.int64,
    cs_q_layer: tl.int64,
    cs_q_slot: tl.int64,
    cs_q_channel: tl.int64,
    cs_q_tap: tl.int64,
    cs_k_layer: tl.int64,
    cs_k_slot: tl.int64,
    cs_k_channel: tl.int64,
    cs_k_tap: tl.int64,
    cs_v_layer: tl.int64,
    cs_v_slot: tl.int64,
    cs_v_channel: tl.int64,
    cs_v_tap: tl.int64,
    window_q_layer: tl.int64,
    window_q_row: tl.int64,
    window_q_token: tl.int64,
    window_q_channel: tl.int64,
    window_q_tap: tl.int64,
    window_k_layer: tl.int64,
    window_k_row: tl.int64,
    window_k_token: tl.int64,
    window_k_channel: tl.int64,
    window_k_tap: tl.int64,
    window_v_layer: tl.int64,
    window_v_row: tl.int64,
    window_v_token: tl.int64,
    window_v_channel: tl.int64,
    window_v_tap: tl.int64,
    BLOCK: tl.constexpr,
):
    """Copy some channels of one layer and request; q blocks first, then k, then v."""
    program = tl.program_id(0).to(tl.int64)
    blocks_k = (channels_k + BLOCK - 1) // BLOCK
    blocks_v = (channels_v + BLOCK - 1) // BLOCK
    blocks = 2 * blocks_k + blocks_v
    block = program % blocks
    request = (program // blocks) % requests
    layer = program // blocks // requests

    slot = tl.load(slot_indices + request * slot_index_stride).to(tl.int64)
    row = tl.load(scratch_indices + request * scratch_index_stride).to(tl.int64)
    accepted = tl.load(accept_lens + request * accept_stride).to(tl.int64)
    accepted = tl.minimum(tl.maximum(accepted, 0), depth)
    is_live = (slot > null_block) & (slot >= 0) & (slot < slots)
    has_window = (row >= 0) & (row < scratch_rows)
    token = accepted - 1

    if is_live & has_window & (accepted > 0):
        lanes = tl.arange(0, BLOCK)
        if block < blocks_k:
            channels = block * BLOCK + lanes
            pool = cs_q + layer * cs_q_layer + slot * cs_q_slot
            windows = window_q + layer * window_q_layer + row * window_q_row
            windows = windows + token * window_q_token
            in_range = channels < channels_k
            copy_windows(
                pool, cs_q_channel, cs_q_tap,
                windows, window_q_channel, window_q_tap, channels, in_range,
            )  # fmt: skip
        elif block < 2 * blocks_k:
            channels = (block - blocks_k) * BLOCK + lanes
            pool = cs_k + layer * cs_k_layer + slot * cs_k_slot
            windows = window_k + layer * window_k_layer + row * window_k_row
            windows = windows + token * window_k_token
            in_range = channels < channels_k
            copy_windows(
                pool, cs_k_channel, cs_k_tap,
                windows, window_k_channel, window_k_tap, channels, in_range,
            )  # fmt: skip
        else:
            channels = (block - 2 * blocks_k) * BLOCK + lanes
            pool = cs_v + layer * cs_v_layer + slot * cs_v_slot
            windows = window_v + layer * window_v_layer + row * window_v_row
            windows = windows + token * window_v_token
            in_range = channels < channels_v
            copy_windows(
                pool, cs_v_channel, cs_v_tap,
                windows, window_v_channel, window_v_tap, channels, in_range,
            )  # fmt: skip
