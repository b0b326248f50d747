"""Judge the drop-in at the shapes engines serve: K = V = 128, up to 96 heads and 256 requests.

`python -m kda_verify.production --json FILE` on a GPU. One oracle run per shape, in slices of
requests, judges four calls: rings and snapshots, each with and without the output norm.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kda_ref
from kda_ref import Bounded

from . import summary
from .cases.assembly import Built
from .cases.case import Case
from .judging.answer import Answer, verify_expectations
from .judging.compare import Finding, compare
from .judging.verdict import Outcome
from .subjects.base import effective_precision, interpreted
from .subjects.ours import DSPARK

HEADS, TOKENS, REQUESTS = (12, 24, 48, 96), (1, 2, 4, 8, 16), (1, 8, 64, 256)
SIZE, LOWER_BOUND, SLICE_BYTES = 128, -5.0, 4 << 30


@dataclass(frozen=True)
class Row:
    """One judged call: its shape, mode and finding."""

    heads: int
    tokens: int
    requests: int
    mode: str
    norm: bool
    outcome: str
    ratio: float
    where: str
    detail: str


def operands(heads: int, tokens: int, requests: int, device: str) -> Built:
    """Draw the operands of a production call on the device, with every eighth row padding.

    Activations are bf16 views of one packed row; histories are transposed views.
    """
    draw = torch.Generator(device).manual_seed(heads * 10_007 + tokens * 101 + requests)
    padding = tuple(range(3, requests, 8))
    case = Case(
        heads=heads, size_k=SIZE, size_v=SIZE, lengths=(tokens,) * requests, capacity=tokens,
        padding=padding, dtype="bfloat16", logit_dtype="bfloat16", out_norm=True,
        rows="packed", conv_pool="transposed", records=("rings", "snapshots", "windows"),
    )  # fmt: skip
    total, channels, slots = tokens * requests, heads * SIZE, requests + 2

    def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        return (scale * torch.randn(*shape, device=device, generator=draw)).to(dtype)

    def permuted(count: int) -> list[int]:
        return torch.randperm(count, device=device, generator=draw).tolist()

    bf16 = torch.bfloat16
    packed = normal(1, total, 3 * channels, dtype=bf16)
    x_q, x_k, x_v = (p.unflatten(-1, (heads, SIZE)) for p in packed.split(channels, -1))
    histories = [normal(slots, 3, channels, dtype=bf16).transpose(1, 2) for _ in "qkv"]
    seats, rows = permuted(slots)[:requests], permuted(slots)[:requests]
    listed = [-1 if n in padding else slot for n, slot in enumerate(seats)]

    def index(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    arguments: dict[str, Any] = {
        "x_q": x_q, "x_k": x_k, "x_v": x_v,
        **{f"w_{n}": normal(channels, 4, scale=0.5) for n in "qkv"},
        **{f"cs_{n}": h for n, h in zip("qkv", histories, strict=True)},
        "g": normal(1, total, heads, SIZE, dtype=bf16),
        "beta": normal(1, total, heads, dtype=bf16),
        "A_log": normal(heads, scale=0.5),
        "dt_bias": normal(channels, scale=0.5),
        "recurrent_state": normal(slots, heads, SIZE, SIZE),
        "intermediate_state_indices": index(rows),
        "ssm_state_indices": index(listed),
        "cu_seqlens": index([n * tokens for n in range(requests + 1)]),
        "lower_bound": LOWER_BOUND,
        "onorm_gate": normal(1, total, heads, SIZE, dtype=bf16),
        "onorm_weight": 1 + normal(SIZE, scale=0.2),
        "onorm_eps": 1e-5,
    }  # fmt: skip
    for name in "qkv":
        window = torch.full((slots, tokens, channels, 3), torch.nan, dtype=bf16, device=device)
        arguments[f"intermediate_conv_{name}"] = window
    return Built(case, arguments, seats, rows, frame=None)  # type: ignore[arg-type]


def _records(case: Case, mode: str, device: str) -> dict[str, Tensor | None]:
    slots, heads, depth = case.requests + 2, case.heads, case.capacity
    if mode == "snapshots":
        shape = (slots, depth, heads, SIZE, SIZE)
        return {"intermediate_ssm": torch.full(shape, torch.nan, device=device)}
    bf16 = torch.bfloat16
    vector = (slots, heads, depth, SIZE)
    return {
        "intermediate_ssm": None,
        "replayssm_rawv": torch.full(vector, torch.nan, dtype=bf16, device=device),
        "replayssm_rawk": torch.full(vector, torch.nan, dtype=bf16, device=device),
        "replayssm_g": torch.full(vector, torch.nan, device=device),
        "replayssm_beta": torch.full(vector[:-1], torch.nan, device=device),
    }


def judge_shape(heads: int, tokens: int, requests: int, device: str) -> Iterator[Row]:
    """Call the drop-in four ways at one shape and judge every element."""
    from kda_kernels import fused_kda_decode_mtp_dspark

    base = operands(heads, tokens, requests, device)
    read_only = {k: v.clone() for k, v in base.arguments.items() if isinstance(v, Tensor)}
    outputs = {f"intermediate_conv_{n}" for n in "qkv"}
    calls: list[tuple[str, bool, Built]] = []
    for mode in ("rings", "snapshots"):
        for norm in (True, False):
            arguments = {**base.arguments, **_records(base.case, mode, device)}
            # Fresh ones, so that no call is judged by what another wrote.
            arguments |= {n: torch.full_like(base.arguments[n], torch.nan) for n in outputs}
            if not norm:
                for name in ("onorm_gate", "onorm_weight", "onorm_eps"):
                    del arguments[name]
            result = fused_kda_decode_mtp_dspark(**arguments)
            calls.append((mode, norm, replace(base, arguments={**arguments, "out": result})))
    findings = {(mode, norm): Finding(Outcome.PASS) for mode, norm, _ in calls}
    for name, before in read_only.items():
        if name not in outputs and not torch.equal(before, base.arguments[name]):
            trespass = Finding(Outcome.WROTE_OUTSIDE, name, detail="a read-only operand changed")
            findings = {key: trespass for key in findings}

    precision = effective_precision(DSPARK)
    step = max(1, SLICE_BYTES // (tokens * heads * SIZE * SIZE * 8))
    asked = {**base.arguments, "intermediate_ssm": base.arguments["recurrent_state"]}
    for first in range(0, requests, step):
        part = range(first, min(first + step, requests))
        oracle = kda_ref.kda_mtp_verify(**asked, max_tokens=tokens, precision=precision, only=part)
        if not oracle.in_range:
            raise RuntimeError(f"an intermediate leaves fp32 at H={heads}, L={tokens}")
        for mode, norm, call in calls:
            answer = oracle if norm else _without_norm(oracle)
            wanted = tuple(verify_expectations(call, answer, precision, part))
            held = {k: v for k, v in call.arguments.items() if isinstance(v, Tensor)}
            found = compare(held, Answer(wanted, oracle.in_range), DSPARK.grain)
            findings[mode, norm] = _worse(findings[mode, norm], found)
    for (mode, norm), found in findings.items():
        yield Row(
            heads, tokens, requests, mode, norm,
            str(found.outcome), found.ratio, found.where, found.detail,
        )  # fmt: skip


def _without_norm(oracle: kda_ref.MtpResult) -> kda_ref.MtpResult:
    def bare(trace: kda_ref.RequestTrace | None) -> kda_ref.RequestTrace | None:
        if trace is None:
            return None
        out = Bounded(trace.o.value, trace.o.error)
        return replace(trace, out=out, undetermined=torch.zeros_like(trace.undetermined))

    return replace(oracle, requests=tuple(map(bare, oracle.requests)))


def _worse(a: Finding, b: Finding) -> Finding:
    def rank(finding: Finding) -> tuple[bool, float]:
        return finding.outcome != Outcome.PASS, finding.ratio

    return max(a, b, key=rank)


def main() -> int:
    """Judge every production shape and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("kda-verify: no CUDA device is visible to torch", file=sys.stderr)
        return 2
    rows: list[Row] = []
    start = time.perf_counter()
    for heads in HEADS:
        for tokens in TOKENS:
            for requests in REQUESTS:
                rows.extend(judge_shape(heads, tokens, requests, options.device))
        worst = max((r for r in rows if r.heads == heads), key=lambda r: r.ratio)
        failed = sum(r.outcome != "pass" for r in rows)
        print(
            f"H={heads}: worst ratio {worst.ratio:.3f} at {worst.where}, {failed} of "
            f"{len(rows)} calls failed so far, {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    data = {
        "environment": summary.environment(options.device),
        "compiled": not interpreted(),
        "rows": [vars(row) for row in rows],
    }
    summary.write_json(data, options.json)
    return int(any(row.outcome != "pass" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
