"""The exact family: any algorithm in any precision must give the oracle's bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from kda_ref import stages
from kda_verify.cases.build import Built, build
from kda_verify.cases.case import Case

from .any_case import SMALL, call_oracle, cases


def prepared(built: Built, n: int) -> tuple[Tensor, ...]:
    """Run every stage before the recurrence in fp32, for request n: q, k, v, G, b."""
    a, case = built.arguments, built.case
    start, end = a["cu_seqlens"][n : n + 2].tolist()
    streams = []
    for s in "qkv":
        x = a[f"x_{s}"][0, start:end].float()
        if case.conv:
            window = stages.windows(a[f"cs_{s}"][built.slots[n]].float(), x.flatten(1))
            y = stages.silu(stages.short_conv(window, a[f"w_{s}"]))
            assert torch.equal(y, y.to(a["x_q"].dtype).float())
            x = y.view_as(x)
        streams.append(x)
    q, k, v = streams
    if case.qk_norm:
        q, k = stages.l2_normalize(q), stages.l2_normalize(k)
    q = (q * a["scale"]).repeat_interleave(case.group, 1)
    k = k.repeat_interleave(case.group, 1)
    logit = a["g"][0, start:end].float()
    if "dt_bias" in a:
        logit = logit + a["dt_bias"].view(case.heads_v, -1)
    rate = a.get("A_log", torch.zeros(case.heads_v))[:, None]
    decay = logit
    if case.gate_form == "softplus":
        decay = stages.softplus_gate(logit, rate)
    elif case.gate_form == "lower_bound":
        decay = stages.lower_bound_gate(logit, rate, a["lower_bound"])
    b = stages.write_strength(a["beta"][0, start:end].float(), case.beta_form)
    return q, k, v, decay, b


def token_loop(state: Tensor, tokens: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Advance one head token by token, every operand of a product rounded to `dtype`."""

    def r(x: Tensor) -> Tensor:
        return x.to(dtype).float()

    q, k, v, decay, b = tokens
    out = []
    for t in range(len(b)):
        state = state * torch.exp(decay[t])
        u = b[t] * (v[t] - r(state) @ r(k[t]))
        state = state + r(u)[:, None] * r(k[t])
        out.append(r(state) @ r(q[t]))
    return torch.stack(out), state


def one_pass(state: Tensor, tokens: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Advance one head in one pass over its state, by forward substitution."""

    def r(x: Tensor) -> Tensor:
        return x.to(dtype).float()

    q, k, v, decay, b = tokens
    size, count = k.shape[1], len(b)
    carried = torch.zeros(0, size)
    total = torch.ones(size)
    y, z, p, w = torch.zeros(0, size), torch.zeros(0, v.shape[1]), [], []
    for t in range(count):
        total = total * torch.exp(decay[t])
        carried = carried * torch.exp(decay[t])
        row = b[t] * (r(carried) @ r(k[t]))
        y = torch.cat([y, (-b[t] * k[t] * total - r(row) @ r(y))[None]])
        z = torch.cat([z, (b[t] * v[t] - r(row) @ r(z))[None]])
        carried = torch.cat([carried, k[t : t + 1]])
        reads = r(carried) @ r(q[t])
        p.append(q[t] * total + r(reads) @ r(y))
        w.append(r(reads) @ r(z))
    out = r(torch.stack(p)) @ r(state).T + torch.stack(w)
    u = r(y) @ r(state).T + z
    return out, state * total + r(u).T @ r(carried)


@SMALL
@given(cases("verify", exact=True))
def test_exact_family_rounds_nowhere(case: Case) -> None:
    built = build(case)
    result = call_oracle(built)
    assert result.in_range
    for n, trace in enumerate(result.requests):
        if trace is None or not case.lengths[n]:
            continue
        q, k, v, decay, b = prepared(built, n)
        ring = trace.ring_log_decay.value
        assert torch.equal(decay.double(), ring)
        assert torch.equal(b.double(), trace.ring_beta.value)
        state = built.arguments["recurrent_state"][built.slots[n]]
        for head in range(case.heads_v):
            for algorithm in (token_loop, one_pass):
                for dtype in (torch.float32, torch.bfloat16):
                    inputs = [x[:, head] for x in (q, k, v, decay, b)]
                    out, last = algorithm(state[head], inputs, dtype)
                    assert torch.equal(out.double(), trace.o.value[:, head])
                    assert trace.snapshots is not None
                    assert torch.equal(last.double(), trace.snapshots.value[-1, head])
                    assert torch.equal(out, out.to(dtype).float())


@pytest.mark.parametrize("keys", ["one_hot", "hadamard"])
@pytest.mark.parametrize("conv", [True, False])
def test_exact_family_exercises_every_stage(keys: str, conv: bool) -> None:
    case = Case(
        exact=True, conv=conv, keys=keys, lengths=(12, 12), capacity=12, gate_form="softplus",
        beta_form="twice_sigmoid", records=("snapshots",), group=2, dtype="bfloat16",
    )  # fmt: skip
    built = build(case)
    result = call_oracle(built)
    traces = [t for t in result.requests if t is not None]
    assert {float(x) for t in traces for x in t.ring_beta.value.unique()} == {0.0, 1.0, 2.0}
    assert {float(x) for t in traces for x in t.ring_log_decay.value.unique()} == {0.0, -1024.0}
    assert all((t.o.value != 0).double().mean() > 0.3 for t in traces)


@pytest.mark.parametrize(
    "change", [{"dtype": "float16"}, {"out_norm": True}, {"qk_norm": False}, {"scale": 0.3}]
)
def test_exact_refuses_stages_that_round(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be .* where exact"):
        build(replace(Case(exact=True), **change))
