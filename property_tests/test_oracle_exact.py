"""The oracle against arithmetic that does not round: fractions, and decimals of 50 digits."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from kda_ref import kda_mtp_verify, kda_recurrent, kda_replay_commit

H, GROUP, K, V = 2, 2, 3, 2
HV = H * GROUP
FLOAT64_STEPS = 64
"""Roundings of float64, relative to the largest element, that a handful of tokens may cost."""


def lift(x: Tensor, number: Callable[[float], Any]) -> Any:
    """Turn a tensor into nested lists of exact numbers."""
    values = x.double().tolist()

    def walk(y: Any) -> Any:
        return [walk(z) for z in y] if isinstance(y, list) else number(y)

    return walk(values)


def dot(x: Sequence[Any], y: Sequence[Any]) -> Any:
    return sum(a * b for a, b in zip(x, y, strict=True))


def recur(q: Any, k: Any, v: Any, a: Any, b: Any, state: Any) -> tuple[Any, Any]:
    """One value head: q, k, a [L][K], v [L][V], b [L], state [V][K] -> o [L][V], states."""
    outputs, states = [], []
    for t in range(len(b)):
        rows = []
        for j, column in enumerate(state):
            decayed = [s * x for s, x in zip(column, a[t], strict=True)]
            u = b[t] * (v[t][j] - dot(decayed, k[t]))
            rows.append([s + u * x for s, x in zip(decayed, k[t], strict=True)])
        state = rows
        outputs.append([dot(column, q[t]) for column in state])
        states.append(state)
    return outputs, states


def agrees(got: Tensor, exact: Any) -> None:
    """Assert agreement to a few float64 roundings of the largest element."""
    flat, largest, worst = [], 0.0, 0.0

    def walk(y: Any) -> None:
        for z in y if isinstance(y, list) else []:
            walk(z)
        if not isinstance(y, list):
            flat.append(y)

    walk(exact)
    assert len(flat) == got.numel()
    for x, y in zip(got.flatten().tolist(), flat, strict=True):
        largest = max(largest, abs(float(y)))
        worst = max(worst, abs(float(type(y)(x) - y)))
    assert largest > 0
    assert worst <= FLOAT64_STEPS * 2.0**-53 * largest, f"{worst=} {largest=}"


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("layout", ["vk", "kv"])
def test_recurrence_matches_fractions(layout: str) -> None:
    """No gate and full forgetting have rational decays: 1, and exp(-1000) which is 0 in float64."""
    lengths = [3, 0, 2]
    tokens = sum(lengths)
    q, k, v = draw(1, 1, tokens, H, K), draw(2, 1, tokens, H, K), draw(3, 1, tokens, HV, V)
    beta = draw(4, 1, tokens, HV)
    forget = draw(5, 1, tokens, HV, K) > 0.7
    state = draw(6, len(lengths), HV, V, K)
    offsets = [0, 3, 3, 5]
    result = kda_recurrent(
        q=q, k=k, v=v, g=-1000.0 * forget, beta=beta, scale=0.375, cu_seqlens=torch.tensor(offsets),
        initial_state=state if layout == "vk" else state.mT, state_layout=layout,
    )  # fmt: skip
    final = result.final_state.value if layout == "vk" else result.final_state.value.mT

    eq, ek, ev, eb, es = (lift(x, Fraction) for x in (q[0], k[0], v[0], beta[0], state))
    scale = Fraction(3, 8)
    for n in range(len(lengths)):
        rows = range(offsets[n], offsets[n + 1])
        for hv in range(HV):
            h = hv // GROUP
            o, states = recur(
                [[scale * x for x in eq[t][h]] for t in rows],
                [ek[t][h] for t in rows],
                [ev[t][hv] for t in rows],
                [[Fraction(int(not f)) for f in forget[0, t, hv].tolist()] for t in rows],
                [eb[t][hv] for t in rows],
                es[n][hv],
            )
            agrees(final[n, hv], states[-1] if states else es[n][hv])
            if states:
                agrees(result.out.value[0, offsets[n] : offsets[n + 1], hv], o)


def test_replay_commit_matches_fractions() -> None:
    depth, slots = 4, 3
    state, v, k = (
        draw(1, slots, HV, V, K),
        draw(2, slots, HV, depth, V),
        draw(3, slots, H, depth, K),
    )
    beta = draw(4, slots, HV, depth)
    forget = draw(5, slots, HV, depth, K) > 0.7
    result = kda_replay_commit(
        checkpoint_state=state, rawv=v, rawk=k, gk=-1000.0 * forget, beta=beta,
        ssm_state_indices=torch.tensor([2, 0]), accept_lens=torch.tensor([3, 4]), null_block_id=-1,
        mamba_track_indices=torch.tensor([1, -1]), mamba_steps_to_track=torch.tensor([1, -1]),
        use_qk_l2norm_in_kernel=False,
    )  # fmt: skip
    (written,) = result.layers
    assert set(written) == {0, 1, 2}
    ev, ek, eb, es = (lift(x, Fraction) for x in (v, k, beta, state))
    for slot, count in ((2, 3), (0, 4)):
        for hv in range(HV):
            keys = ek[slot][hv // GROUP][:count]
            a = [[Fraction(int(not f)) for f in row] for row in forget[slot, hv].tolist()]
            _, states = recur(keys, keys, ev[slot][hv], a, eb[slot][hv][:count], es[slot][hv])
            agrees(written[slot].value[hv], states[-1])
            if slot == 2:
                agrees(written[1].value[hv], states[1])


def sigmoid(x: Decimal) -> Decimal:
    return 1 / (1 + (-x).exp())


def conv_silu(history: Any, x: Any, taps: Any) -> list[list[Decimal]]:
    """[C][3], [L][C], [C][4] -> [L][C]."""
    rows = []
    for t in range(len(x)):
        row = []
        for channel, w in enumerate(taps):
            line = [*history[channel], *(x[s][channel] for s in range(t + 1))][-4:]
            c = dot(w, line)
            row.append(c * sigmoid(c))
        rows.append(row)
    return rows


def unit(x: list[Decimal], scale: Decimal) -> list[Decimal]:
    root = (dot(x, x) + Decimal("1e-6")).sqrt()
    return [scale * y / root for y in x]


@pytest.mark.parametrize("gate_form", ["lower_bound", "softplus"])
@pytest.mark.parametrize("beta_form", ["sigmoid", "twice_sigmoid"])
def test_verify_matches_decimals(gate_form: str, beta_form: str) -> None:
    length, eps, floor = 3, 2.0**-10, -5.0
    channels = {"q": H * K, "k": H * K, "v": HV * V}
    x = {n: draw(i, length, c) for i, (n, c) in enumerate(channels.items())}
    taps = {n: draw(10 + i, c, 4) for i, (n, c) in enumerate(channels.items())}
    history = {n: draw(20 + i, 2, c, 3) for i, (n, c) in enumerate(channels.items())}
    g, beta, gate = 3 * draw(30, length, HV, K), 2 * draw(31, length, HV), draw(32, length, HV, V)
    a_log, bias, weight = draw(33, HV), draw(34, HV * K), draw(35, V)
    state = draw(36, 2, HV, V, K)
    arguments: dict[str, Any] = {f"w_{n}": taps[n] for n in "qkv"}
    arguments |= {f"cs_{n}": history[n] for n in "qkv"}
    for n, heads in (("q", H), ("k", H), ("v", HV)):
        arguments[f"x_{n}"] = x[n].view(1, length, heads, -1)
    result = kda_mtp_verify(
        **arguments, g=g[None], beta=beta[None], A_log=a_log, dt_bias=bias, recurrent_state=state,
        ssm_state_indices=torch.tensor([1]), cu_seqlens=torch.tensor([0, length]),
        max_tokens=length,
        gate_form=gate_form, lower_bound=floor if gate_form == "lower_bound" else None,
        beta_form=beta_form, intermediate_ssm=torch.empty(0), onorm_gate=gate[None],
        onorm_weight=weight, onorm_eps=eps,
    )  # fmt: skip
    (trace,) = result.requests
    assert trace is not None
    assert trace.snapshots is not None

    with decimal.localcontext() as context:
        context.prec = 50
        y = {n: conv_silu(*(lift(z, Decimal) for z in (history[n][1], x[n], taps[n]))) for n in x}
        given = {
            "g": g, "beta": beta, "gate": gate, "a_log": a_log, "bias": bias, "weight": weight,
            "state": state,
        }  # fmt: skip
        exact = {name: lift(z, Decimal) for name, z in given.items()}
        default_scale = 1 / Decimal(K).sqrt()
        for hv in range(HV):
            h = hv // GROUP
            logits = [
                [exact["g"][t][hv][c] + exact["bias"][hv * K + c] for c in range(K)]
                for t in range(length)
            ]
            rate = exact["a_log"][hv].exp()
            decay = [
                [
                    Decimal(floor) * sigmoid(rate * z)
                    if gate_form == "lower_bound"
                    else -rate * (1 + z.exp()).ln()
                    for z in row
                ]
                for row in logits
            ]
            double = 2 if beta_form == "twice_sigmoid" else 1
            b = [double * sigmoid(exact["beta"][t][hv]) for t in range(length)]
            raw_k = [row[h * K : (h + 1) * K] for row in y["k"]]
            v = [row[hv * V : (hv + 1) * V] for row in y["v"]]
            o, states = recur(
                [unit(row[h * K : (h + 1) * K], default_scale) for row in y["q"]],
                [unit(row, Decimal(1)) for row in raw_k],
                v,
                [[z.exp() for z in row] for row in decay],
                b,
                exact["state"][1][hv],
            )
            out = []
            for t in range(length):
                root = (dot(o[t], o[t]) / V + Decimal(eps)).sqrt()
                shares = zip(o[t], exact["weight"], exact["gate"][t][hv], strict=True)
                out.append([a / root * w * sigmoid(z) for a, w, z in shares])
            agrees(trace.o.value[:, hv], o)
            agrees(result.out.value[0, :, hv], out)
            agrees(trace.snapshots.value[:, hv], states)
            agrees(trace.ring_v.value[:, hv], v)
            agrees(trace.ring_k.value[:, h], raw_k)
            agrees(trace.ring_log_decay.value[:, hv], decay)
            agrees(trace.ring_beta.value[:, hv], b)
