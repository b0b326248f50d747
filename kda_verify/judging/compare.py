"""Compare what a call left behind with what the oracle expects, element by element."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .answer import Answer, Expectation
from .verdict import Outcome


@dataclass(frozen=True)
class Finding:
    """The result of a comparison; see `Verdict` for the fields."""

    outcome: Outcome
    where: str = ""
    ratio: float = 0.0
    ratios: Mapping[str, float] | None = None
    positions: Mapping[str, Sequence[float]] | None = None
    detail: str = ""


def check_returned(
    returned: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, torch.dtype],
) -> Finding | None:
    """Check that a call returned what it must: all of it, in shape, then in dtype."""
    for name in sorted({*returned, *shapes}):
        if name not in shapes:
            return Finding(Outcome.WRONG_SHAPE, name, detail=f"`{name}` must not be returned")
        if not isinstance(returned.get(name), Tensor):
            got = type(returned[name]).__name__ if name in returned else "nothing"
            detail = f"`{name}` must be returned, a tensor of shape {shapes[name]}, got {got}"
            return Finding(Outcome.WRONG_SHAPE, name, detail=detail)
    for name, tensor in returned.items():
        if tuple(tensor.shape) != shapes[name]:
            detail = f"`{name}` must have shape {shapes[name]}, got {tuple(tensor.shape)}"
            return Finding(Outcome.WRONG_SHAPE, name, detail=detail)
    for name, tensor in returned.items():
        if tensor.dtype != dtypes[name]:
            detail = f"`{name}` must be {dtypes[name]}, got {tensor.dtype}"
            return Finding(Outcome.WRONG_DTYPE, name, detail=detail)
    return None


def check_aliasing(
    returned: Mapping[str, Tensor], given: Mapping[str, Tensor], storages: Iterable[Tensor]
) -> Finding | None:
    """Check that a returned tensor is the caller's own where given, and fresh otherwise."""
    held = {s.untyped_storage().data_ptr() for s in storages if s.numel()}
    for name, tensor in returned.items():
        if name in given:
            if tensor.data_ptr() != given[name].data_ptr():
                return Finding(Outcome.ALIASED, name, detail=f"`{name}` must be the one given")
        elif tensor.numel() and tensor.untyped_storage().data_ptr() in held:
            return Finding(Outcome.ALIASED, name, detail=f"`{name}` must not share an operand")
    return None


def compare(operands: Mapping[str, Tensor], answer: Answer, grain: str) -> Finding:
    """Judge every expected element: non-finite values first, then the budget.

    Args:
        operands: what the call left behind, by operand name.
        answer: the oracle's expectations.
        grain: how far a non-finite input spreads: "token", or "head" for a whole request and
            head; within the grain of an expected non-finite value nothing is asked.
    """
    for expectation in answer.expectations:
        finding = _non_finite(_got(operands, expectation), expectation, grain)
        if finding is not None:
            return finding
    ratios: dict[str, float] = {}
    positions: dict[str, list[float]] = {}
    worst, where, detail = 0.0, "", ""
    for expectation in answer.expectations:
        got = _got(operands, expectation)
        if got.numel() == 0:
            continue
        ratio = _ratio(got, expectation, grain)
        flat = int(ratio.argmax())
        value = float(ratio.flatten()[flat])
        ratios[expectation.operand] = max(ratios.get(expectation.operand, 0.0), value)
        _add_positions(positions.setdefault(expectation.operand, []), ratio, expectation)
        if value > worst or not where:
            local = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape))
            worst, where = value, expectation.element(local)
            want = expectation.want
            budget, store = float(want.error[local]), float(expectation.store[local])
            detail = (
                f"expected {float(want.value[local]):.9g} within {budget:.3g} "
                f"and {store:.3g} for the store, got {float(got[local]):.9g}"
            )
    outcome = Outcome.PASS if worst <= 1 else Outcome.INCORRECT
    return Finding(outcome, where, worst, ratios, {k: v for k, v in positions.items() if v}, detail)


def _add_positions(worst: list[float], ratio: Tensor, expectation: Expectation) -> None:
    """Take the worst ratio of every token of one request into those of the tokens before it.

    Elements that must be met exactly (copies, padding, rows nobody owns) have no error to follow.
    """
    axis = expectation.token_axis
    if axis is None or not bool((expectation.want.error > 0).any()):
        return
    by_token = ratio.movedim(axis, 0).flatten(1).amax(1).tolist()
    worst += [0.0] * (len(by_token) - len(worst))
    for position, value in enumerate(by_token):
        worst[position] = max(worst[position], value)


def within(got: Tensor, expectation: Expectation, grain: str) -> bool:
    """Whether float64 values keep to one expectation, as `compare` asks of all of them."""
    if _non_finite(got, expectation, grain) is not None:
        return False
    return got.numel() == 0 or bool(_ratio(got, expectation, grain).max() <= 1)


def _got(operands: Mapping[str, Tensor], expectation: Expectation) -> Tensor:
    device = expectation.want.value.device
    return operands[expectation.operand][expectation.index].to(device, torch.float64)


def _forgiven(expectation: Expectation, grain: str) -> Tensor:
    """Mask the elements within the grain of an expected non-finite value (or bound)."""
    value = expectation.want.value
    spoiled = ~(torch.isfinite(value) & torch.isfinite(expectation.want.error.expand_as(value)))
    return _spread(spoiled, expectation, grain)


def _spread(mask: Tensor, expectation: Expectation, grain: str) -> Tensor:
    """Widen a mask to whole grains."""
    if not bool(mask.any()):
        return mask
    keep = {expectation.head_axis}
    if grain == "token" and expectation.token_axis is not None:
        keep.add(expectation.token_axis)
    axes = [axis for axis in range(mask.ndim) if axis not in keep]
    # Reducing over no axis at all would reduce over every one.
    return mask.amax(axes, keepdim=True).expand_as(mask) if axes else mask


def _non_finite(got: Tensor, expectation: Expectation, grain: str) -> Finding | None:
    stray = ~torch.isfinite(got) & ~_forgiven(expectation, grain)
    if expectation.accept_nan is not None:
        stray &= ~expectation.accept_nan
    # The other way round: a token and head that must be spoilt may not come out finite. Which of
    # its elements are depends on NaN or infinity, which are not told apart: x / inf is 0.
    spoilt = ~torch.isfinite(expectation.want.value)
    stray |= spoilt & ~_spread(~torch.isfinite(got), expectation, "token")
    if not bool(stray.any()):
        return None
    local = tuple(int(i) for i in stray.nonzero()[0])
    want = float(expectation.want.value[local])
    detail = f"expected {want:.9g}, got {float(got[local])}"
    return Finding(Outcome.NON_FINITE, expectation.element(local), detail=detail)


def _ratio(got: Tensor, expectation: Expectation, grain: str) -> Tensor:
    """How often the budget fits in the error beyond the store's own rounding.

    Infinite where no error is allowed. The ratio of a column is that of its norm, placed at the
    element that is farthest off.
    """
    want, axis = expectation.want, expectation.column_axis
    skip = _forgiven(expectation, grain)
    distance = torch.where(skip, 0.0, (got - want.value).abs())
    if axis is None:
        ratio = _divide(distance - expectation.store, want.error)
    else:
        norm = torch.linalg.vector_norm
        excess = norm(distance, dim=axis, keepdim=True)
        excess = excess - norm(expectation.store, dim=axis, keepdim=True)
        farthest = distance == distance.amax(axis, keepdim=True)
        by_column = _divide(excess, want.error.amax(axis, keepdim=True))
        ratio = torch.where(farthest, by_column, 0.0)
    if expectation.accept_nan is not None:
        # An undetermined element is held to a limit, which says nothing about precision.
        skip = skip | (expectation.accept_nan & ~(ratio > 1))
    return torch.where(skip, 0.0, ratio)


def _divide(excess: Tensor, error: Tensor) -> Tensor:
    excess = excess.clamp_min(0.0)
    return torch.where(excess == 0, 0.0, excess / error)
