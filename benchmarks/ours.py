"""The kernels of this project as contenders: the drop-in verify and the general commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from kda_verify.subjects.ours import COMMIT, DSPARK

from .contenders import Call, Contender
from .inputs import Inputs

# What identifies a variant, in the order in which it is shown.
SHOWN = ("CAPACITY", "BLOCK_V", "TILE_V", "STEP", "ROWS", "PRECISION", "num_warps", "num_stages")


class Ours(Contender):
    """Whatever this tree launches; judged by what it claims and by nothing looser."""

    name = "ours"
    peer = "ours"
    precision = DSPARK.precision
    # A product over tokens may spread a NaN over its head; inputs here are finite.
    grain = DSPARK.grain

    def bind(self, inputs: Inputs) -> Call:
        """Bind the public, validating call; values are not checked on a GPU."""
        from kda_kernels import fused_kda_decode_mtp_dspark, kda_replay_commit

        arguments = inputs.built.arguments

        def verify() -> Mapping[str, Tensor]:
            fused_kda_decode_mtp_dspark(**arguments)
            return {}

        def commit() -> Mapping[str, Tensor]:
            kda_replay_commit(**arguments)
            return {}

        assert COMMIT.precision == DSPARK.precision
        return verify if inputs.row.is_verify else commit

    @contextmanager
    def observed(self) -> Iterator[list[dict[str, Any]]]:
        """Record every launch with its constants, where the operations hand them to the GPU."""
        from kda_kernels import registration

        launches: list[dict[str, Any]] = []
        run_all = registration.run_all

        def run(planned: list[Any], device: Any) -> None:
            launches.extend(
                {
                    "kernel": launch.kernel.__name__,
                    "programs": launch.programs,
                    "constants": {k: v for k, v in launch.constants.items() if k in SHOWN},
                }
                for launch in planned
            )
            run_all(planned, device)

        registration.run_all = run  # type: ignore[assignment]
        try:
            yield launches
        finally:
            registration.run_all = run_all
