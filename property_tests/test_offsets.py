"""64-bit offsets: every operand alone, with a leading stride that passes 2^31 elements.

The storage is only reserved; nothing but the pages that hold operands is ever touched.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from kda_verify.cases.build import build
from kda_verify.cases.case import Case
from kda_verify.faults.planted import Plant, planted

PITCH = 2**31 + 64
VERIFY = Case(
    lengths=(2, 2), capacity=2, spare_slots=0, dtype="bfloat16", logit_dtype="bfloat16",
    out_given=True, out_norm=True, records=("rings", "snapshots", "windows"), seed=3,
)  # fmt: skip
COMMIT = Case(
    operation="commit", lengths=(2, 2), capacity=2, spare_slots=0, gate_form="given", conv=False
)
CONV_COMMIT = Case(operation="conv_commit", lengths=(2, 1), capacity=2, spare_slots=0)
SUBJECT = {
    "verify": "kda_mtp_verify",
    "commit": "kda_replay_commit",
    "conv_commit": "kda_conv_commit",
}


def leading_axis(name: str) -> int:
    """Axis whose stride grows: rows of packed operands, slots or entries of the others."""
    packed = name in ("x_q", "x_k", "x_v", "g", "beta", "onorm_gate", "out")
    return 1 if packed else 0


def spread(tensor: Tensor, axis: int) -> Tensor:
    """Copy a tensor into a view whose stride along `axis` is PITCH."""
    strides = list(tensor.stride())
    strides[axis] = PITCH
    for before in range(axis):
        strides[before] = PITCH * tensor.shape[axis]
    extent = sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True)) + 1
    view = torch.empty(extent, dtype=tensor.dtype, device=tensor.device).as_strided(
        tensor.shape, strides
    )
    return view.copy_(tensor)


def operands(case: Case) -> list[str]:
    """Tensor operands that may have a free leading stride."""
    dense = {"w_q", "w_k", "w_v", "A_log", "dt_bias", "onorm_weight"}
    given = build(case).arguments
    return [n for n, v in given.items() if isinstance(v, Tensor) and n not in dense]


def results(
    case: Case, device: str, far: str | None, package: str = "kda_kernels"
) -> dict[str, Tensor]:
    built = build(case, device)
    arguments: dict[str, Any] = dict(built.arguments)
    if far is not None:
        arguments[far] = spread(arguments[far], leading_axis(far))
    function = getattr(importlib.import_module(package), SUBJECT[case.operation])
    function(**arguments)
    return {n: v.clone() for n, v in arguments.items() if isinstance(v, Tensor)}


@pytest.mark.parametrize(
    ("case", "operand"),
    [(case, name) for case in (VERIFY, COMMIT, CONV_COMMIT) for name in operands(case)],
    ids=lambda value: value if isinstance(value, str) else value.operation,
)
def test_offsets_past_2_31(case: Case, operand: str, device: str) -> None:
    near, far = results(case, device, None), results(case, device, operand)
    for name, tensor in near.items():
        same = torch.equal(tensor.view(torch.uint8), far[name].contiguous().view(torch.uint8))
        assert same, f"{name} changed when {operand} moved past 2^31 elements"


def test_an_offset_of_31_bits_is_noticed(device: str) -> None:
    """Bits are masked, not wrapped, so that the wrong address still lies in the pool."""
    masked = Plant(
        "offset-of-31-bits",
        "stream",
        "recurrent_state + slot * state_pitch",
        "recurrent_state + ((slot * state_pitch) & 0x7FFFFFFF)",
        "slots whose offset passes 2^31 elements are read elsewhere",
    )
    near = results(VERIFY, device, None)
    with planted(masked) as package:
        far = results(VERIFY, device, "recurrent_state", package)
        assert torch.equal(near["out"], results(VERIFY, device, None, package)["out"])
    assert not torch.equal(near["out"], far["out"])
