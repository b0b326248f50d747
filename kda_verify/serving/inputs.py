"""The numbers of a schedule: weights of every layer, raw inputs of every drafted token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..cases.draw import Draw
from .schedule import Schedule

LOWER_BOUND = -5.0
HUGE = 1e30
STREAMS = ("q", "k", "v")


@dataclass(frozen=True)
class Weights:
    """Weights of one layer: taps [channels, 4] by stream, log rate [HV], gate bias [HV*K]."""

    taps: dict[str, Tensor]
    a_log: Tensor
    dt_bias: Tensor


@dataclass(frozen=True)
class Rows:
    """Raw inputs of some tokens of one request and layer.

    Attributes:
        x: by stream, [L, heads, D]; g: [L, HV, K]; beta: [L, HV].
    """

    x: dict[str, Tensor]
    g: Tensor
    beta: Tensor

    def __len__(self) -> int:
        return len(self.beta)

    def first(self, count: int) -> Rows:
        """Return the first tokens."""
        x = {name: rows[:count] for name, rows in self.x.items()}
        return Rows(x, self.g[:count], self.beta[:count])

    def joined(self, after: Rows) -> Rows:
        """Return these tokens and then the others."""
        x = {name: torch.cat([rows, after.x[name]]) for name, rows in self.x.items()}
        return Rows(x, torch.cat([self.g, after.g]), torch.cat([self.beta, after.beta]))


def heads_of(schedule: Schedule) -> dict[str, tuple[int, int]]:
    """Heads and head size of each stream."""
    key = (schedule.heads, schedule.size_k)
    return {"q": key, "k": key, "v": (schedule.heads * schedule.group, schedule.size_v)}


def dtype_of(schedule: Schedule) -> torch.dtype:
    """Return the dtype of activations."""
    dtype: torch.dtype = getattr(torch, schedule.dtype)
    return dtype


def poison_of(schedule: Schedule) -> float:
    """Return what unowned memory holds."""
    return torch.nan if schedule.poison == "nan" else HUGE


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
    return Weights(taps, draw.uniform("A_log", value_heads, low=-0.5, high=0.5), bias)


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
    return Rows(x, g, draw.normal("beta", tokens, value_heads).to(dtype))
