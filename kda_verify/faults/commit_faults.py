"""Planted faults of the commits."""

from __future__ import annotations

from .planted import Plant

REPLAY: tuple[Plant, ...] = (
    Plant(
        "null-block-committed",
        "commit",
        """is_live = (slot > null_block) & (slot >= 0) & (slot < slots)
    length""",
        """is_live = (slot >= null_block) & (slot >= 0) & (slot < slots)
length""",
        "the null block itself is committed",
        "commit",
    ),
    Plant(
        "commit-key-raw",
        "commit",
        "key = unit_vector(raw_key, NORMALISE)",
        "key = raw_key",
        "a commit replays keys without their norm",
        "commit",
    ),
    Plant(
        "commit-in-base-2",
        "commit",
        "decay = tl.exp(log_decay)",
        "decay = tl.exp2(log_decay)",
        "a commit exponentiates in base 2",
        "commit",
    ),
    Plant(
        "commit-of-first-head",
        "commit",
        "head = head_v // GROUP",
        "head = head_v * 0",
        "a commit takes the keys of head 0 for all",
        "commit",
    ),
    Plant(
        "strengths-of-first-layer",
        "commit",
        "b_at = strengths + layer * b_layer + slot",
        "b_at = strengths + slot",
        "every layer takes the strengths of the first",
        "commit",
    ),
    Plant(
        "tracked-in-first-layer",
        "commit",
        "tracked = tl.multiple_of(layer_pool + track_slot * checkpoint_slot, 16) + offsets",
        "tracked = tl.multiple_of(checkpoint + track_slot * checkpoint_slot, 16) + offsets",
        "tracked states of every layer go to the first",
        "commit",
    ),
    Plant(
        "accept-all",
        "commit",
        "length = tl.where(is_live, accepted, 0)",
        "length = tl.where(is_live & (accepted > 0), entries, 0)",
        "a commit that accepts anything accepts everything",
        "commit",
    ),
    Plant(
        "commit-one-step-short",
        "commit",
        "while entry < length:",
        "while entry < tl.maximum(length - 1, 1):",
        "a commit stops one token before the last accepted",
        "commit",
    ),
    Plant(
        "track-dropped",
        "replay",
        "mamba_track_indices, mamba_steps_to_track, use_qk_l2norm_in_kernel,",
        "None, None, use_qk_l2norm_in_kernel,",
        "tracked states are not stored",
        "commit",
    ),
    Plant(
        "ring-of-request",
        "commit",
        "k_row = raw_k + layer * k_layer + slot * k_slot",
        "k_row = raw_k + layer * k_layer + request * k_slot",
        "keys come from the ring of the request's number",
        "commit",
    ),
)
CONV: tuple[Plant, ...] = (
    Plant(
        "conv-taps-reversed",
        "commit",
        "source = windows + lanes * window_channel + tap * window_tap",
        "source = windows + lanes * window_channel + (2 - tap) * window_tap",
        "a conv commit stores the window newest first",
        "conv_commit",
    ),
    Plant(
        "conv-row-by-request",
        "commit",
        "row = tl.load(scratch_indices + request * scratch_index_stride).to(tl.int64)",
        "row = request",
        "a conv commit reads the scratch row of the request's number",
        "conv_commit",
    ),
    Plant(
        "conv-commit-of-none",
        "commit",
        "if is_live & has_window & (accepted > 0):",
        """token = tl.maximum(token, 0)
if is_live & has_window:""",
        "a rejected request takes the window of its first token",
        "conv_commit",
    ),
    Plant(
        "deepest-window-lost",
        "commit",
        "accepted = tl.minimum(tl.maximum(accepted, 0), depth)",
        "accepted = tl.minimum(tl.maximum(accepted, 0), depth - 1)",
        "a fully accepted draft takes the window before its last",
        "conv_commit",
    ),
)
