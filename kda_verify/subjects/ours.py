"""The kernels of this project as subjects."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor

from kda_ref import Precision

from ..cases.assembly import Built
from ..operations import FACTS
from .base import Claims

# The state product may spread a NaN of one token over its request and head: 0 * NaN.
WIDE = {"state_dtype": ("float32",)}
ONE_PASS = Claims(Precision(), grain="head", choices=WIDE)

DSPARK = Claims(
    Precision(),
    grain="head",
    choices={
        **WIDE,
        "group": (1,),
        "size_k": (128,),
        "size_v": (128,),
        "dtype": ("bfloat16",),
        "logit_dtype": ("bfloat16",),
        "conv": (True,),
        "qk_norm": (True,),
        "gate_form": ("lower_bound",),
        "beta_form": ("sigmoid",),
        "gate_bias": (True,),
        "gate_rate": (True,),
    },
    conditions=(
        ("windows are always recorded", lambda case: "windows" in case.records),
        (
            "rings or snapshots, not both and not neither",
            lambda case: ("rings" in case.records) != ("snapshots" in case.records),
        ),
        ("T must be N * capacity", lambda case: case.tokens == case.requests * case.capacity),
    ),
)

COMMIT = Claims(Precision(), grain="token", choices=WIDE)

GENERAL = {f.name: f.kernel for f in FACTS if f.kernel is not None}
"""The subject that takes every case of an operation; the drop-ins take some."""


@dataclass(frozen=True)
class Ours:
    """One public operation of `kda_kernels`.

    Attributes:
        name: as listed and replayed.
        operation: the case operation it answers.
        function: its name in the kernel package.
        claims: what it declares.
        package: the kernel package; a copy with a planted fault goes by another name.
    """

    name: str
    operation: str
    function: str
    claims: Claims
    package: str = "kda_kernels"

    def unavailable(self) -> str:
        """Ours run wherever Triton does."""
        return ""

    @property
    def entry(self) -> tuple[str, str]:
        """Where the operation is imported from."""
        return self.package, self.function

    def module(self) -> ModuleType:
        """Import the kernel package late, so that the interpreter can still be chosen."""
        return importlib.import_module(self.package)

    def call(self, built: Built) -> dict[str, Tensor]:
        """Call the operation with the built keywords."""
        result = getattr(self.module(), self.function)(**self.keywords(built))
        return {} if result is None else {"out": result}

    def keywords(self, built: Built) -> dict[str, Any]:
        """Return the operation's keywords."""
        return dict(built.arguments)


@dataclass(frozen=True)
class Dspark(Ours):
    """The strict drop-in, whose keywords leave out what it fixes."""

    def keywords(self, built: Built) -> dict[str, Any]:
        """Drop the general operation's options."""
        fixed = {"max_tokens", "gate_form", "beta_form", "use_qk_l2norm_in_kernel"}
        given = {k: v for k, v in built.arguments.items() if k not in fixed}
        # Snapshots are a required keyword that rings make None.
        return {"intermediate_ssm": None, **given}


@dataclass(frozen=True)
class CommitSpec(Ours):
    """The commit drop-in, which is told its dims."""

    def keywords(self, built: Built) -> dict[str, Any]:
        """Add ring depth and head count."""
        extra = {"max_cache_len": built.case.capacity, "num_k_heads": built.case.heads}
        return {**built.arguments, **extra}


def subjects(package: str = "kda_kernels") -> tuple[Ours, ...]:
    """List our operations, from the package or from a copy of it."""
    single_layer = Claims(COMMIT.precision, COMMIT.grain, choices={**WIDE, "layers": (0,)})
    return (
        Ours("kda_mtp_verify", "verify", "kda_mtp_verify", ONE_PASS, package),
        Dspark(
            "fused_kda_decode_mtp_dspark",
            "verify",
            "fused_kda_decode_mtp_dspark",
            DSPARK,
            package,
        ),
        Ours("kda_replay_commit", "commit", "kda_replay_commit", COMMIT, package),
        CommitSpec(
            "commit_kda_replayssm_spec",
            "commit",
            "commit_kda_replayssm_spec",
            single_layer,
            package,
        ),
        Ours("kda_conv_commit", "conv_commit", "kda_conv_commit", COMMIT, package),
    )


def subject(name: str, package: str = "kda_kernels") -> Ours:
    """Return one of our operations by name, from the package or from a copy of it."""
    return next(s for s in subjects(package) if s.name == name)


__all__ = [
    "COMMIT",
    "DSPARK",
    "GENERAL",
    "ONE_PASS",
    "CommitSpec",
    "Dspark",
    "Ours",
    "subject",
    "subjects",
]
