"""The operands of a row, drawn on the device: the layout that engines serve.

Activations are bf16 views of one packed row [T, 3 * H * 128]; convolution histories, taps and
windows of q, k and v lie in one tensor each, of which the operands are views, so that kernels
that take them packed run on the same memory. Slots and scratch rows are unrelated permutations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kda_verify.cases.assembly import Built
from kda_verify.cases.case import Case

from .rows import SIZE, Row, bytes_moved

SPARE = 2
"""Slots and scratch rows that no request lists."""

LOWER_BOUND, EPS = -5.0, 1e-5
RINGS = ("replayssm_rawv", "replayssm_rawk", "replayssm_g", "replayssm_beta")


@dataclass(frozen=True)
class Inputs:
    """One set of operands.

    Attributes:
        row: what it was drawn for.
        built: the call, with the keywords of the drop-in verify or of the general commit.
        packed: for a verify, the tensors that q, k and v share: `rows` [T, 3C] bf16, `taps`
            [3C, 4] fp32, `history` [slots, 3C, 3] bf16 with unit stride over the channels,
            `windows` [scratch rows, L, 3C, 3] bf16; C = H * 128.
        outputs: names of the operands that a call fills; poisoned with NaN.
    """

    row: Row
    built: Built
    packed: dict[str, Tensor]
    outputs: tuple[str, ...]

    def poison(self) -> None:
        """Fill with NaN what a call must write."""
        for name in self.outputs:
            self.built.arguments[name].fill_(math.nan)

    def tensors(self) -> dict[str, Tensor]:
        """Return the operands that are tensors, by name."""
        return {n: t for n, t in self.built.arguments.items() if isinstance(t, Tensor)}

    def inputs(self) -> dict[str, Tensor]:
        """Return the operands that hold something before the call."""
        return {n: t for n, t in self.tensors().items() if n not in self.outputs}


def draw(row: Row, device: str, seed: int) -> Inputs:
    """Draw the operands of a row.

    Args:
        row: the shape.
        device: where they live.
        seed: of all values and permutations.

    Returns:
        Fresh operands; what a call fills is NaN, and no request is padding.
    """
    drawn = _Draw(device, seed)
    inputs = _verify(row, drawn) if row.is_verify else _commit(row, drawn)
    inputs.poison()
    return inputs


class _Draw:
    """Values on the device, permutations on the host."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = device
        self.values = torch.Generator(device).manual_seed(seed)
        self.order = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        drawn = torch.randn(shape, device=self.device, generator=self.values)
        return drawn.mul_(scale).to(dtype)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, device=self.device, generator=self.values)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def seats(self, count: int) -> list[int]:
        return torch.randperm(count + SPARE, generator=self.order).tolist()[:count]

    def index(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)


def _verify(row: Row, draw: _Draw) -> Inputs:
    bf16, heads, tokens, requests = torch.bfloat16, row.heads, row.tokens, row.requests
    total, channels, slots = requests * tokens, heads * SIZE, requests + SPARE
    vector = (1, total, heads, SIZE)
    packed = {
        "rows": draw.normal(total, 3 * channels, dtype=bf16),
        "taps": draw.normal(3 * channels, 4, scale=0.5),
        "history": draw.normal(slots, 3, 3 * channels, dtype=bf16).transpose(1, 2),
        "windows": draw.empty(slots, tokens, 3 * channels, 3, dtype=bf16),
    }
    seats, scratch = draw.seats(requests), draw.seats(requests)
    arguments: dict[str, Any] = {}
    for name, at in zip("qkv", range(0, 3 * channels, channels), strict=True):
        mine = slice(at, at + channels)
        arguments[f"x_{name}"] = packed["rows"][None, :, mine].unflatten(-1, (heads, SIZE))
        arguments[f"w_{name}"] = packed["taps"][mine]
        arguments[f"cs_{name}"] = packed["history"][:, mine]
        arguments[f"intermediate_conv_{name}"] = packed["windows"][:, :, mine]
    arguments |= {
        "g": draw.normal(*vector, dtype=bf16),
        "beta": draw.normal(1, total, heads, dtype=bf16),
        "A_log": draw.normal(heads, scale=0.5),
        "dt_bias": draw.normal(channels, scale=0.5),
        "recurrent_state": draw.normal(slots, heads, SIZE, SIZE),
        "intermediate_ssm": None,
        "intermediate_state_indices": draw.index(scratch),
        "ssm_state_indices": draw.index(seats),
        "cu_seqlens": draw.index([n * tokens for n in range(requests + 1)]),
        "lower_bound": LOWER_BOUND,
        "onorm_gate": draw.normal(*vector, dtype=bf16),
        "onorm_weight": 1 + draw.normal(SIZE, scale=0.2),
        "onorm_eps": EPS,
        "out": draw.empty(*vector, dtype=bf16),
    }
    if row.operation == "snapshot":
        arguments["intermediate_ssm"] = draw.empty(slots, tokens, heads, SIZE, SIZE)
        recorded: tuple[str, ...] = ("intermediate_ssm",)
    else:
        ring = (slots, heads, tokens, SIZE)
        shapes = ((ring, bf16), (ring, bf16), (ring, torch.float32), (ring[:3], torch.float32))
        for name, (shape, dtype) in zip(RINGS, shapes, strict=True):
            arguments[name] = draw.empty(*shape, dtype=dtype)
        recorded = RINGS
    case = Case(
        heads=heads, size_k=SIZE, size_v=SIZE, lengths=(tokens,) * requests, capacity=tokens,
        dtype="bfloat16", logit_dtype="bfloat16", out_norm=True, out_given=True, rows="packed",
        conv_pool="transposed", spare_slots=SPARE, lower_bound=LOWER_BOUND,
        records=("rings" if row.operation == "ring" else "snapshots", "windows"),
    )  # fmt: skip
    outputs = ("out", *(f"intermediate_conv_{name}" for name in "qkv"), *recorded)
    # No arenas: a frame around gigabytes would cost more than the call.
    built = Built(case, arguments, seats, scratch, frame=None)  # type: ignore[arg-type]
    return Inputs(row, built, packed, outputs)


def _commit(row: Row, draw: _Draw) -> Inputs:
    stack = (row.layers,) if row.layers > 1 else ()
    slots, heads, depth = row.requests + SPARE, row.heads, row.tokens
    ring = (*stack, slots, heads, depth, SIZE)
    seats = draw.seats(row.requests)
    arguments: dict[str, Any] = {
        "checkpoint_state": draw.normal(*stack, slots, heads, SIZE, SIZE),
        "rawv": draw.normal(*ring, dtype=torch.bfloat16),
        "rawk": draw.normal(*ring, dtype=torch.bfloat16),
        # From 1e-3 to 5 nats a token: replayed often, no state decays into denormals.
        "gk": draw.uniform(*ring).mul_(math.log(5e3)).add_(math.log(1e-3)).exp_().neg_(),
        "beta": draw.uniform(*ring[:-1]),
        "ssm_state_indices": draw.index(seats),
        "accept_lens": draw.index(list(row.accepted)),
        "null_block_id": -1,
    }
    case = Case(
        operation="commit", heads=heads, size_k=SIZE, size_v=SIZE, lengths=row.accepted,
        capacity=depth, dtype="bfloat16", gate_form="given", conv=False, spare_slots=SPARE,
        layers=len(stack) * row.layers,
    )  # fmt: skip
    built = Built(case, arguments, seats, [], frame=None)  # type: ignore[arg-type]
    return Inputs(row, built, {}, ())


TOUCHED_BYTES = 400_000_000
"""What one pass over the sets must at least touch: several times the largest L2 cache."""


def set_count(row: Row) -> int:
    """Return how many sets of operands a row rotates over, so that no cache serves them."""
    return max(1, math.ceil(TOUCHED_BYTES / bytes_moved(row)))


def allocated_bytes(row: Row) -> int:
    """Return about what one set of operands takes, spare slots and saved states included."""
    slots = (row.requests + SPARE) / row.requests
    copies = 1 if row.is_verify else 2
    full = Row(row.operation if row.operation != "commit-mixed" else "commit",
               row.heads, row.tokens, row.requests)  # fmt: skip
    return math.ceil(bytes_moved(full) * slots * copies)
