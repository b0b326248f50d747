"""Calls as the laws see them: arguments in, what each request owns out, or its error bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kda_ref import Precision

from ..cases.arena import dense
from ..cases.assembly import Built
from ..operations import registry
from ..subjects.base import Subject
from .results import Arguments, Results

Call = Callable[[str, Arguments], Results]
"""Make a call of an operation on copies of what it writes, and read what each request owns."""


def kernel_call(subjects: Mapping[str, Subject], built: Built) -> Call:
    """Make calls of kernels: the subject of each operation."""

    def call(operation: str, arguments: Arguments) -> Results:
        record, mine = registry.operation(operation), dict(arguments)
        for name in record.facts.writes(arguments):
            mine[name] = like(mine[name])
        for name in record.facts.aligned:
            if mine.get(name) is not None:
                mine[name] = _aligned(mine[name])
        returned = subjects[operation].call(replace(built, arguments=mine))
        return record.read({**mine, **returned})

    return call


def bound_call(precision: Precision) -> Call:
    """Make calls of the oracle that yield error bounds, stores included, in place of values.

    Such a call raises `OutOfRange` where an exact intermediate leaves fp32; bounds are infinite
    where NaN is accepted.
    """

    def call(operation: str, arguments: Arguments) -> Results:
        return registry.operation(operation).bounds(arguments, precision)

    return call


def like(tensor: Tensor) -> Tensor:
    """Copy an operand with its strides."""
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def _aligned(states: Tensor) -> Tensor:
    """Copy a pool of [HV, V, K] blocks to pitches that are multiples of 4, if they are not."""
    if not any(pitch % 4 for pitch in states.stride()[:-3]):
        return states
    pitch = -(-states.shape[-3:].numel() // 4) * 4
    strides = list(dense(states.shape[-3:]))
    for size in reversed(states.shape[:-3]):
        strides.insert(0, pitch)
        pitch *= size
    return states.new_empty_strided(states.shape, strides).copy_(states)
