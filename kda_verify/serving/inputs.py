"""The numbers of a schedule: weights of every layer, raw inputs of every drafted token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..cases.draw import Draw
from .schedule import Schedule

LOWER_BOUND = -5.0
HUGE = {torch.float32: 1e30, torch.bfloat16: 1e30, torch.float16: 6e4}
EPS = 1e-6
STREAMS = ("q", "k", "v")


@dataclass(frozen=True)
class Weights:
    """Weights of one layer: taps [channels, 4] by stream, log rate [HV], gate bias [HV*K].

    The weight of the output norm is [V].
    """

    taps: dict[str, Tensor]
    a_log: Tensor
    dt_bias: Tensor
    norm: Tensor


@dataclass(frozen=True)
class Rows:
    """Raw inputs of some tokens of one request and layer.

    Attributes:
        x: by stream, [L, heads, D]; g: [L, HV, K]; beta: [L, HV]; z: output gate, [L, HV, V].
    """

    x: dict[str, Tensor]
    g: Tensor
    beta: Tensor
    z: Tensor

    def __len__(self) -> int:
        return len(self.beta)

    def first(self, count: int) -> Rows:
        """Return the first tokens."""
        x = {name: rows[:count] for name, rows in self.x.items()}
        return Rows(x, self.g[:count], self.beta[:count], self.z[:count])

    def joined(self, after: Rows) -> Rows:
        """Return these tokens and then the others."""
        x = {name: torch.cat([rows, after.x[name]]) for name, rows in self.x.items()}
        rest = (torch.cat([getattr(self, n), getattr(after, n)]) for n in ("g", "beta", "z"))
        return Rows(x, *rest)


def heads_of(schedule: Schedule) -> dict[str, tuple[int, int]]:
    """Heads and head size of each stream."""
    key = (schedule.heads, schedule.size_k)
    return {"q": key, "k": key, "v": (schedule.heads * schedule.group, schedule.size_v)}


def dtype_of(schedule: Schedule) -> torch.dtype:
    """Return the dtype of activations."""
    dtype: torch.dtype = getattr(torch, schedule.dtype)
    return dtype


def poison_of(schedule: Schedule, dtype: torch.dtype) -> float:
    """Return what unowned memory of a dtype holds."""
    return torch.nan if schedule.poison == "nan" else HUGE[dtype]


def weights(schedule: Schedule, layer: int) -> Weights:
    """Draw the weights of a layer.

    The gate bias keeps most of the state from token to token: a state that soon forgets its past
    also forgets what was wrong with it.
    """
    draw = Draw(schedule.seed, f"weights {layer}")
    value_heads = schedule.heads * schedule.group
    taps = {
        name: 0.5 * draw.normal(f"w_{name}", heads * size, 4)
        for name, (heads, size) in heads_of(schedule).items()
    }
    mean = {"usual": -2.0, "slow": -9.0}[schedule.decay]
    bias = 0.5 * draw.normal("dt_bias", value_heads * schedule.size_k) + mean
    rate = draw.uniform("A_log", value_heads, low=-0.5, high=0.5)
    return Weights(taps, rate, bias, 1.0 + 0.1 * draw.normal("norm", schedule.size_v))


def draft(schedule: Schedule, number: int, seat_of: str, layer: int, tokens: int) -> Rows:
    """Draw the raw inputs of a draft; another step, seat or layer has others."""
    draw = Draw(schedule.seed, f"step {number} {seat_of} layer {layer}")
    value_heads = schedule.heads * schedule.group
    dtype = dtype_of(schedule)
    x = {
        name: draw.normal(name, tokens, heads, size).to(dtype)
        for name, (heads, size) in heads_of(schedule).items()
    }
    g = draw.normal("g", tokens, value_heads, schedule.size_k).to(dtype)
    beta = draw.normal("beta", tokens, value_heads).to(dtype)
    z = draw.normal("z", tokens, value_heads, schedule.size_v).to(dtype)
    return Rows(x, g, beta, z)
