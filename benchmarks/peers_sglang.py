"""SGLang's released Triton kernels as contenders, called as its KDA backend calls them.

They are imported, never copied: from an installed `sglang`, or from a folder from which its
released kernel modules (`sglang.kernels.ops`) import. Verify is either the kernel that fuses
convolution and recurrence or the pair of kernels it stands for; the output norm is a kernel of
its own behind both. Commit is the replay fold, of one layer or of all.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kda_ref import Precision
from kda_ref.budget import RoundingPoints

from .contenders import PEER_TOLERANCE, Call, Contender, NotRun, no_grad
from .inputs import Inputs
from .rows import SIZE, Row
from .verdict import FEW

PEER, VARIABLE = "sglang", "KDA_SGLANG"
OPS = "sglang.kernels.ops"
FUSED = f"{OPS}.attention.linear.fused_kda_conv_recurrent_verify"
RECURRENT = f"{OPS}.attention.linear.fused_sigmoid_gating_recurrent"
CONV = f"{OPS}.mamba.causal_conv1d_triton"
NORM = f"{OPS}.attention.fla.fused_norm_gate"
FOLD = f"{OPS}.attention.linear.kda_replayssm_spec_decode"

MODULES = (FUSED, RECURRENT, CONV, NORM, FOLD)

BLOCKS = (4, 16, 32, 64)
"""Value tiles of the fused kernel: its module's constant, as released (4) and as it may be set."""

VERIFY = Precision(rounding=RoundingPoints(conv=torch.bfloat16, output=torch.bfloat16))
"""fp32 with q, k, v rounded after the convolution and o before the norm, as its source says."""


def contenders(folder: Path | None = None) -> list[Contender] | NotRun:
    """List the released configurations, or say why they cannot run.

    Args:
        folder: holds a package `sglang`; the environment variable KDA_SGLANG, or an installed
            sglang, where None.

    Raises:
        ValueError: a folder that holds no `sglang`.
    """
    named = folder or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is not None:
        if not (named / "sglang").is_dir():
            raise ValueError(f"`sglang` must be a folder that holds sglang/, got {str(named)!r}")
        if (home := str(named.resolve())) not in sys.path:
            sys.path.insert(0, home)
    for module in MODULES:
        try:
            importlib.import_module(module)
        except Exception as problem:  # an import may fail in any way of its own
            text = f"{type(problem).__name__}: {problem}".splitlines()[0]
            return NotRun(PEER, f"{module} does not import: {text}")
    return [*(FusedVerify(block) for block in BLOCKS), PairVerify(), Fold()]


def identity() -> str:
    """Say which SGLang it is: its version, or a digest of the modules where it has none."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        digest = hashlib.sha256()
        for name in MODULES:
            source = importlib.import_module(name).__file__
            digest.update(Path(source).read_bytes() if source else b"")
        return f"modules {digest.hexdigest()[:16]}"


class FusedVerify(Contender):
    """One kernel for convolution and recurrence, then the gated norm.

    Args:
        block: its value tile, the module's constant while it is launched.
    """

    peer = PEER
    precision = VERIFY
    tolerance = PEER_TOLERANCE
    judged_requests = FEW

    def __init__(self, block: int) -> None:
        released = " (as released)" if block == BLOCKS[0] else ""
        self.name = f"sglang fused, BLOCK_V={block}{released}"
        self.block = block

    def refusal(self, row: Row) -> str:
        """Verify from three tokens on: the kernel asserts the width of the convolution."""
        if not row.is_verify:
            return "it is a verify"
        return "" if row.tokens >= 3 else "it needs at least 3 tokens"

    def bind(self, inputs: Inputs) -> Call:
        """Pass the packed operands; recorded states must be dense, and are."""
        module: Any = importlib.import_module(FUSED)
        given, packed, row = inputs.built.arguments, inputs.packed, inputs.row
        norm = _norm(inputs)

        def call() -> Mapping[str, Tensor]:
            module.KDA_VERIFY_BLOCK_V = self.block
            o = module.fused_kda_conv_gating_verify(
                mixed_qkv=packed["rows"],
                conv_weight=packed["taps"],
                conv_bias=None,
                conv_state=packed["history"],
                conv_state_indices=given["ssm_state_indices"],
                intermediate_conv_window=packed["windows"],
                intermediate_state_indices=given["intermediate_state_indices"],
                a=given["g"],
                b=given["beta"],
                A_log=given["A_log"],
                dt_bias=given["dt_bias"],
                ssm_states=given["recurrent_state"],
                cache_indices=given["ssm_state_indices"],
                intermediate_states_buffer=given["intermediate_ssm"],
                scale=SIZE**-0.5,
                T=row.tokens,
                num_q_heads=row.heads,
                num_v_heads=row.heads,
                head_k_dim=SIZE,
                head_v_dim=SIZE,
                lower_bound=given["lower_bound"],
                **_rings(inputs),
            )
            return {"out": norm(o)}

        return call


class PairVerify(Contender):
    """The pair that the fused kernel stands for: convolution, recurrence, then the gated norm."""

    name = "sglang pair (as released)"
    peer = PEER
    precision = VERIFY
    tolerance = PEER_TOLERANCE
    judged_requests = FEW
    also_writes = frozenset({"cs_q", "cs_k", "cs_v"})
    note = "advances the convolution history in place"
    compiles_per_batch = True

    def refusal(self, row: Row) -> str:
        """Any verify."""
        return "" if row.is_verify else "it is a verify"

    def bind(self, inputs: Inputs) -> Call:
        """Pass views: the convolution takes [N, 3C, L], the recurrence [1, T, H, 128]."""
        conv: Any = importlib.import_module(CONV)
        recurrent: Any = importlib.import_module(RECURRENT)
        given, packed, row = inputs.built.arguments, inputs.packed, inputs.row
        norm = _norm(inputs)
        channels, total = row.heads * SIZE, row.requests * row.tokens
        x = packed["rows"].view(row.requests, row.tokens, 3 * channels).transpose(1, 2)
        gate = given["g"].view(1, total, channels)

        def call() -> Mapping[str, Tensor]:
            mixed = conv.causal_conv1d_update(
                x,
                packed["history"],
                packed["taps"],
                None,
                "silu",
                conv_state_indices=given["ssm_state_indices"],
                intermediate_conv_window=packed["windows"],
                intermediate_state_indices=given["intermediate_state_indices"],
            )
            by_row = mixed.transpose(1, 2).reshape(1, total, 3, row.heads, SIZE)
            q, k, v = by_row.unbind(2)
            o = recurrent.fused_sigmoid_gating_delta_rule_update(
                A_log=given["A_log"],
                a=gate,
                dt_bias=given["dt_bias"],
                softplus_beta=1.0,
                softplus_threshold=20.0,
                q=q,
                k=k,
                v=v,
                b=given["beta"],
                initial_state_source=given["recurrent_state"],
                initial_state_indices=given["ssm_state_indices"],
                scale=SIZE**-0.5,
                use_qk_l2norm_in_kernel=True,
                cu_seqlens=given["cu_seqlens"],
                is_kda=True,
                lower_bound=given["lower_bound"],
                disable_state_update=True,
                intermediate_states_buffer=given["intermediate_ssm"],
                intermediate_state_indices=given["intermediate_state_indices"],
                cache_steps=row.tokens,
                **_rings(inputs),
            )
            return {"out": norm(o)}

        return call


class Fold(Contender):
    """The replay fold: one launch for a layer, or one for all of them."""

    name = "sglang fold (as released)"
    peer = PEER
    tolerance = PEER_TOLERANCE
    judged_requests = FEW

    def refusal(self, row: Row) -> str:
        """Any commit."""
        return "it is a commit" if row.is_verify else ""

    def bind(self, inputs: Inputs) -> Call:
        """Pass the rings; slot 0 is live, as in a verify."""
        module: Any = importlib.import_module(FOLD)
        one: Callable[..., None] = module.commit_kda_replayssm_spec
        function = module.commit_kda_replayssm_spec_all_layers if inputs.row.layers > 1 else one
        given, row = inputs.built.arguments, inputs.row

        def call() -> Mapping[str, Tensor]:
            function(
                given["checkpoint_state"],
                given["rawv"],
                given["rawk"],
                given["gk"],
                given["beta"],
                given["ssm_state_indices"],
                given["accept_lens"],
                max_cache_len=row.tokens,
                num_k_heads=row.heads,
                null_block_id=-1,
            )
            return {}

        return call


def _rings(inputs: Inputs) -> dict[str, Any]:
    """Keywords of a ring row; none for snapshots."""
    if inputs.row.operation != "ring":
        return {}
    names = ("replayssm_rawv", "replayssm_rawk", "replayssm_g", "replayssm_beta")
    return {"cache_ring": True, **{name: inputs.built.arguments[name] for name in names}}


def _norm(inputs: Inputs) -> Callable[[Tensor], Tensor]:
    """Bind the gated norm that follows a verify; it writes over its input, as released."""
    module: Any = importlib.import_module(NORM)
    given = inputs.built.arguments

    def norm(o: Tensor) -> Tensor:
        with no_grad():
            return module.rms_norm_gated(
                o,
                given["onorm_gate"],
                given["onorm_weight"],
                None,
                activation="sigmoid",
                eps=given["onorm_eps"],
            )

    return norm
