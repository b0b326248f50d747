"""FLA's recurrent KDA kernel (`fla-core` on PyPI) as a subject."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from kda_ref import Precision

from ..cases.assembly import Built
from .base import Claims, interpreted

CLAIMS = Claims(
    # softplus is log2(1 + 2^x) below 20: its tail is lost absolutely.
    Precision(naive_softplus=True),
    grain="token",
    choices={
        "gate_form": ("lower_bound", "softplus", "given"),
        "conv": (False,),
        "index_stride": (1,),
        "initial": ("given", "none"),
        "slack_rows": (0,),
    },
    conditions=(
        (
            "a missing A_log without a lower bound is not defined",
            lambda case: case.gate_rate or case.gate_form != "softplus",
        ),
    ),
)


@dataclass(frozen=True)
class FlaRecurrent:
    """`fla.ops.kda.fused_recurrent_kda`, on contiguous tensors as its guard makes them."""

    name: str = "fla.fused_recurrent_kda"
    operation: str = "recurrent"
    claims: Claims = CLAIMS

    def unavailable(self) -> str:
        """Say how to install FLA where it is missing, and what its interpreted kernels need."""
        try:
            version("fla-core")
        except PackageNotFoundError:
            return "fla-core is not installed: pip install 'kda-verify[peers]'"
        triton = version("triton")
        if interpreted() and tuple(map(int, triton.split(".")[:2])) < (3, 7):
            return f"interpreted FLA needs triton 3.7 or newer, got {triton}"
        return ""

    @property
    def entry(self) -> tuple[str, str]:
        """Where the kernel is imported from."""
        return "fla.ops.kda", "fused_recurrent_kda"

    def call(self, built: Built) -> dict[str, Tensor]:
        """Call the kernel."""
        from fla.ops.kda import fused_recurrent_kda

        out, final = fused_recurrent_kda(**self.keywords(built))
        return {"out": out, "final_state": final}

    def keywords(self, built: Built) -> dict[str, Any]:
        """Translate the keywords; the state layout is FLA's flag."""
        given = built.arguments
        in_kernel = given["gate_form"] != "given"
        offsets = given.get("cu_seqlens")
        return dict(
            q=given["q"],
            k=given["k"],
            v=given["v"],
            g=given["g"],
            beta=given["beta"],
            A_log=given.get("A_log"),
            dt_bias=given.get("dt_bias"),
            scale=given.get("scale"),
            initial_state=given.get("initial_state"),
            output_final_state=True,
            use_qk_l2norm_in_kernel=given["use_qk_l2norm_in_kernel"],
            use_gate_in_kernel=in_kernel,
            use_beta_sigmoid_in_kernel=given["beta_form"] != "given",
            allow_neg_eigval=given["beta_form"] == "twice_sigmoid",
            lower_bound=given.get("lower_bound"),
            state_v_first=given["state_layout"] == "vk",
            cu_seqlens=None if offsets is None else offsets.to(torch.int64),
        )
