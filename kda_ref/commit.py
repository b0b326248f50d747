"""Replay commit: fold the accepted prefix of a verify's rings into the committed pools."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .bounded import Bounded, exact
from .budget import Precision
from .prepare import prepare
from .recurrence import initial, run
from .verify import FP32_MAX


@dataclass(frozen=True)
class CommitResult:
    """The oracle's answer to a replay commit.

    Attributes:
        layers: per layer, the slots a commit writes: slot -> state [HV, V, K] with error
            [HV, V, 1]. Every other slot must stay bit-identical.
        in_range: every exact intermediate fits fp32.
    """

    layers: tuple[dict[int, Bounded], ...]
    in_range: bool


def kda_replay_commit(
    *,
    checkpoint_state: Tensor,
    rawv: Tensor,
    rawk: Tensor,
    gk: Tensor,
    beta: Tensor,
    ssm_state_indices: Tensor,
    accept_lens: Tensor,
    null_block_id: int,
    mamba_track_indices: Tensor | None = None,
    mamba_steps_to_track: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    check_values: bool | None = None,
    precision: Precision | None = None,
) -> CommitResult:
    """Replay accepted tokens in float64 from the rings as they are stored.

    S <- S diag(exp gk); u = beta (v - S k / |k|); S <- S + u (k / |k|)^T, per accepted token.

    Args:
        checkpoint_state: [slots, HV, V, K], or [layers, slots, HV, V, K] with every other
            buffer layer-stacked alike; never touched.
        rawv, rawk, gk, beta: rings [slots, HV, R, V], [slots, H, R, K], [slots, HV, R, K],
            [slots, HV, R].
        ssm_state_indices, accept_lens: [B]; rows with slot <= null_block_id are skipped.
        mamba_track_indices, mamba_steps_to_track: [B] or None; the state after step == track
            step (from zero) also goes to the track slot; -1, or a step not accepted, stores
            nothing.
        precision: what the judged kernel declares.

    Numerics: float64; judged on the rings it was given, whatever rounding they hold.
    Source: the public replay fold, arXiv 2510.26692 for the step.
    """
    precision = precision or Precision()
    stacked = checkpoint_state.ndim == 5
    buffers = (checkpoint_state, rawv, rawk, gk, beta)
    layers = zip(*buffers, strict=True) if stacked else [buffers]
    slots, accepted = ssm_state_indices.tolist(), accept_lens.tolist()
    track_slots = [-1] * len(slots) if mamba_track_indices is None else mamba_track_indices.tolist()
    track_steps = (
        [-1] * len(slots) if mamba_steps_to_track is None else mamba_steps_to_track.tolist()
    )

    results, largest = [], 0.0
    for state, v, k, decay, b in layers:
        written: dict[int, Bounded] = {}
        for slot, count, track_slot, track_step in zip(
            slots, accepted, track_slots, track_steps, strict=True
        ):
            if slot <= null_block_id or count == 0:
                continue
            entries = [exact(ring[slot].transpose(0, 1)[:count]) for ring in (k, v, decay)]
            strength = exact(b[slot].transpose(0, 1)[:count])
            tokens = prepare(
                entries[0], entries[0], entries[1], entries[2], strength,
                scale=1.0, use_l2norm=use_qk_l2norm_in_kernel, precision=precision,
            )  # fmt: skip
            tracked: dict[int, Bounded] = {}

            def track(t: int, after: Bounded, step=track_step, into=tracked) -> None:
                if t == step:
                    into[0] = after

            trace = run(tokens, initial(state[slot]), precision, track)
            written[slot] = trace.state
            largest = max(largest, trace.largest)
            if tracked and track_slot >= 0:
                written[track_slot] = tracked[0]
        results.append(written)
    return CommitResult(tuple(results), in_range=largest < FP32_MAX)


def kda_conv_commit(
    *,
    cs_q: Tensor,
    cs_k: Tensor,
    cs_v: Tensor,
    intermediate_conv_q: Tensor,
    intermediate_conv_k: Tensor,
    intermediate_conv_v: Tensor,
    intermediate_state_indices: Tensor,
    ssm_state_indices: Tensor,
    accept_lens: Tensor,
    null_block_id: int,
    check_values: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the conv pools after a commit: the window recorded at the last accepted token.

    Args:
        cs_q, cs_k, cs_v: [slots, C, 3], or layer-stacked; never touched, copies are returned.
        intermediate_conv_q, _k, _v: [rows, depth, C, 3] windows of the verify, alike.
        intermediate_state_indices, ssm_state_indices, accept_lens: [B].
        null_block_id: rows with slot <= null_block_id are skipped.

    Numerics: copies, so exact.
    """
    pools = []
    for pool, recorded in (
        (cs_q, intermediate_conv_q),
        (cs_k, intermediate_conv_k),
        (cs_v, intermediate_conv_v),
    ):
        new = pool.clone()
        for row, slot, count in zip(
            intermediate_state_indices.tolist(),
            ssm_state_indices.tolist(),
            accept_lens.tolist(),
            strict=True,
        ):
            if slot > null_block_id and count > 0:
                new[..., slot, :, :] = recorded[..., row, count - 1, :, :]
        pools.append(new)
    return pools[0], pools[1], pools[2]
