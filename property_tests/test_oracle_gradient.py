"""The oracle is differentiable, and linear in what it must be linear in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kda_ref import kda_recurrent

LENGTH, H, HV, K, V = 3, 1, 2, 3, 2


def draw(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def operands() -> dict[str, Tensor]:
    return {
        "q": draw(0, 1, LENGTH, H, K),
        "k": draw(1, 1, LENGTH, H, K),
        "v": draw(2, 1, LENGTH, HV, V),
        "g": draw(3, 1, LENGTH, HV, K),
        "beta": draw(4, 1, LENGTH, HV),
        "A_log": draw(5, HV),
        "dt_bias": draw(6, HV * K),
        "initial_state": draw(7, 1, HV, V, K),
    }


def run(x: dict[str, Tensor], gate_form: str) -> tuple[Tensor, Tensor]:
    result = kda_recurrent(
        q=x["q"], k=x["k"], v=x["v"], g=x["g"], beta=x["beta"], A_log=x["A_log"],
        dt_bias=x["dt_bias"], initial_state=x["initial_state"], gate_form=gate_form,
        lower_bound=-5.0 if gate_form == "lower_bound" else None, beta_form="sigmoid",
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    return result.out.value, result.final_state.value


@pytest.mark.parametrize("gate_form", ["lower_bound", "softplus"])
def test_gradients_match_finite_differences(gate_form: str) -> None:
    x = operands()
    inputs = tuple(y.requires_grad_() for y in x.values())

    def values(*given: Tensor) -> tuple[Tensor, Tensor]:
        return run(dict(zip(x, given, strict=True)), gate_form)

    assert torch.autograd.gradcheck(values, inputs)


@pytest.mark.parametrize("h", [1e-6, 1.0, 1e6])
def test_linear_in_the_state_and_the_values(h: float) -> None:
    """f(S + h d) - f(S) = h (f(d) - f(0)) at every step width: no term of second order."""
    x = operands()
    step = {"initial_state": draw(8, 1, HV, V, K), "v": draw(9, 1, LENGTH, HV, V)}
    there = {name: x[name] + h * d for name, d in step.items()}
    nothing = {name: torch.zeros_like(d) for name, d in step.items()}
    moved = [run(x | y, "softplus") for y in (there, {}, step, nothing)]
    for far, here, along, zero in zip(*moved, strict=True):
        size = max(1.0, h) * along.abs().amax()
        assert not zero.any()
        assert (far - here - h * along).abs().amax() <= 1e-14 * size


def test_affine_in_beta_over_one_token() -> None:
    """u is proportional to b, so the state moves along a line as b does."""
    x = {
        name: y[:, :1] if name in ("q", "k", "v", "g", "beta") else y
        for name, y in operands().items()
    }
    x["g"] = -x["g"].abs()
    states = []
    for b in (0.0, 1.0, 2.0):
        beta = torch.full_like(x["beta"], b)
        result = kda_recurrent(
            q=x["q"], k=x["k"], v=x["v"], g=x["g"], beta=beta, initial_state=x["initial_state"]
        )
        states.append(result.final_state.value)
    assert torch.allclose(states[2] - states[1], states[1] - states[0], rtol=1e-13, atol=1e-14)
