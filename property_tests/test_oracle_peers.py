"""The budget over another project's reference: flash-linear-attention's naive recurrence, fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kda_ref import kda_recurrent, stored


def peer() -> Callable[..., Any]:
    try:
        from fla.ops.kda.naive import naive_recurrent_kda
    except ImportError as problem:
        pytest.skip(f"not run: fla-core not installed ({problem})")
    return naive_recurrent_kda


def ratio(got: Tensor, value: Tensor, error: Tensor) -> float:
    return float(((got.double() - value).abs() / error).nan_to_num(nan=torch.inf).amax())


@pytest.mark.filterwarnings("ignore::UserWarning:fla")
@pytest.mark.parametrize(
    ("gate", "beta"), [(0.0, 1.0), (-1e-3, 2.0), (-0.1, 1.0), (-5.0, 1.0), (-200.0, 2.0)]
)
def test_naive_recurrence_of_fla_fits_the_budget(gate: float, beta: float) -> None:
    batch, length, heads, group, k, v = 2, 24, 2, 2, 32, 16
    random = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    arguments: dict[str, Any] = {
        "q": normal(batch, length, heads, k),
        "k": torch.nn.functional.normalize(normal(batch, length, heads, k), dim=-1),
        "v": normal(batch, length, heads * group, v),
        "g": gate * torch.rand(batch, length, heads * group, k, generator=random),
        "beta": beta * torch.rand(batch, length, heads * group, generator=random),
        "initial_state": normal(batch, heads * group, k, v),
    }
    out, final = peer()(**arguments, output_final_state=True)
    oracle = kda_recurrent(**arguments, state_layout="kv")
    assert oracle.in_range
    for got, bound in ((out, stored(oracle.out, torch.float32)), (final, oracle.final_state)):
        assert ratio(got, *bound) <= 1
        # Neither the peer nor the oracle may be looking away.
        assert ratio(got * (1 + 1e-3), *bound) > 1
