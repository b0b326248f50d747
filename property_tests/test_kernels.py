"""How the kernels are registered and compiled: schemas, variants, resources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import kda_kernels
from kda_kernels import offline, registration, targets
from kda_kernels.plan import CommitOperands, ConvCommitOperands, VerifyOperands
from kda_kernels.resources import contracted_sums, narrow_copies
from kda_verify.cases.build import build
from kda_verify.cases.case import Case

ROOT = Path(__file__).resolve().parent.parent
VERIFY = Case(
    lengths=(2, 0, 1), capacity=2, padding=(2,), out_given=True, out_norm=True,
    records=("rings", "snapshots", "windows"),
)  # fmt: skip
COMMIT = Case(operation="commit", lengths=(2, 0), capacity=2, gate_form="given", conv=False)
CONV_COMMIT = Case(operation="conv_commit", lengths=(2, 0), capacity=2)
DEFAULTS: dict[str, Any] = {"gate_form": "lower_bound", "beta_form": "sigmoid"}


def operands(case: Case, order: type, device: str) -> tuple[Any, ...]:
    given = {**DEFAULTS, "use_qk_l2norm_in_kernel": True, **build(case, device).arguments}
    return tuple(given.get(name) for name in order._fields)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("operation", "case", "order"),
    [
        (registration.verify_operation, VERIFY, VerifyOperands),
        (registration.commit_operation, COMMIT, CommitOperands),
        (registration.conv_commit_operation, CONV_COMMIT, ConvCommitOperands),
    ],
    ids=["verify", "commit", "conv_commit"],
)
def test_opcheck(operation: Any, case: Case, order: type, device: str) -> None:
    torch.library.opcheck(operation, operands(case, order, device))


def _zero_the_input(x: torch.Tensor, out: torch.Tensor) -> None:
    x.zero_()


def test_opcheck_sees_an_undeclared_write(device: str) -> None:
    with torch.library._scoped_library("kda_planted", "DEF") as library:
        library.define("lies(Tensor x, Tensor(a!) out) -> ()")
        library.impl("lies", _zero_the_input, "CompositeExplicitAutograd")
        planted = torch.ops.kda_planted.lies.default
        with pytest.raises(Exception, match="mutated"):
            torch.library.opcheck(planted, (torch.ones(2), torch.ones(2)))


def test_out_is_the_tensor_given(device: str) -> None:
    built = build(VERIFY, device)
    assert kda_kernels.kda_mtp_verify(**built.arguments) is built.arguments["out"]


VARIANTS = """
import json, torch
from kda_kernels.plan import VerifyOperands, CommitOperands, plan_verify, plan_commit
from kda_kernels.resources import variant_key
from kda_kernels.configurations import verify_operands

def meta(shape, strides, dtype=torch.float32):
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")

def verify(requests, tokens, heads, pitch, slots, max_tokens):
    o = verify_operands(rings=True, snapshots=True, norm=True, max_tokens=8)
    K, bf16 = 128, torch.bfloat16
    row = 3 * heads * K + pitch
    x = [meta((1, tokens, heads, K), (tokens * row, row, K, 1), bf16) for _ in "qkv"]
    state_pitch = heads * K * K + 4 * pitch
    inner = (K * K, K, 1)
    return o._replace(
        x_q=x[0], x_k=x[1], x_v=x[2],
        g=meta((1, tokens, heads, K), (tokens * row, row, K, 1), bf16),
        beta=meta((1, tokens, heads), (tokens * heads, heads, 1), bf16),
        recurrent_state=meta((slots, heads, K, K), (state_pitch, *inner)),
        ssm_state_indices=meta((requests,), (1 + pitch,), torch.int32),
        cu_seqlens=meta((requests + 1,), (1,), torch.int32),
        out=meta((1, tokens, heads, K), (tokens * heads * K, heads * K, K, 1), bf16),
        max_tokens=max_tokens,
    )

calls = [
    verify(1, 8, 1, 0, 1, 8), verify(1, 1, 16, 1, 2, 5), verify(17, 136, 12, 3, 2**16, 7),
    verify(256, 2048, 96, 16, 2**20, 8), verify(3, 24, 5, 2**31, 7, 6),
]
unaligned = torch.empty(8 * 128 + 1, dtype=torch.bfloat16)[1:].view(1, 8, 1, 128)
calls.append(verify(1, 8, 1, 0, 1, 8)._replace(x_q=unaligned))
keys = {}
for call in calls:
    for launch in plan_verify(call):
        keys.setdefault(launch.kernel.__name__, set()).add(variant_key(launch))
def keys_at(tokens):
    return {variant_key(launch) for launch in plan_verify(verify(1, tokens, 1, 0, 1, tokens))}

capacities = {n: keys_at(n) for n in range(1, 17)}
print(json.dumps({
    "calls": {name: len(found) for name, found in keys.items()},
    "capacities": len({tuple(sorted(c)) for c in capacities.values()}),
}))
"""


def test_one_variant_whatever_the_sizes_strides_and_counts() -> None:
    """Whatever a call brings at run time, addresses included; capacities by powers of two."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", VARIANTS], capture_output=True, text=True, env=environment, cwd=ROOT,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["calls"] == {"prepare_kernel": 1, "stream_kernel": 1, "scan_kernel": 1}
    assert found["capacities"] == 5


SHUFFLE = "shfl.sync.bfly.b32 %r2|%p1, %r1, 16, 31, -1;"


@pytest.mark.parametrize(
    ("instructions", "count"),
    [
        (["mul.f32 %r1, %r8, %r9;", SHUFFLE, "fma.rn.f32 %r3, %r8, %r9, %r2;"], 1),
        (["mul.f32 %r1, %r8, %r9;", SHUFFLE, "add.f32 %r3, %r1, %r2;"], 1),
        (["mul.f32 %r1, %r8, %r9;", SHUFFLE, "mov.b32 %f1, %r2;", "add.f32 %f3, %f1, %r1;"], 1),
        (["fma.rn.f32 %r1, %r8, %r9, 0f00000000;", SHUFFLE, "add.f32 %r3, %r1, %r2;"], 0),
        (["add.f32 %r1, %r8, %r9;", SHUFFLE, "add.f32 %r3, %r1, %r2;"], 0),
        ([SHUFFLE, "add.f32 %r2, %r8, %r9;", "fma.rn.f32 %r3, %r8, %r9, %r2;"], 0),
    ],
    ids=["fused", "may be fused", "through a copy", "rounded", "no product", "overwritten"],
)
def test_contracted_sums_are_counted(instructions: list[str], count: int) -> None:
    """A lane that fuses its own product into a sum disagrees with the lane it exchanged with."""
    assert contracted_sums("\n".join(f"\t{line}" for line in instructions)) == count


def test_a_contracted_sum_fails_the_gate() -> None:
    """Beside a spill, and on CUDA targets only, where it can be read."""
    row = {"registers": 8, "spills": 0, "shared": 0, "contracted": 2}
    assert offline.faults({"prepare/x/sm_80": row}) == [
        "prepare/x/sm_80 contracts 2 sums across lanes, must be 0"
    ]
    del row["contracted"]
    assert offline.faults({"prepare/x/gfx942": row}) == []


def test_narrow_copies_are_counted_and_fail_the_gate() -> None:
    """Copies of 4 bytes are what is left where the compiler cannot see an alignment."""
    copy = "\t@%p1 cp.async.{}.shared.global [ %r51 + 0 ], [ %rd66 + 0 ], {}, %r52;"
    widths = [("cg", "0x10"), ("ca", "0x8"), ("ca", "0x4"), ("ca", "4")]
    assert narrow_copies("\n".join(copy.format(*width) for width in widths)) == 2
    row = {"registers": 8, "spills": 0, "shared": 0, "contracted": 0, "narrow": 2}
    assert offline.faults({"stream/x/sm_80": row}) == [
        "stream/x/sm_80 makes 2 copies of 4 bytes, must be 0"
    ]


def test_resources_are_as_recorded() -> None:
    """Compile every default configuration for every target; no spill, no lanes that disagree."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "kda_kernels.offline", "--check", "fixtures/resources.json"],
        capture_output=True, text=True, env=environment, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("architecture", "limit"), [(100, 112), (90, None), (80, None), ("gfx942", None), (None, None)]
)
def test_only_sm_100_limits_the_registers_of_the_commit(
    architecture: int | str | None, limit: int | None
) -> None:
    options = targets.commit_options(architecture)
    assert options.pop("maxnreg", None) == limit
    assert options == {"num_warps": targets.TILE_WARPS}
