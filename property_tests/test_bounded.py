"""Rounding points and stores: the bound holds for every value it may meet, and is no wider."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kda_ref import Bounded, cast, round_to, stored, ulp

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("x", "dtype", "spacing"),
    [
        (1.0, BF16, 2.0**-7),
        (-1.99, BF16, 2.0**-7),
        (2.0, BF16, 2.0**-6),
        (0.999, BF16, 2.0**-8),
        (1.0, FP16, 2.0**-10),
        (1.0, FP32, 2.0**-23),
        (2.0**-14, FP16, 2.0**-24),
        (2.0**-20, FP16, 2.0**-24),  # denormal: the spacing no longer shrinks
        (2.0**-140, BF16, 2.0**-133),
        (2.0**-140, FP32, 2.0**-149),
        (0.0, BF16, 2.0**-133),
        (0.0, FP32, 2.0**-149),
    ],
)
def test_ulp(x: float, dtype: torch.dtype, spacing: float) -> None:
    assert ulp(row(x), dtype).item() == spacing


@pytest.mark.parametrize(
    ("x", "nearest", "truncated"),
    [
        (1 + 2.0**-8, 1.0, 1.0),  # tie to even, down
        (1 + 3 * 2.0**-8, 1 + 2 * 2.0**-7, 1 + 2.0**-7),  # tie to even, up
        (1 + 1.1 * 2.0**-8, 1 + 2.0**-7, 1.0),
        (-1 - 1.1 * 2.0**-8, -1 - 2.0**-7, -1.0),
        (2 - 2.0**-20, 2.0, 2 - 2.0**-7),  # across a binade: the step is that below
        (1.5, 1.5, 1.5),
        (0.75 * 2.0**-133, 2.0**-133, 0.0),  # denormals
        (-1.75 * 2.0**-133, -2 * 2.0**-133, -(2.0**-133)),
        (0.0, 0.0, 0.0),
    ],
)
def test_cast(x: float, nearest: float, truncated: float) -> None:
    assert cast(row(x), BF16).item() == nearest
    assert cast(row(x), BF16, truncate=True).item() == truncated


def test_fp32_is_never_truncated() -> None:
    x = row(1 + 1.1 * 2.0**-24)
    assert cast(x, FP32, truncate=True).item() == 1 + 2.0**-23


def test_truncation_drops_bits() -> None:
    """The definition: the upper half of the fp32 bits."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(4096, generator=random) * torch.exp(20 * torch.randn(4096, generator=random))
    kept = (x.view(torch.int32) & -(1 << 16)).view(FP32)
    assert torch.equal(cast(x.double(), BF16, truncate=True), kept.double())


def test_rounding_point_is_exact_off_the_boundaries() -> None:
    sharp = round_to(Bounded(row(1 + 0.9 * 2.0**-8), row(0.05 * 2.0**-8)), BF16)
    assert sharp.value.item() == 1
    assert sharp.error.item() == 0
    astride = round_to(Bounded(row(1 + 0.9 * 2.0**-8), row(0.2 * 2.0**-8)), BF16)
    assert astride.value.item() == 1
    assert astride.error.item() == 2.0**-7
    cut = round_to(Bounded(row(1 + 0.1 * 2.0**-7), row(0.2 * 2.0**-7)), BF16, truncate=True)
    assert cut.value.item() == 1
    assert cut.error.item() == 2.0**-8  # the step below one
    far = round_to(Bounded(row(1.0), row(1.0)), BF16)
    assert far.error.item() == 1
    whole = Bounded(row(1.1), row(0.1))
    assert round_to(whole, None) is whole


def test_store_adds_half_a_step() -> None:
    x = Bounded(row(1.5, -1.5, 1.99, 0.5), row(0, 0.25, 0.1, 0))
    kept = stored(x, BF16)
    assert torch.equal(kept.value, x.value)
    # 1.99 + 0.1 reaches the next binade
    assert kept.error.tolist() == [2.0**-8, 0.25 + 2.0**-8, 0.1 + 2.0**-7, 2.0**-9]
    cut = stored(x, BF16, truncate=True)
    assert cut.value.tolist() == [1.5 - 2.0**-8, -1.5 + 2.0**-8, 1.99 - 2.0**-7, 0.5 - 2.0**-9]
    assert torch.equal(cut.error, kept.error)
    assert torch.equal(stored(x, FP32, truncate=True).value, x.value)


@pytest.mark.parametrize("truncate", [False, True], ids=["nearest", "truncating"])
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("operation", [round_to, stored])
def test_whatever_lies_in_the_bound_stays_in_the_bound(
    operation: Callable[..., Bounded], dtype: torch.dtype, truncate: bool
) -> None:
    """Monotone casts of any value - error .. value + error, at borders, denormals and zero."""
    random = torch.Generator().manual_seed(1)
    border = torch.ldexp(torch.ones(64), torch.arange(-26, 6).repeat(2))
    near = 1 + 2.0**-9 * torch.randn(64, generator=random)
    values = torch.cat([torch.randn(256, generator=random), border * near, border]).double()
    values = values * torch.where(torch.rand(len(values), generator=random) < 0.5, -1.0, 1.0)
    errors = values.abs() * torch.exp(
        -12 * torch.rand(len(values), generator=random, dtype=torch.float64)
    )
    bound = operation(Bounded(values, errors), dtype, truncate=truncate)
    for at in torch.linspace(-1, 1, 41, dtype=torch.float64):
        computed = (values + at * errors).float()
        inside = (computed.double() - values).abs() <= errors
        landed = cast(computed.double(), dtype, truncate=truncate)
        assert ((landed - bound.value).abs() <= bound.error)[inside].all()


def test_an_exact_zero_is_stored_as_zero() -> None:
    assert stored(Bounded(row(0.0), row(0.0)), BF16).error.item() == 2.0**-134


def test_cast_is_monotone() -> None:
    random = torch.Generator().manual_seed(2)
    x = (torch.randn(4096, generator=random) * 2.0**-5).double().sort().values
    for dtype in (BF16, FP16, FP32):
        for truncate in (False, True):
            assert (cast(x, dtype, truncate=truncate).diff() >= 0).all()


def test_bounded_indexing_takes_both() -> None:
    x = Bounded(row(1, 2), row(3, 4)).at(1)
    assert math.isclose(x.value.item(), 2)
    assert math.isclose(x.error.item(), 4)
