"""FLA's recurrent kernel and its gated norm (`fla-core`) as a contender, on the rows it can share.

FLA has no convolution over a pool of slots, no rings and no windows. What it can do is the
recurrence with a state stored after every token, by slot indices of two axes, and the norm after
it. It is given activations as if they were convolved, and judged so: less work than the row asks,
hence shown and never compared. Commits it has none of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from kda_ref import Precision
from kda_ref.budget import RoundingPoints
from kda_verify.cases.assembly import Built

from .contenders import PEER_TOLERANCE, Call, Contender, NotRun, no_grad
from .inputs import SPARE, Inputs
from .rows import SIZE, Row
from .verdict import FEW

PEER = "fla"
CONVOLUTION = {f"{kind}_{x}" for kind in ("w", "cs", "intermediate_conv") for x in "qkv"}


def contenders() -> list[Contender] | NotRun:
    """List the released configurations, or say why they cannot run."""
    try:
        version("fla-core")
        import fla.modules.norm.fused_norm_gate
        import fla.ops.kda.fused_recurrent  # noqa: F401
    except PackageNotFoundError:
        return NotRun(PEER, "fla-core is not installed: pip install 'kda-verify[peers]'")
    except Exception as problem:  # an import may fail in any way of its own
        text = f"{type(problem).__name__}: {problem}".splitlines()[0]
        return NotRun(PEER, f"fla-core does not import: {text}")
    return [SnapshotVerify()]


class SnapshotVerify(Contender):
    """Recurrence with a state stored after every token, then the gated norm."""

    name = "fla recurrence + norm (as released)"
    peer = PEER
    precision = Precision(rounding=RoundingPoints(output=torch.bfloat16))
    tolerance = PEER_TOLERANCE
    judged_requests = FEW
    note = "no convolution, no windows"
    partial = True

    def refusal(self, row: Row) -> str:
        """Snapshots only."""
        if row.operation == "snapshot":
            return ""
        return "it has no rings" if row.is_verify else "it has no replay commit"

    def question(self, inputs: Inputs) -> Built:
        """Ask for the same call with the convolution given and no windows."""
        arguments = {k: v for k, v in inputs.built.arguments.items() if k not in CONVOLUTION}
        case = replace(inputs.built.case, conv=False, records=("snapshots",))
        return replace(inputs.built, case=case, arguments=arguments)

    def bind(self, inputs: Inputs) -> Call:
        """Copy what must be dense, and lay states and snapshots into the one pool it takes.

        The pool is [scratch rows * L + slots, H, V, K]. The state of request n is read at
        indices[n, L], the "last accepted" of L + 1, and its snapshots go to indices[n, :L].
        """
        from fla.modules.norm.fused_norm_gate import rms_norm_gated
        from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd

        given, row, built = inputs.built.arguments, inputs.row, inputs.built
        x_q, x_k, x_v = (given[f"x_{name}"].contiguous() for name in "qkv")
        count, slots = row.requests * row.tokens, row.requests + SPARE
        device = x_q.device
        scratch = slots * row.tokens
        pool = torch.full((scratch + slots, row.heads, SIZE, SIZE), torch.nan, device=device)
        pool[scratch:].copy_(given["recurrent_state"])
        indices = torch.tensor(
            [
                [*range(first * row.tokens, (first + 1) * row.tokens), scratch + slot]
                for first, slot in zip(built.scratch_rows, built.slots, strict=True)
            ],
            dtype=torch.int32,
            device=device,
        )
        accepted = torch.full((row.requests,), row.tokens + 1, dtype=torch.int32, device=device)
        offsets = given["cu_seqlens"].to(torch.int64)
        o = torch.empty((1, count, row.heads, SIZE), dtype=x_v.dtype, device=device)
        snapshots = pool[:scratch].unflatten(0, (slots, row.tokens))
        options: dict[str, Any] = {
            "scale": SIZE**-0.5,
            "inplace_final_state": True,
            "state_v_first": True,
            "use_qk_l2norm_in_kernel": True,
            "use_gate_in_kernel": True,
            "use_beta_sigmoid_in_kernel": True,
            "lower_bound": given["lower_bound"],
        }

        def call() -> Mapping[str, Tensor]:
            with no_grad():
                fused_recurrent_kda_fwd(
                    q=x_q,
                    k=x_k,
                    v=x_v,
                    g=given["g"],
                    beta=given["beta"],
                    A_log=given["A_log"],
                    dt_bias=given["dt_bias"],
                    initial_state=pool,
                    cu_seqlens=offsets,
                    ssm_state_indices=indices,
                    num_accepted_tokens=accepted,
                    out=o,
                    **options,
                )
                out = rms_norm_gated(
                    o,
                    given["onorm_gate"],
                    given["onorm_weight"],
                    None,
                    activation="sigmoid",
                    eps=given["onorm_eps"],
                )
            return {"out": out, "intermediate_ssm": snapshots}

        return call
