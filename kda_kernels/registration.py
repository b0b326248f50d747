"""The operations as PyTorch sees them: schemas with declared mutation, one implementation.

The namespace follows the package name, so that a copy of the package under another name can be
imported beside it.
"""

from __future__ import annotations

from typing import Any

import torch

from . import targets
from .launch import run_all
from .plan import (
    CommitOperands,
    ConvCommitOperands,
    VerifyOperands,
    plan_commit,
    plan_conv_commit,
    plan_verify,
)

NAMESPACE = (__package__ or "kda_kernels").replace(".", "_")

VERIFY_SCHEMA = """mtp_verify(
    Tensor x_q, Tensor x_k, Tensor x_v, Tensor? w_q, Tensor? w_k, Tensor? w_v,
    Tensor? cs_q, Tensor? cs_k, Tensor? cs_v, Tensor g, Tensor beta, Tensor? A_log,
    Tensor? dt_bias, Tensor recurrent_state, Tensor(a!)? intermediate_ssm,
    Tensor? intermediate_state_indices, Tensor(b!)? intermediate_conv_q,
    Tensor(c!)? intermediate_conv_k, Tensor(d!)? intermediate_conv_v,
    Tensor ssm_state_indices, Tensor cu_seqlens, SymInt max_tokens, str gate_form,
    float? lower_bound, str beta_form, bool use_qk_l2norm_in_kernel, float? scale,
    Tensor(e!)? replayssm_rawv, Tensor(f!)? replayssm_rawk, Tensor(g!)? replayssm_g,
    Tensor(h!)? replayssm_beta, Tensor? onorm_gate, Tensor? onorm_weight, float? onorm_eps,
    Tensor(i!) out) -> ()"""

COMMIT_SCHEMA = """replay_commit(
    Tensor(a!) checkpoint_state, Tensor rawv, Tensor rawk, Tensor gk, Tensor beta,
    Tensor ssm_state_indices, Tensor accept_lens, SymInt null_block_id,
    Tensor? mamba_track_indices, Tensor? mamba_steps_to_track,
    bool use_qk_l2norm_in_kernel) -> ()"""

CONV_COMMIT_SCHEMA = """conv_commit(
    Tensor(a!) cs_q, Tensor(b!) cs_k, Tensor(c!) cs_v, Tensor intermediate_conv_q,
    Tensor intermediate_conv_k, Tensor intermediate_conv_v, Tensor intermediate_state_indices,
    Tensor ssm_state_indices, Tensor accept_lens, SymInt null_block_id) -> ()"""


def mtp_verify(*operands: Any) -> None:
    """Launch a verify on operands in schema order."""
    o = VerifyOperands(*operands)
    run_all(plan_verify(o), o.out.device)


def replay_commit(*operands: Any) -> None:
    """Launch a replay commit on operands in schema order."""
    o = CommitOperands(*operands)
    run_all(plan_commit(o), o.checkpoint_state.device)


def conv_commit(*operands: Any) -> None:
    """Launch a conv commit on operands in schema order."""
    o = ConvCommitOperands(*operands)
    run_all(plan_conv_commit(o), o.cs_q.device)


def _writes_in_place_only(*operands: Any) -> None:
    """Stand in for an operation on tensors without data: nothing is returned."""


def _needs_interpreter(*operands: Any) -> None:
    raise RuntimeError(
        "CPU tensors need Triton's interpreter: set TRITON_INTERPRET=1 before importing "
        f"{__package__}"
    )


_library = torch.library.Library(NAMESPACE, "DEF")
for _schema, _function in (
    (VERIFY_SCHEMA, mtp_verify),
    (COMMIT_SCHEMA, replay_commit),
    (CONV_COMMIT_SCHEMA, conv_commit),
):
    _name = _function.__name__
    _library.define(" ".join(_schema.split()), tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(_name, _function, "CUDA")
    _library.impl(_name, _function if targets.INTERPRETED else _needs_interpreter, "CPU")
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _writes_in_place_only, lib=_library)

_operations = getattr(torch.ops, NAMESPACE)
verify_operation = _operations.mtp_verify.default
commit_operation = _operations.replay_commit.default
conv_commit_operation = _operations.conv_commit.default
