"""Second pass of a verify: one product with the state, the gated norm, one rounding.

O = P S0^T + W from the prepared operands, then o / sqrt(mean o^2 + eps) * weight * sigmoid(gate)
where the norm is asked for. The only pass that writes `out`, so it also clears the rows that no
live request owns.
"""

import triton
import triton.language as tl

from .launch import kernel
from .recurrence import request_rows, sigmoid, sum_of_products


@triton.jit
def zero_rows(columns, row_stride, first, last, mask, ROWS: tl.constexpr, BLOCK_V: tl.constexpr):
    """Store zeros in rows [first, last); columns are pointers to row 0."""
    rows = tl.arange(0, ROWS)
    zeros = tl.zeros([ROWS, BLOCK_V], dtype=tl.float32).to(columns.dtype.element_ty)
    base = first
    while base < last:
        row = base + rows
        in_range = row < last
        pointers = columns[None, :] + row[:, None] * row_stride
        tl.store(pointers, zeros, mask=in_range[:, None] & mask[None, :])
        base += ROWS


@kernel
def stream_kernel(
    recurrent_state,
    workspace,
    onorm_gate,
    onorm_weight,
    out,
    slot_indices,
    cu_seqlens,
    onorm_eps: tl.float32,
    requests: tl.int64,
    value_heads: tl.int64,
    total_rows: tl.int64,
    slots: tl.int64,
    max_tokens: tl.int64,
    slot_index_stride: tl.int64,
    cu_stride: tl.int64,
    state_pitch: tl.int64,
    gate_row: tl.int64,
    gate_head: tl.int64,
    weight_channel: tl.int64,
    out_row: tl.int64,
    out_head: tl.int64,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    CAPACITY: tl.constexpr,
    RECORD: tl.constexpr,
    HAS_NORM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Finish one request and value head; program (request * value_heads + value head)."""
    program = tl.program_id(0).to(tl.int64)
    request = program // value_heads
    head_v = program % value_heads

    slot = tl.load(slot_indices + request * slot_index_stride).to(tl.int64)
    start, end = request_rows(cu_seqlens, cu_stride, request, total_rows, max_tokens)
    is_live = (slot >= 0) & (slot < slots)
    length = tl.where(is_live, end - start, 0)

    value_lanes = tl.arange(0, BLOCK_V)
    in_value = value_lanes < V
    columns = out + head_v * out_head + value_lanes

    if length > 0:
        token_lanes = tl.arange(0, ROWS)
        is_token = token_lanes < length
        in_output = is_token[:, None] & in_value[None, :]
        record = tl.multiple_of(workspace + program * RECORD, 16)
        # The contract: storage offset and slot pitch of the pool are multiples of 4 elements. A
        # hint on the slot alone would be lost when the head is added, and the state would then be
        # copied 4 bytes at a time.
        state = recurrent_state + slot * state_pitch + head_v * (V * K)
        if V * K % 4 == 0:
            state = tl.multiple_of(state, 16)

        w_pointers = record + CAPACITY * K + token_lanes[:, None] * V + value_lanes[None, :]
        acc = tl.load(w_pointers, mask=in_output, other=0.0)
        for first in range(0, K, STEP):
            key_lanes = first + tl.arange(0, STEP)
            in_key = key_lanes < K
            s_pointers = state + value_lanes[:, None] * K + key_lanes[None, :]
            s_tile = tl.load(s_pointers, mask=in_value[:, None] & in_key[None, :], other=0.0)
            p_pointers = record + token_lanes[:, None] * K + key_lanes[None, :]
            p_tile = tl.load(p_pointers, mask=is_token[:, None] & in_key[None, :], other=0.0)
            acc = tl.dot(p_tile, tl.trans(s_tile), acc, input_precision=PRECISION)

        row = start + token_lanes
        if HAS_NORM:
            # Squares of a tiny row vanish, and its root with them: where eps is too small to stand
            # in for the root, lift the row by a power of two, which changes no quotient.
            is_tiny = tl.max(tl.abs(acc), axis=1) < 2.0**-50
            lift = tl.where(is_tiny & (onorm_eps < 2.0**-80), 2.0**100, 1.0)
            lifted = acc * lift[:, None]
            mean_square = tl.div_rn(sum_of_products(lifted, lifted, 1), V * 1.0)
            mean_square += onorm_eps * lift * lift
            # Lanes past the request hold zeros: give them a root that is not zero.
            root = tl.sqrt_rn(tl.where(is_token, mean_square, 1.0))
            gate_pointers = onorm_gate + head_v * gate_head + value_lanes[None, :]
            gate_pointers = gate_pointers + row[:, None] * gate_row
            gate = tl.load(gate_pointers, mask=in_output, other=0.0).to(tl.float32)
            weight_pointers = onorm_weight + value_lanes * weight_channel
            weight = tl.load(weight_pointers, mask=in_value, other=0.0).to(tl.float32)
            normed = tl.div_rn(lifted, root[:, None])
            acc = normed * weight[None, :] * sigmoid(gate)
        out_pointers = columns[None, :] + row[:, None] * out_row
        tl.store(out_pointers, acc.to(out.dtype.element_ty), mask=in_output)

    # Rows up to the next request belong to nobody; a padding request owns its rows, as zeros.
    next_start = tl.load(cu_seqlens + (request + 1) * cu_stride).to(tl.int64)
    next_start = tl.minimum(tl.maximum(next_start, 0), total_rows)
    next_start = tl.where(request + 1 == requests, total_rows, next_start)
    zero_from = tl.where(is_live, end, start)
    zero_to = tl.maximum(next_start, end)
    zero_rows(columns, out_row, zero_from, zero_to, in_value, ROWS, BLOCK_V)
    if request == 0:
        zero_rows(columns, out_row, tl.cast(0, tl.int64), start, in_value, ROWS, BLOCK_V)
