"""Held-out faults of the multi-token kernel, written without sight of the cases."""

from __future__ import annotations

from .planted import Plant

HELD_OUT_VERIFY: tuple[Plant, ...] = (
    Plant(
        "key-history-taps-of-query",
        "prepare",
        "cs_k, slot * cs_k_slot, cs_k_channel, cs_k_tap, channels_k, in_key",
        "cs_k, slot * cs_k_slot, cs_k_channel, cs_q_tap, channels_k, in_key",
        "reads the key history with the tap stride of the query's: wrong where the two differ",
        "verify",
    ),
    Plant(
        "group-leader-among-first-heads",
        "prepare",
        "leads_group = head_v % GROUP == 0",
        "leads_group = head_v < value_heads // GROUP",
        "with G > 1 and H > 1 the later key heads get no q and k windows and no key ring",
        "verify",
    ),
    Plant(
        "value-history-shifted-too-late",
        "prepare",
        "v_older = v_old",
        "v_older = raw_v",
        "the value history holds the new input twice and loses the one before it",
        "verify",
    ),
    Plant(
        "ring-decay-from-its-exponential",
        "prepare",
        "store_vector(ring_g + ring_g_at + key_lanes, log_decay, in_key)",
        "store_vector(ring_g + ring_g_at + key_lanes, tl.log(decay), in_key)",
        "records log(exp(G)): weak gates lose digits or become 0, very strong ones -inf",
        "verify",
    ),
    Plant(
        "residual-strength-twice",
        "prepare",
        "z_row = strength * value - sum_of_products(with_key[:, None], z_rows, 0)",
        "z_row = strength * (value - sum_of_products(with_key[:, None], z_rows, 0))",
        "from the second token on, what earlier drafts wrote is subtracted with strength squared",
        "verify",
    ),
    Plant(
        "solve-up-to-eight-tokens",
        "prepare",
        "with_key = strength * sum_of_products(keys, key[None, :], 1)",
        "with_key = strength * sum_of_products(keys, key[None, :], 1)\n"
        "with_key = tl.where(token_lanes < 8, with_key, 0.0)",
        "tokens after the eighth are not removed from later residuals: drafts of 10 and more",
        "verify",
    ),
    Plant(
        "gate-logit-in-its-own-dtype",
        "prepare",
        "log_decay = log_decay_of(logits, bias, rate, lower_bound, GATE_FORM)",
        "biased = (logits + bias).to(g.dtype.element_ty).to(tl.float32)\n"
        "log_decay = log_decay_of(biased, 0.0, rate, lower_bound, GATE_FORM)",
        "adds the gate bias in the dtype of g: rounded where g is half precision and bias is given",
        "verify",
    ),
    Plant(
        "snapshot-value-as-recorded",
        "prepare",
        "tl.store(kept_values + entry * V + value_lanes, value, mask=in_value)",
        "recorded = value.to(x_v.dtype.element_ty).to(tl.float32)\n"
        "tl.store(kept_values + entry * V + value_lanes, recorded, mask=in_value)",
        "snapshots use the convolved value rounded to the dtype of x; the output does not",
        "verify",
    ),
    Plant(
        "decay-floor-at-minus-ten",
        "prepare",
        "decay = tl.exp(log_decay)",
        "decay = tl.exp(tl.maximum(log_decay, -10.0))",
        "channels with a log decay below -10 keep 4.5e-5 of the state in output and snapshots",
        "verify",
    ),
    Plant(
        "sigmoid-by-complement",
        "recurrence",
        "return tl.div_rn(numerator, 1.0 + decayed)",
        "larger = 1.0 / (1.0 + decayed)\nreturn tl.where(x >= 0.0, larger, 1.0 - larger)",
        "1 - sigmoid(-x) for negative x: small sigmoids lose their digits, then vanish",
        "verify",
    ),
    Plant(
        "request-end-beside-its-start",
        "recurrence",
        "raw_end = tl.load(cu_seqlens + (request + 1) * stride)",
        "raw_end = tl.load(cu_seqlens + request * stride + 1)",
        "reads the end of a request as if offsets were dense: wrong lengths for strided offsets",
        "verify",
    ),
    Plant(
        "slack-cleared-after-live-only",
        "stream",
        "tl.where(request + 1 == requests, total_rows, next_start)",
        "tl.where(is_live & (request + 1 == requests), total_rows, next_start)",
        "rows past the last offset stay unwritten where the last request is padding",
        "verify",
    ),
    Plant(
        "one-block-of-zero-rows",
        "stream",
        "while base < last:",
        "if base < last:",
        "of more than 16 rows that nobody owns only the first 16 are cleared",
        "verify",
    ),
    Plant(
        "state-lanes-past-the-key",
        "stream",
        "s_tile = tl.load(s_pointers, mask=in_value[:, None] & in_key[None, :], other=0.0)",
        "in_step = key_lanes >= 0\n"
        "s_tile = tl.load(s_pointers, mask=in_value[:, None] & in_step[None, :], other=0.0)",
        "where K is no multiple of the step, NaN or inf past a state row spoils its value channel",
        "verify",
    ),
    Plant(
        "mean-square-over-keys",
        "stream",
        "V * 1.0",
        "K * 1.0",
        "the output norm divides its sum of squares by K: wrong where K differs from V",
        "verify",
    ),
    Plant(
        "tiny-rows-lifted-with-any-eps",
        "stream",
        "lift = tl.where(is_tiny & (onorm_eps < 2.0**-80), 2.0**100, 1.0)",
        "lift = tl.where(is_tiny, 2.0**100, 1.0)",
        "an ordinary eps overflows once lifted: rows below 2^-50 leave the output norm as zero",
        "verify",
    ),
    Plant(
        "rounded-between-norm-and-gate",
        "stream",
        "acc = normed * weight[None, :] * sigmoid(gate)",
        "normed = normed.to(out.dtype.element_ty).to(tl.float32)\n"
        "acc = normed * weight[None, :] * sigmoid(gate)",
        "a half-precision output is rounded before weight and gate and once more after them",
        "verify",
    ),
    Plant(
        "snapshot-tokens-dense",
        "scan",
        "scratch * snapshot_row + entry * snapshot_token",
        "scratch * snapshot_row + entry * (value_heads * V * K)",
        "snapshots after the first token are misplaced where the token pitch is wider than a state",
        "verify",
    ),
    Plant(
        "snapshots-up-to-max-tokens",
        "scan",
        "while entry < length:",
        "while entry < max_tokens:",
        "a request shorter than max_tokens has the rest of its scratch row overwritten with noise",
        "verify",
    ),
    Plant(
        "scratch-rows-of-windows-only",
        "plan",
        "recorded = (o.intermediate_ssm, *o[16:19])",
        "recorded = o[16:19]",
        "snapshots without windows see no scratch rows and are never written",
        "verify",
    ),
    Plant(
        "snapshot-tiles-rounded-down",
        "plan",
        "tiles = -(-value_size // tile_rows)\n        launches.append(",
        "tiles = value_size // tile_rows\nlaunches.append(",
        "the last rows of every snapshot are missing where V is no multiple of the tile",
        "verify",
    ),
    Plant(
        "zero-scale-counts-as-none",
        "plan",
        "key_size**-0.5 if o.scale is None else float(o.scale)",
        "float(o.scale or key_size**-0.5)",
        "scale=0.0 acts as the default scale, so the output is not zero",
        "verify",
    ),
    Plant(
        "plan-kept-whatever-the-numbers",
        "registration",
        "run_all(plan_verify(o), o.out.device)",
        "key = tuple(\n"
        "    (x.data_ptr(), x.dtype, x.shape, x.stride()) if isinstance(x, torch.Tensor) else x\n"
        "    for x in operands\n"
        "    if not isinstance(x, float)\n"
        ")\n"
        'if getattr(mtp_verify, "key", None) != key:\n'
        "    mtp_verify.key, mtp_verify.launches = key, plan_verify(o)\n"
        "run_all(mtp_verify.launches, o.out.device)",
        "a repeated call on the same tensors keeps the scale, bound and eps of the call before",
        "verify",
    ),
    Plant(
        "strided-out-left-alone",
        "mtp",
        "if out is None:",
        "if out is None or not out.is_contiguous():",
        "an output buffer with gaps is not written; the result comes back in a new tensor",
        "verify",
    ),
    Plant(
        "zero-eps-drops-the-norm",
        "dspark",
        "onorm_gate, onorm_weight, onorm_eps, out,",
        "onorm_gate if onorm_eps else None, onorm_weight, onorm_eps, out,",
        "the drop-in leaves out the output norm where onorm_eps is 0.0, which counts as given",
        "drop-in",
    ),
    Plant(
        "capacity-of-the-first-request",
        "dspark",
        "max_tokens = x_q.shape[1] // ssm_state_indices.shape[0]",
        "max_tokens = int(cu_seqlens[1] - cu_seqlens[0])",
        "the drop-in cuts every ragged request to the length of the first",
        "drop-in",
    ),
)

NEEDS_GPU: tuple[Plant, ...] = (
    Plant(
        "state-offset-in-32-bits",
        "stream",
        "recurrent_state + slot * state_pitch",
        "recurrent_state + (slot * state_pitch).to(tl.uint32).to(tl.int64)",
        "a slot 2^32 elements or more into the pool reads another place of the pool",
        "verify",
    ),
)
"""Shows in a pool of more than 16 GiB alone."""
