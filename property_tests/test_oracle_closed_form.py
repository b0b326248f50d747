"""The token loop against the closed form of a whole draft: one triangular solve in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kda_ref import kda_mtp_verify

H, GROUP, K, V = 2, 2, 16, 8
HV = H * GROUP
AGREEMENT = 1e-12

Gate = Callable[[Tensor], Tensor]


def steep_channel(z: Tensor) -> Tensor:
    log_decay = -0.1 * z.abs()
    log_decay[..., 3] = -200.0
    return log_decay


# name: (gate form, from normals to the gate's input, from that input to the log decay)
GATES: dict[str, tuple[str, Gate, Gate]] = {
    "zero": ("given", torch.zeros_like, lambda g: g),
    "mild": ("given", lambda z: -0.1 * z.abs(), lambda g: g),
    "channel at -200": ("given", steep_channel, lambda g: g),
    "at the bound of -5": ("lower_bound", lambda z: 40 + z, lambda g: -5 / (1 + torch.exp(-g))),
    "bounded": ("lower_bound", lambda z: z, lambda g: -5 * torch.sigmoid(g)),
    "softplus": ("softplus", lambda z: 3 * z, lambda g: -F.softplus(g)),
}


def closed_form(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, b: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One value head: q, k, log_decay [L, K], v [L, V], b [L], state [V, K].

    A[t, j] = b_t <k_t, k_j e^(G_j+1 + .. + G_t)>; U = (I + A)^-1 diag(b) (V - K~ S0^T);
    o_t = <q~_t, S0> + sum_j B[t, j] u_j; S_a = S0 e^c_a + sum_j u_j (k_j e^(..))^T.
    """
    length = len(b)
    # Sums of segments j < i <= t, each started anew: no difference of cumulative sums.
    between = torch.zeros(length, length, k.shape[1], dtype=torch.float64)
    since = torch.zeros_like(k)
    for t in range(length):
        for j in range(t + 1):
            between[t, j] = torch.exp(log_decay[j + 1 : t + 1].sum(0))
        since[t] = torch.exp(log_decay[: t + 1].sum(0))
    carried = between * k
    a = b[:, None] * (carried @ k[:, :, None])[..., 0].tril(-1)
    right = b[:, None] * (v - (k * since) @ state.T)
    u = torch.linalg.solve_triangular(
        a + torch.eye(length, dtype=torch.float64), right, upper=False, unitriangular=True
    )
    weights = (carried @ q[:, :, None])[..., 0].tril()
    o = (q * since) @ state.T + weights @ u
    mask = torch.ones(length, length, dtype=torch.float64).tril()[..., None]
    states = state * since[:, None, :] + u.T @ (carried * mask)
    return o, states


@pytest.mark.parametrize("doubled", [False, True], ids=["b", "2b"])
@pytest.mark.parametrize("repeated", [False, True], ids=["keys", "one key"])
@pytest.mark.parametrize("length", [1, 4, 16])
@pytest.mark.parametrize("gate", GATES)
def test_token_loop_equals_the_triangular_solve(
    gate: str, length: int, repeated: bool, doubled: bool
) -> None:
    gate_form, draw_gate, to_log_decay = GATES[gate]
    random = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    q, k, v = normal(length, H, K), normal(length, H, K), normal(length, HV, V)
    k = k[:1].expand_as(k) if repeated else k
    k = k / k.norm(dim=-1, keepdim=True)
    g, state, scale = draw_gate(normal(length, HV, K)), normal(1, HV, V, K), 0.3
    logits = 4 + normal(length, HV)
    b = (2 if doubled else 1) * torch.sigmoid(logits)

    result = kda_mtp_verify(
        x_q=q[None], x_k=k[None], x_v=v[None], g=g[None], beta=logits[None],
        beta_form="twice_sigmoid" if doubled else "sigmoid", gate_form=gate_form,
        lower_bound=-5.0 if gate_form == "lower_bound" else None,
        A_log=torch.zeros(HV) if gate_form == "softplus" else None, recurrent_state=state,
        intermediate_ssm=torch.empty(0), ssm_state_indices=torch.tensor([0]),
        cu_seqlens=torch.tensor([0, length]), max_tokens=length, use_qk_l2norm_in_kernel=False,
        scale=scale,
    )  # fmt: skip
    (trace,) = result.requests
    assert trace is not None
    assert trace.snapshots is not None
    for hv in range(HV):
        h = hv // GROUP
        log_decay = to_log_decay(g[:, hv])
        o, states = closed_form(
            scale * q[:, h], k[:, h], v[:, hv], log_decay, b[:, hv], state[0, hv]
        )
        for got, want in ((trace.o.value[:, hv], o), (trace.snapshots.value[:, hv], states)):
            assert (got - want).abs().amax() <= AGREEMENT * want.abs().amax()
