"""Single steps on the tensors of a call: other shapes, strides, places and elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from kda_kernels.contract.operand import Operand

Arguments = dict[str, object]
Change = Callable[[Arguments], Arguments]


def tensor(arguments: Mapping[str, object], name: str) -> Tensor:
    """Return a tensor argument."""
    value = arguments[name]
    assert isinstance(value, Tensor), f"{name} is {type(value).__name__}"
    return value


def replaced(name: str, step: Callable[[Tensor], object]) -> Change:
    """Return a change of one tensor argument."""
    return lambda arguments: {**arguments, name: step(tensor(arguments, name))}


def given(**values: object) -> Change:
    """Return a change that sets arguments to fixed values."""
    return lambda arguments: {**arguments, **values}


def resized(value: Tensor, axis: int, size: int) -> Tensor:
    """Return a dense tensor with another size of one axis, cut or continued with zeros."""
    shape = list(value.shape)
    shape[axis] = size
    result = value.new_zeros(shape)
    kept = min(size, value.shape[axis])
    result.narrow(axis, 0, kept).copy_(value.narrow(axis, 0, kept))
    return result


def strided(value: Tensor, stride: Sequence[int], offset: int = 0) -> Tensor:
    """Return a copy with the given strides and storage offset."""
    last = sum((n - 1) * s for n, s in zip(value.shape, stride, strict=True))
    storage = value.new_zeros(offset + last + 1)
    result = storage.as_strided(value.shape, tuple(stride), offset)
    result.copy_(value)
    return result


def dense_strides(shape: Sequence[int]) -> list[int]:
    """Return row-major strides."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def spread(value: Tensor) -> Tensor:
    """Return a copy with a stride of 2 in the last axis."""
    return strided(value, [2 * s for s in dense_strides(value.shape)])


def pitched(value: Tensor, extra: int, offset: int = 0, outer: int = 1) -> Tensor:
    """Return a copy with `extra` elements after each entry of the first `outer` axes."""
    stride = dense_strides(value.shape)
    for axis in reversed(range(outer)):
        inner = stride[axis + 1] * value.shape[axis + 1]
        stride[axis] = inner + (extra if axis == outer - 1 else 0)
    return strided(value, stride, offset)


def moved(value: Tensor, offset: int) -> Tensor:
    """Return a dense copy at another storage offset."""
    return strided(value, dense_strides(value.shape), offset)


def at_odd_address(value: Tensor) -> Tensor:
    """Return a dense copy whose storage offset is 0 but whose address is not aligned."""
    return torch.from_dlpack(moved(value, 2))


def folded(value: Tensor) -> Tensor:
    """Return a view of one entry repeated along its first axis that is longer than 1."""
    axis = next(a for a, n in enumerate(value.shape) if n > 1)
    return value.narrow(axis, 0, 1).clone().expand(value.shape)


def with_gradient(value: Tensor) -> Tensor:
    """Return a copy that requires a gradient."""
    return value.detach().clone().requires_grad_()


def with_element(value: Tensor, at: int, element: int) -> Tensor:
    """Return a copy of an index vector with one element replaced."""
    copy = value.clone()
    copy[at] = element
    return copy


def joined(first: str, second: str, shared: int = 16) -> Change:
    """Return a change that puts `second` where the last `shared` bytes of `first` are."""

    def change(arguments: Arguments) -> Arguments:
        front = tensor(arguments, first)
        start = (front.numel() * front.itemsize + 15) // 16 * 16 - shared
        return {**arguments, **_in_one(arguments, first, second, start)}

    return change


def touching(first: str, second: str) -> Change:
    """Return a change that puts the first element of `second` where the last of `first` is."""

    def change(arguments: Arguments) -> Arguments:
        front, back = tensor(arguments, first), tensor(arguments, second)
        start = front.numel() * front.itemsize - max(front.itemsize, back.itemsize)
        return {**arguments, **_in_one(arguments, first, second, start)}

    return change


def _in_one(arguments: Arguments, first: str, second: str, start: int) -> Arguments:
    """Place two tensors densely in one arena, the second from byte `start` on."""
    front, back = tensor(arguments, first), tensor(arguments, second)
    front_bytes, end = front.numel() * front.itemsize, start + back.numel() * back.itemsize
    total = (max(front_bytes, end) + 15) // 16 * 16
    arena = torch.zeros(total, dtype=torch.uint8, device=front.device)
    placed_back = arena[start:end].view(back.dtype).view(back.shape).copy_(back)
    placed_front = arena[:front_bytes].view(front.dtype).view(front.shape).copy_(front)
    return {first: placed_front, second: placed_back}


def interleaved(names: Sequence[str]) -> Change:
    """Return a change that interleaves pools: their byte spans overlap, their elements do not."""

    def change(arguments: Arguments) -> Arguments:
        pools = {name: tensor(arguments, name) for name in names}
        slots = max(pool.shape[0] for pool in pools.values())
        starts, pitch = {}, 0
        for name, pool in pools.items():
            starts[name] = pitch
            pitch += (prod(pool.shape[1:]) * pool.itemsize + 15) // 16 * 16
        first = next(iter(pools.values()))
        arena = torch.zeros(slots * pitch, dtype=torch.uint8, device=first.device)
        placed = {}
        for name, pool in pools.items():
            stride = dense_strides(pool.shape)
            stride[0] = pitch // pool.itemsize
            typed = arena.view(pool.dtype)
            view = typed.as_strided(pool.shape, stride, starts[name] // pool.itemsize)
            placed[name] = view.copy_(pool)
        return {**arguments, **placed}

    return change


def stacked(operands: Sequence[Operand], layers: int = 2) -> Change:
    """Return a change from one layer to a stack of equal layers."""

    def change(arguments: Arguments) -> Arguments:
        if tensor(arguments, operands[0].name).dim() > len(operands[0].shape):
            return dict(arguments)
        names = [operand.name for operand in operands if operand.stacks]
        copies = {name: torch.stack([tensor(arguments, name)] * layers) for name in names}
        return {**arguments, **copies}

    return change
