"""The plants: one wrong line each, at places where kernels of this kind have gone wrong."""

from __future__ import annotations

from .planted import Plant

TF32_STATE_PRODUCT = Plant(
    "tf32-state-product",
    "stream",
    "acc = tl.dot(p_tile, tl.trans(s_tile), acc, input_precision=PRECISION)",
    # Half a unit of the tenth fraction bit, then the lower thirteen cleared: TF32, to nearest.
    """p_bits = (p_tile.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
s_bits = (s_tile.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
p_tile = p_bits.to(tl.float32, bitcast=True)
s_tile = s_bits.to(tl.float32, bitcast=True)
acc = tl.dot(p_tile, tl.trans(s_tile), acc, input_precision=PRECISION)""",
    "the product with the state takes both operands in TF32",
)
TF32_COMMIT_PRODUCT = Plant(
    "tf32-commit-product",
    "recurrence",
    "predicted = sum_of_products(decayed, key[None, :], 1)",
    """key_bits = (key.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
state_bits = (decayed.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
coarse = state_bits.to(tl.float32, bitcast=True)
predicted = sum_of_products(coarse, key_bits.to(tl.float32, bitcast=True)[None, :], 1)""",
    "snapshots and commit predict the value with both operands in TF32",
    "commit",
)

PLANTS: tuple[Plant, ...] = (
    TF32_STATE_PRODUCT,
    TF32_COMMIT_PRODUCT,
    Plant(
        "floor-hard-coded",
        "recurrence",
        "result = floor * sigmoid(rate * (logits + bias))",
        "result = -5.0 * sigmoid(rate * (logits + bias))",
        "the gate's lower bound is -5 whatever was asked",
    ),
    Plant(
        "first-block-only",
        "commit",
        """channels = (block - blocks_k) * BLOCK + lanes
            pool = cs_k""",
        """channels = lanes
pool = cs_k""",
        "a conv commit of k copies the first block of channels again and again",
        "conv_commit",
    ),
    Plant(
        "nan-swallowed",
        "stream",
        "row = start + token_lanes",
        """acc = tl.where(acc == acc, acc, 0.0)
row = start + token_lanes""",
        "a NaN leaves the product as zero",
    ),
    Plant(
        "decay-left-out",
        "prepare",
        "decay = tl.exp(log_decay)",
        "decay = tl.exp(0.0 * log_decay)",
        "a verify does not decay the state",
    ),
    Plant(
        "no-carry",
        "stream",
        "s_tile = tl.load(s_pointers, mask=in_value[:, None] & in_key[None, :], other=0.0)",
        "s_tile = tl.zeros([BLOCK_V, STEP], dtype=tl.float32)",
        "the state is not read",
    ),
    Plant(
        "commit-decay-left-out",
        "recurrence",
        "decayed = state * decay[None, :]",
        "decayed = state",
        "snapshots and commit do not decay the state",
        "commit",
    ),
    Plant(
        "commit-no-carry",
        "commit",
        "state = tl.load(pool, mask=in_tile, other=0.0)",
        "state = tl.zeros([TILE_V, BLOCK_K], dtype=tl.float32)",
        "a commit does not read the state",
        "commit",
    ),
    Plant(
        "padding-is-slot-0",
        "prepare",
        "is_live = (slot >= 0) & (slot < slots)",
        "slot = tl.maximum(slot, 0)\nis_live = slot < slots",
        "a padding request records in the rings of slot 0",
    ),
    Plant(
        "gate-unmasked",
        "prepare",
        "logits = load_vector(g + row * g_row + head_v * g_head + key_lanes, in_key)",
        "logits = load_vector(g + row * g_row + head_v * g_head + key_lanes, key_lanes >= 0)",
        "gate logits are read past K, where the key is zero and the gate need not be finite",
    ),
    Plant(
        "stride-of-v-for-k",
        "prepare",
        "raw_k = load_vector(x_k + row * x_k_row + head * x_k_head + key_lanes, in_key)",
        "raw_k = load_vector(x_k + row * x_v_row + head * x_k_head + key_lanes, in_key)",
        "rows of k are found with the row stride of v",
    ),
    Plant(
        "heads-interleaved",
        "prepare",
        "head = head_v // GROUP",
        "head = head_v % (value_heads // GROUP)",
        "value head hv reads query head hv % H",
    ),
    Plant(
        "sigmoid-twice",
        "prepare",
        "strength = strength_of(logit, BETA_FORM)",
        "strength = strength_of(strength_of(logit, BETA_FORM), BETA_FORM)",
        "the write strength passes its sigmoid twice",
    ),
    Plant(
        "bias-after-rate",
        "recurrence",
        "result = floor * sigmoid(rate * (logits + bias))",
        "result = floor * sigmoid(rate * logits + bias)",
        "the gate bias is added after the rate is applied",
    ),
    Plant(
        "softplus-tail-lost",
        "recurrence",
        "tail = tl.where(vanished, decayed, corrected)",
        "tail = tl.log(rounded)",
        "softplus of very negative numbers loses its relative accuracy",
    ),
    Plant(
        "eps-outside-root",
        "recurrence",
        "length = tl.sqrt_rn(sum_of_products(x, x, 0) + 1e-6)",
        "length = tl.sqrt_rn(sum_of_products(x, x, 0)) + 1e-6",
        "the eps of the key norm stands outside its root",
    ),
    Plant(
        "scale-dropped",
        "prepare",
        "query = unit_vector(mixed_q, NORMALISE) * scale",
        "query = unit_vector(mixed_q, NORMALISE)",
        "the query is not scaled",
    ),
    Plant(
        "ring-past-length",
        "prepare",
        "tl.store(ring_beta + ring_beta_at + entry * ring_beta_entry, strength)",
        """ring_beta_at += entry * ring_beta_entry
tl.store(ring_beta + ring_beta_at, strength)
has_next = entry + 1 < max_tokens
tl.store(ring_beta + ring_beta_at + ring_beta_entry, strength, mask=has_next)""",
        "a ring entry past the request's length is written",
    ),
    Plant(
        "window-lags",
        "prepare",
        "store_vector(entries + 2 * tap_stride, old, mask)",
        "store_vector(entries + 2 * tap_stride, older, mask)",
        "the newest input of a recorded window is that of the token before",
    ),
    Plant(
        "state-transposed",
        "stream",
        "s_pointers = state + value_lanes[:, None] * K + key_lanes[None, :]",
        """s_pointers = state + value_lanes[:, None] * K + key_lanes[None, :]
if K == V:
    s_pointers = state + value_lanes[:, None] + key_lanes[None, :] * V""",
        "the state is read as [K, V] where K == V hides it from shape checks",
    ),
    Plant(
        "mean-over-block",
        "stream",
        "V * 1.0",
        "BLOCK_V * 1.0",
        "the output norm divides by the block, not by V",
    ),
    Plant(
        "stale-rows",
        "stream",
        "zero_to = tl.maximum(next_start, end)",
        "zero_to = zero_from",
        "rows of `out` that no live request owns keep what they held",
    ),
    Plant(
        "snapshots-late",
        "scan",
        """state = token_update(state, key, value, decay, strength)
            snapshot = snapshots + scratch * snapshot_row + entry * snapshot_token
            tl.store(tl.multiple_of(snapshot, 16) + offsets, state, mask=in_tile)""",
        """snapshot = snapshots + scratch * snapshot_row + entry * snapshot_token
tl.store(tl.multiple_of(snapshot, 16) + offsets, state, mask=in_tile)
state = token_update(state, key, value, decay, strength)""",
        "a snapshot holds the state before its token",
    ),
    Plant(
        "scratch-row-by-request",
        "scan",
        "scratch = tl.load(scratch_indices + request * scratch_index_stride).to(tl.int64)",
        "scratch = request",
        "snapshots go to the row of the request's number",
    ),
    Plant(
        "commit-one-too-many",
        "commit",
        "accepted = tl.minimum(tl.maximum(accepted, 0), entries)",
        "accepted = tl.minimum(tl.maximum(accepted, 0) + 1, entries)",
        "a commit folds one token more than was accepted",
        "commit",
    ),
    Plant(
        "null-slot-committed",
        "commit",
        """is_live = (slot > null_block) & (slot >= 0) & (slot < slots)
    length = tl.where(is_live, accepted, 0)""",
        """slot = tl.maximum(slot, 0)
length = tl.where(slot < slots, accepted, 0)""",
        "a commit of padding advances slot 0",
        "commit",
    ),
    Plant(
        "track-step-late",
        "commit",
        "(entry == track_step)",
        "(entry == track_step + 1)",
        "the tracked state is that of the next step",
        "commit",
    ),
    Plant(
        "first-layer-only",
        "commit",
        "layer_pool = checkpoint + layer * checkpoint_layer",
        "layer_pool = checkpoint",
        "every layer of a stacked pool commits into the first",
        "commit",
    ),
    Plant(
        "window-of-token-before",
        "commit",
        "token = accepted - 1",
        "token = tl.maximum(accepted - 2, 0)",
        "a conv commit takes the window of the token before the last accepted",
        "conv_commit",
    ),
)
"""Faults of our own kernels, each found by a drawn case of its operation."""
