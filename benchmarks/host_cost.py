"""What a validated call costs on the host, launches included: `python -m benchmarks.host_cost`.

Needs a CUDA GPU. The device is never waited for inside the timed region; a call is timed alone,
with the queue drained before it, and the median is taken.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from kda_verify import summary
from kda_verify.cases.build import build
from kda_verify.cases.case import Case

CALLS, WARM_UP = 400, 20


def median_microseconds(call: Callable[[], object]) -> float:
    """Return the median host time of a call in microseconds."""
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    torch.cuda.synchronize()
    return statistics.median(times) / 1e3


def measure() -> dict[str, float]:
    """Time validation alone and whole calls of the drop-in verify and the commit."""
    from kda_kernels import fused_kda_decode_mtp_dspark, kda_replay_commit
    from kda_kernels.contract import COMMIT, DSPARK
    from kda_verify.subjects import find

    verify = Case(
        heads=12, size_k=128, size_v=128, lengths=(8,) * 8, capacity=8, dtype="bfloat16",
        logit_dtype="bfloat16", out_norm=True, records=("rings", "windows"), rows="packed",
        conv_pool="transposed",
    )  # fmt: skip
    commit = Case(
        operation="commit", heads=12, size_k=128, size_v=128, lengths=(8,) * 8, capacity=8,
        dtype="bfloat16", gate_form="given", conv=False,
    )  # fmt: skip
    subject = find("fused_kda_decode_mtp_dspark")
    arguments = subject.keywords(build(verify, "cuda"))  # type: ignore[attr-defined]
    folded = build(commit, "cuda").arguments
    whole = {"out": None, "check_values": None, "scale": None, **arguments}
    checked = {
        "mamba_track_indices": None, "mamba_steps_to_track": None, "check_values": None, **folded,
    }  # fmt: skip
    return {
        "verify: validate": median_microseconds(lambda: DSPARK.validate(whole)),
        "verify: whole call": median_microseconds(lambda: fused_kda_decode_mtp_dspark(**arguments)),
        "commit: validate": median_microseconds(lambda: COMMIT.validate(checked)),
        "commit: whole call": median_microseconds(lambda: kda_replay_commit(**folded)),
    }


def main() -> int:
    """Print the medians and, where asked, write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.host_cost: torch sees no CUDA GPU", file=sys.stderr)
        return 2
    data = {"environment": summary.environment("cuda"), "microseconds": measure()}
    print(json.dumps(data["microseconds"], indent=1))
    if options.json is not None:
        summary.write_json(data, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
