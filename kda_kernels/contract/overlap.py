"""Decide, element by element, whether strided views share memory.

Pools interleave several tensors in one envelope, so byte spans overlap where elements do not. Both
questions below become one: can a sum of `coefficient * x`, each x in 0..limit, reach a target?
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple

# Deciding is exponential in the worst case. No layout with nested strides comes near this many
# branches; beyond it the views count as overlapping, because writing through them is not safe.
BRANCH_LIMIT = 100_000


class Layout(NamedTuple):
    """Shape, strides in elements (never negative) and bytes per element of a view."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int

    @property
    def extent(self) -> int:
        """Bytes from the first to past the last element; 0 for an empty view."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.itemsize

    def steps(self) -> list[tuple[int, int]]:
        """Return (bytes per step, number of steps) of every dim that moves, and of the bytes."""
        moving = zip(self.stride, self.shape, strict=True)
        dims = [(s * self.itemsize, n - 1) for s, n in moving if s > 0 and n > 1]
        return [*dims, (1, self.itemsize - 1)]


@lru_cache(maxsize=4096)
def share_memory(distance: int, first: Layout, second: Layout) -> bool:
    """Tell whether two views share a byte.

    Args:
        distance: address of `second` minus address of `first`, in bytes.
    """
    if distance >= first.extent or -distance >= second.extent or not first.extent:
        return False
    steps_second = second.steps()
    # Counting the second view's indices from its far end turns the difference into a sum.
    target = distance + sum(step * count for step, count in steps_second)
    return _reachable(first.steps() + steps_second, target)


@lru_cache(maxsize=4096)
def overlaps_itself(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Tell whether two different indices of a view address the same element."""
    if 0 in shape:
        return False
    dims = sorted((s, n - 1) for s, n in zip(stride, shape, strict=True) if n > 1)
    reach, nested = 0, True
    for step, count in dims:
        nested &= step > reach
        reach += step * count
    if nested:
        return False
    # Two indices coincide when their difference d, |d_i| <= count_i, has a zero address. Take as
    # the leading dim the first in which they differ; by symmetry that difference is positive.
    for lead, (step, count) in enumerate(dims):
        rest = dims[lead + 1 :]
        target = sum(s * n for s, n in rest) - step
        if target >= 0 and _reachable([(step, count - 1), *((s, 2 * n) for s, n in rest)], target):
            return True
    return False


def _merge(terms: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join terms whose reachable sums form one arithmetic progression, smallest step first."""
    merged: list[tuple[int, int]] = []
    for step, count in sorted(t for t in terms if t[0] > 0 and t[1] > 0):
        for i, (fine, limit) in enumerate(merged):
            if step % fine == 0 and step // fine <= limit + 1:
                merged[i] = (fine, limit + step // fine * count)
                break
        else:
            merged.append((step, count))
    return merged


def _reachable(terms: list[tuple[int, int]], target: int) -> bool:
    """Tell whether sum(step * x) = target has a solution with 0 <= x <= count."""
    shorter = _merge(terms)
    while len(shorter) < len(terms):
        terms, shorter = shorter, _merge(shorter)
    terms = sorted(shorter, reverse=True)
    reach, divisor = [0], [0]
    for step, count in reversed(terms):
        reach.insert(0, reach[0] + step * count)
        divisor.insert(0, gcd(divisor[0], step))
    branches = 0

    def search(k: int, left: int) -> bool:
        nonlocal branches
        branches += 1
        if left == 0 or branches > BRANCH_LIMIT:
            return True
        if left > reach[k] or left % divisor[k]:
            return False
        step, count = terms[k]
        if k == len(terms) - 1:
            return True
        low, high = max(0, -((reach[k + 1] - left) // step)), min(count, left // step)
        # Only every `stride`-th x leaves a remainder that the finer terms can divide.
        stride = divisor[k + 1] // divisor[k]
        if stride > 1:
            inverse = pow(step // divisor[k], -1, stride)
            low += (left // divisor[k] * inverse - low) % stride
        return any(search(k + 1, left - step * x) for x in range(low, high + 1, stride))

    return target >= 0 and search(0, target)
