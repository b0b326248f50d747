"""First pass of a verify: everything that does not touch the state.

Per request and value head it runs convolution, norms, gate and beta token by token, records
windows and rings, and reduces the draft to operands of one product with the state S0:

    o_t = S0 p_t + w_t,    u_t = S0 y_t + z_t

With Kd[j] = k_j o prod_{j<i<=t} exp(G_i), kept by multiplying every row by exp(G_t) at each token
(so no difference of cumulative gates is ever exponentiated), forward substitution gives

    y_t = -b_t (k_t o prod_{i<=t} exp(G_i)) - sum_{j<t} b_t (Kd[j].k_t) y_j
    z_t =  b_t v_t                          - sum_{j<t} b_t (Kd[j].k_t) z_j
    p_t =  q_t o prod_{i<=t} exp(G_i)       + sum_{j<=t} (Kd[j].q_t) y_j
    w_t =                                     sum_{j<=t} (Kd[j].q_t) z_j
"""

import triton
import triton.language as tl

from .launch import kernel
from .recurrence import (
    log_decay_of,
    request_rows,
    short_conv,
    strength_of,
    sum_of_products,
    unit_vector,
)


@triton.jit
def load_vector(pointers, mask):
    """Load a masked vector as fp32."""
    return tl.load(pointers, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_vector(pointers, values, mask):
    """Store a masked fp32 vector in the dtype of its destination."""
    tl.store(pointers, values.to(pointers.dtype.element_ty), mask=mask)


@triton.jit
def load_taps(weights, stride, channels, mask):
    """Load the four taps of every channel, oldest first."""
    taps = weights + channels * stride
    tap_0 = load_vector(taps, mask)
    tap_1 = load_vector(taps + 1, mask)
    tap_2 = load_vector(taps + 2, mask)
    tap_3 = load_vector(taps + 3, mask)
    return tap_0, tap_1, tap_2, tap_3


@triton.jit
def load_history(pool, slot_offset, channel_stride, tap_stride, channels, mask):
    """Load the last three raw inputs of every channel, oldest first."""
    entries = pool + slot_offset + channels * channel_stride
    oldest = load_vector(entries, mask)
    older = load_vector(entries + tap_stride, mask)
    old = load_vector(entries + 2 * tap_stride, mask)
    return oldest, older, old


@triton.jit
def store_window(pool, offset, channel_stride, tap_stride, channels, oldest, older, old, mask):
    """Record the history after a token, oldest first."""
    entries = pool + offset + channels * channel_stride
    store_vector(entries, oldest, mask)
    store_vector(entries + tap_stride, older, mask)
    store_vector(entries + 2 * tap_stride, old, mask)


@kernel
def prepare_kernel(
    x_q,
    x_k,
    x_v,
    w_q,
    w_k,
    w_v,
    cs_q,
    cs_k,
    cs_v,
    g,
    beta,
    A_log,
    dt_bias,
    slot_indices,
    scratch_indices,
    cu_seqlens,
    window_q,
    window_k,
    window_v,
    ring_v,
    ring_k,
    ring_g,
    ring_beta,
    workspace,
    lower_bound: tl.float32,
    scale: tl.float32,
    value_heads: tl.int64,
    total_rows: tl.int64,
    slots: tl.int64,
    scratch_rows: tl.int64,
    max_tokens: tl.int64,
    slot_index_stride: tl.int64,
    scratch_index_stride: tl.int64,
    cu_stride: tl.int64,
    x_q_row: tl.int64,
    x_q_head: tl.int64,
    x_k_row: tl.int64,
    x_k_head: tl.int64,
    x_v_row: tl.int64,
    x_v_head: tl.int64,
    g_row: tl.int64,
    g_head: tl.int64,
    beta_row: tl.int64,
    beta_head: tl.int64,
    A_log_head: tl.int64,
    dt_bias_channel: tl.int64,
    w_q_channel: tl.int64,
    w_k_channel: tl.int64,
    w_v_channel: tl.int64,
    cs_q_slot: tl.int64,
    cs_q_channel: tl.int64,
    cs_q_tap: tl.int64,
    cs_k_slot: tl.int64,
    cs_k_channel: tl.int64,
    cs_k_tap: tl.int64,
    cs_v_slot: tl.int64,
    cs_v_channel: tl.int64,
    cs_v_tap: tl.int64,
    window_q_row: tl.int64,
    window_q_token: tl.int64,
    window_q_channel: tl.int64,
    window_q_tap: tl.int64,
    window_k_row: tl.int64,
    window_k_token: tl.int64,
    window_k_channel: tl.int64,
    window_k_tap: tl.int64,
    window_v_row: tl.int64,
    window_v_token: tl.int64,
    window_v_channel: tl.int64,
    window_v_tap: tl.int64,
    ring_v_slot: tl.int64,
    ring_v_head: tl.int64,
    ring_v_entry: tl.int64,
    ring_k_slot: tl.int64,
    ring_k_head: tl.int64,
    ring_k_entry: tl.int64,
    ring_g_slot: tl.int64,
    ring_g_head: tl.int64,
    ring_g_entry: tl.int64,
    ring_beta_slot: tl.int64,
    ring_beta_head: tl.int64,
    ring_beta_entry: tl.int64,
    K: tl.constexpr,
    V: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    CAPACITY: tl.constexpr,
    RECORD: tl.constexpr,
    GATE_FORM: tl.constexpr,
    BETA_FORM: tl.constexpr,
    HAS_RATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NORMALISE: tl.constexpr,
    HAS_CONV: tl.constexpr,
    HAS_WINDOWS: tl.constexpr,
    HAS_RINGS: tl.constexpr,
    HAS_SNAPSHOTS: tl.constexpr,
):
    """Prepare one request and value head; program (request * value_heads + value head)."""
    program = tl.program_id(0).to(tl.int64)
    request = program // value_heads
    head_v = program % value_heads
    head = head_v // GROUP
    leads_group = head_v % GROUP == 0

    slot = tl.load(slot_indices + request * slot_index_stride).to(tl.int64)
    start, end = request_rows(cu_seqlens, cu_stride, request, total_rows, max_tokens)
    is_live = (slot >= 0) & (slot < slots)
    length = tl.where(is_live, end - start, 0)

    if length > 0:
        key_lanes = tl.arange(0, BLOCK_K)
        value_lanes = tl.arange(0, BLOCK_V)
        token_lanes = tl.arange(0, CAPACITY)
        in_key = key_lanes < K
        in_value = value_lanes < V
        channels_k = head * K + key_lanes
        channels_v = head_v * V + value_lanes
        gate_channels = head_v * K + key_lanes
        record = workspace + program * RECORD

        if HAS_CONV:
            taps_q0, taps_q1, taps_q2, taps_q3 = load_taps(w_q, w_q_channel, channels_k, in_key)
            taps_k0, taps_k1, taps_k2, taps_k3 = load_taps(w_k, w_k_channel, channels_k, in_key)
            taps_v0, taps_v1, taps_v2, taps_v3 = load_taps(w_v, w_v_channel, channels_v, in_value)
            q_oldest, q_older, q_old = load_history(
                cs_q, slot * cs_q_slot, cs_q_channel, cs_q_tap, channels_k, in_key
            )
            k_oldest, k_older, k_old = load_history(
                cs_k, slot * cs_k_slot, cs_k_channel, cs_k_tap, channels_k, in_key
            )
            v_oldest, v_older, v_old = load_history(
                cs_v, slot * cs_v_slot, cs_v_channel, cs_v_tap, channels_v, in_value
            )
        if HAS_WINDOWS:
            scratch = tl.load(scratch_indices + request * scratch_index_stride).to(tl.int64)
            has_scratch = (scratch >= 0) & (scratch < scratch_rows)
            owns_window_k = in_key & (leads_group & has_scratch)
            owns_window_v = in_value & has_scratch

        rate = 1.0
        if HAS_RATE:
            rate = tl.exp(tl.load(A_log + head_v * A_log_head).to(tl.float32))
        bias = tl.zeros([BLOCK_K], dtype=tl.float32)
        if HAS_BIAS:
            bias = load_vector(dt_bias + gate_channels * dt_bias_channel, in_key)

        survival = tl.full([BLOCK_K], 1.0, dtype=tl.float32)
        keys = tl.zeros([CAPACITY, BLOCK_K], dtype=tl.float32)
        y_rows = tl.zeros([CAPACITY, BLOCK_K], dtype=tl.float32)
        z_rows = tl.zeros([CAPACITY, BLOCK_V], dtype=tl.float32)

        entry = tl.cast(0, tl.int64)
        while entry < length:
            row = start + entry
            raw_q = load_vector(x_q + row * x_q_row + head * x_q_head + key_lanes, in_key)
            raw_k = load_vector(x_k + row * x_k_row + head * x_k_head + key_lanes, in_key)
            raw_v = load_vector(x_v + row * x_v_row + head_v * x_v_head + value_lanes, in_value)
            logits = load_vector(g + row * g_row + head_v * g_head + key_lanes, in_key)
            logit = tl.load(beta + row * beta_row + head_v * beta_head).to(tl.float32)

            if HAS_CONV:
                mixed_q = short_conv(
                    q_oldest, q_older, q_old, raw_q, taps_q0, taps_q1, taps_q2, taps_q3
                )
                mixed_k = short_conv(
                    k_oldest, k_older, k_old, raw_k, taps_k0, taps_k1, taps_k2, taps_k3
                )
                value = short_conv(
                    v_oldest, v_older, v_old, raw_v, taps_v0, taps_v1, taps_v2, taps_v3
                )
                q_oldest = q_older
                q_older = q_old
                q_old = raw_q
                k_oldest = k_older
                k_older = k_old
                k_old = raw_k
                v_oldest = v_older
                v_older = v_old
                v_old = raw_v
            else:
                mixed_q = raw_q
                mixed_k = raw_k
                value = raw_v

            if HAS_WINDOWS:
                store_window(
                    window_q,
                    scratch * window_q_row + entry * window_q_token,
                    window_q_channel,
                    window_q_tap,
                    channels_k,
                    q_oldest,
                    q_older,
                    q_old,
                    owns_window_k,
                )
                store_window(
                    window_k,
                    scratch * window_k_row + entry * window_k_token,
                    window_k_channel,
                    window_k_tap,
                    channels_k,
                    k_oldest,
                    k_older,
                    k_old,
                    owns_window_k,
                )
                store_window(
                    window_v,
                    scratch * window_v_row + entry * window_v_token,
                    window_v_channel,
                    window_v_tap,
                    channels_v,
                    v_oldest,
                    v_older,
                    v_old,
                    owns_window_v,
                )

            query = unit_vector(mixed_q, NORMALISE) * scale
            key = unit_vector(mixed_k, NORMALISE)
            log_decay = log_decay_of(logits, bias, rate, lower_bound, GATE_FORM)
            strength = strength_of(logit, BETA_FORM)
            decay = tl.exp(log_decay)

            if HAS_RINGS:
                ring_v_at = slot * ring_v_slot + head_v * ring_v_head + entry * ring_v_entry
                ring_k_at = slot * ring_k_slot + head * ring_k_head + entry * ring_k_entry
                ring_g_at = slot * ring_g_slot + head_v * ring_g_head + entry * ring_g_entry
                store_vector(ring_v + ring_v_at + value_lanes, value, in_value)
                store_vector(ring_k + ring_k_at + key_lanes, mixed_k, in_key & leads_group)
                store_vector(ring_g + ring_g_at + key_lanes, log_decay, in_key)
                ring_beta_at = slot * ring_beta_slot + head_v * ring_beta_head
                tl.store(ring_beta + ring_beta_at + entry * ring_beta_entry, strength)

            if HAS_SNAPSHOTS:
                kept_keys = record + CAPACITY * (K + V)
                kept_decays = kept_keys + CAPACITY * K
                kept_values = kept_decays + CAPACITY * K
                kept_strengths = kept_values + CAPACITY * V
                tl.store(kept_keys + entry * K + key_lanes, key, mask=in_key)
                tl.store(kept_decays + entry * K + key_lanes, decay, mask=in_key)
                tl.store(kept_values + entry * V + value_lanes, value, mask=in_value)
                tl.store(kept_strengths + entry, strength)

            survival = survival * decay
            keys = keys * decay[None, :]
            is_token = token_lanes == entry

            # Rows of `keys` at and after the token are still zero, so the sum is over j < t.
            with_key = strength * sum_of_products(keys, key[None, :], 1)
            y_row = -strength * (survival * key) - sum_of_products(with_key[:, None], y_rows, 0)
            z_row = strength * value - sum_of_products(with_key[:, None], z_rows, 0)
            keys = tl.where(is_token[:, None], key[None, :], keys)
            y_rows = tl.where(is_token[:, None], y_row[None, :], y_rows)
            z_rows = tl.where(is_token[:, None], z_row[None, :], z_rows)

            with_query = sum_of_products(keys, query[None, :], 1)
            p_row = survival * query + sum_of_products(with_query[:, None], y_rows, 0)
            w_row = sum_of_products(with_query[:, None], z_rows, 0)
            tl.store(record + entry * K + key_lanes, p_row, mask=in_key)
            tl.store(record + CAPACITY * K + entry * V + value_lanes, w_row, mask=in_value)
            entry += 1
