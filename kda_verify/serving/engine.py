"""The engine: pools, rings and scratch, and the calls a round makes on them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..cases.draw import Draw
from ..subjects.base import Claims
from .inputs import EPS, LOWER_BOUND, STREAMS, Rows, dtype_of, heads_of, poison_of, weights
from .schedule import Schedule, Seat

RINGS = ("rawv", "rawk", "g", "beta")


@dataclass(frozen=True)
class Kernels:
    """The three operations an engine needs, with the keywords of `kda_kernels`.

    Attributes:
        name: they are reported under.
        verify, commit, conv_commit: the calls.
        claims: what the verify declares; the commit must be as precise and is judged by it too.
    """

    name: str
    verify: Callable[..., Tensor]
    commit: Callable[..., None]
    conv_commit: Callable[..., None]
    claims: Claims


def our_kernels(package: str = "kda_kernels") -> Kernels:
    """Return our kernels, or those of a copy of the package with a planted fault."""
    from ..subjects.ours import ONE_PASS

    module = importlib.import_module(package)
    return Kernels(
        package, module.kda_mtp_verify, module.kda_replay_commit, module.kda_conv_commit, ONE_PASS
    )


@dataclass(frozen=True)
class Batch:
    """One round as it is called.

    Attributes:
        seats: in the order of the verify.
        offsets: row offsets, one more than seats.
        scratch: scratch row of each seat; -1 for padding.
        order: positions of the seats in the order of the commit.
        drafts: raw inputs, [layer][seat].
    """

    seats: tuple[Seat, ...]
    offsets: tuple[int, ...]
    scratch: tuple[int, ...]
    order: tuple[int, ...]
    drafts: Sequence[Sequence[Rows]]


class Engine:
    """Hold the memory of a server and run rounds on it.

    Every buffer has a leading layer axis and starts full of poison.

    Attributes:
        pools: by operand name: `recurrent_state`, `cs_q`, `cs_k`, `cs_v`, `replayssm_rawv`,
            `replayssm_rawk`, `replayssm_g`, `replayssm_beta` and `intermediate_conv_q`, `_k`, `_v`,
            and `intermediate_ssm` where snapshots are recorded.
    """

    def __init__(self, schedule: Schedule, kernels: Kernels, device: str = "cpu") -> None:
        self.schedule, self.kernels, self.device = schedule, kernels, device
        self.layers = [weights(schedule, layer) for layer in range(schedule.layers)]
        self.scratch_rows = schedule.slots + 2
        self.pools = dict(self._allocate())

    def _allocate(self) -> dict[str, Tensor]:
        s, heads = self.schedule, heads_of(self.schedule)
        head_pool = (s.layers, s.slots)
        scratch = (s.layers, self.scratch_rows, s.max_tokens)
        (hv, v), (h, k), depth = heads["v"], heads["k"], s.max_tokens
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "recurrent_state": ((*head_pool, hv, v, k), torch.float32),
            "replayssm_rawv": ((*head_pool, hv, depth, v), dtype_of(s)),
            "replayssm_rawk": ((*head_pool, h, depth, k), dtype_of(s)),
            "replayssm_g": ((*head_pool, hv, depth, k), torch.float32),
            "replayssm_beta": ((*head_pool, hv, depth), torch.float32),
        }
        for name, (count, size) in heads.items():
            shapes[f"cs_{name}"] = ((*head_pool, count * size, 3), dtype_of(s))
            shapes[f"intermediate_conv_{name}"] = ((*scratch, count * size, 3), dtype_of(s))
        if s.snapshots:
            shapes["intermediate_ssm"] = ((*scratch, hv, v, k), torch.float32)
        return {
            name: torch.full(shape, poison_of(s, dtype), dtype=dtype, device=self.device)
            for name, (shape, dtype) in shapes.items()
        }

    def take(self, slot: int) -> None:
        """Clear what a new request reads: state and conv history. Rings are written first."""
        for name in ("recurrent_state", "cs_q", "cs_k", "cs_v"):
            self.pools[name][:, slot] = 0.0

    def poison(self, slot: int) -> None:
        """Fill all that a slot holds with poison."""
        for name, pool in self.pools.items():
            if not name.startswith("intermediate"):
                pool[:, slot] = poison_of(self.schedule, pool.dtype)

    def batch(self, number: int, seats: tuple[Seat, ...], drafts: Any) -> Batch:
        """Seat a round: scratch rows and the order of the commit are permuted anew."""
        draw = Draw(self.schedule.seed, f"batch {number}")
        rows = iter(draw.permutation("scratch", self.scratch_rows).tolist())
        scratch = tuple(next(rows) if seat.slot >= 0 else -1 for seat in seats)
        order = tuple(draw.permutation("commit", len(seats)).tolist())
        offsets = [0]
        for seat in seats:
            offsets.append(offsets[-1] + seat.tokens)
        return Batch(seats, tuple(offsets), scratch, order, drafts)

    def verify(self, layer: int, batch: Batch) -> Tensor:
        """Run the verify of one layer; rows of padding and one slack row hold poison."""
        s, weight, dtype = self.schedule, self.layers[layer], dtype_of(self.schedule)
        total, poison = batch.offsets[-1] + 1, poison_of(s, dtype)
        heads_v, size_v = heads_of(s)["v"]

        def packed(pick: Callable[[Rows], Tensor], *shape: int) -> Tensor:
            rows = torch.full((1, total, *shape), poison, dtype=dtype)
            for n, seat in enumerate(batch.seats):
                if seat.slot >= 0:
                    mine = slice(batch.offsets[n], batch.offsets[n + 1])
                    rows[0, mine] = pick(batch.drafts[layer][n])
            return rows.to(self.device)

        arguments: dict[str, Any] = {}
        for name, shape in heads_of(s).items():
            arguments[f"x_{name}"] = packed(lambda r, name=name: r.x[name], *shape)  # type: ignore[misc]
            arguments[f"w_{name}"] = weight.taps[name].to(self.device)
        for name, pool in self.pools.items():
            arguments[name] = pool[layer]
        if s.norm:
            gate = packed(lambda r: r.z, heads_v, size_v)
            weight_of_norm = weight.norm.to(self.device)
            arguments.update(onorm_gate=gate, onorm_weight=weight_of_norm, onorm_eps=EPS)
        out = torch.full((1, total, heads_v, size_v), poison, dtype=dtype, device=self.device)
        return self.kernels.verify(
            **arguments,
            g=packed(lambda r: r.g, heads_v, s.size_k),
            beta=packed(lambda r: r.beta, heads_v),
            A_log=weight.a_log.to(self.device),
            dt_bias=weight.dt_bias.to(self.device),
            ssm_state_indices=self._int32(seat.slot for seat in batch.seats),
            intermediate_state_indices=self._int32(batch.scratch),
            cu_seqlens=self._int32(batch.offsets),
            max_tokens=s.max_tokens,
            gate_form=s.gate_form,
            lower_bound=LOWER_BOUND if s.gate_form == "lower_bound" else None,
            out=out,
        )

    def commit(self, batch: Batch) -> None:
        """Commit all layers at once: states and tracked states, then windows."""
        seats = [batch.seats[n] for n in batch.order]
        scratch = [batch.scratch[n] for n in batch.order]
        # Padding is a slot of the null block, where there is one.
        null = self.schedule.null_block
        slots = self._int32(seat.slot if seat.slot >= 0 else null for seat in seats)
        accepted = self._int32(seat.accepted for seat in seats)
        self.kernels.commit(
            checkpoint_state=self.pools["recurrent_state"],
            rawv=self.pools["replayssm_rawv"],
            rawk=self.pools["replayssm_rawk"],
            gk=self.pools["replayssm_g"],
            beta=self.pools["replayssm_beta"],
            ssm_state_indices=slots,
            accept_lens=accepted,
            null_block_id=null,
            mamba_track_indices=self._int32(seat.track_slot for seat in seats),
            mamba_steps_to_track=self._int32(seat.track_step for seat in seats),
        )
        self._commit_windows(scratch, slots, accepted)
        if any(seat.tracks for seat in seats):
            # The window at the boundary goes along with the state tracked there.
            tracked = [seat.track_slot if seat.tracks else -1 for seat in seats]
            upto = [seat.track_step + 1 if seat.tracks else 0 for seat in seats]
            self._commit_windows(scratch, self._int32(tracked), self._int32(upto))

    def _commit_windows(self, scratch: list[int], slots: Tensor, accepted: Tensor) -> None:
        names = [f"{pool}_{x}" for pool in ("cs", "intermediate_conv") for x in STREAMS]
        self.kernels.conv_commit(
            **{name: self.pools[name] for name in names},
            intermediate_state_indices=self._int32(scratch),
            ssm_state_indices=slots,
            accept_lens=accepted,
            null_block_id=self.schedule.null_block,
        )

    def _int32(self, values: Any) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int32, device=self.device)
