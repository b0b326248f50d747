"""The budget tells TF32 from fp32: one product in TF32 fails where it has anything to round."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kda_verify.cases.build import build
from kda_verify.cases.case import Case
from kda_verify.faults.sharpness import (
    PROBES,
    SHARE,
    WORST_RATIO,
    Sample,
    measure,
    product_share,
    summarize,
)

VERIFY = Case(size_k=32, size_v=24, lengths=(3, 2), capacity=4, records=("rings",), seed=5)
COMMIT = Case(
    operation="commit", conv=False, gate_form="given", size_k=32, lengths=(3, 2), capacity=4
)


@pytest.mark.parametrize("subject", PROBES)
def test_tf32_fails_and_the_kernel_stays_within_half(subject: str, device: str) -> None:
    found = measure(subject, {"kda_mtp_verify": 30, "kda_replay_commit": 40}[subject], seed=1)
    assert found.worst <= WORST_RATIO, found.worst_case
    assert found.counted >= found.judged // 4
    assert not found.refuted, f"{found}\n" + "\n".join(found.missed)


@pytest.mark.parametrize(
    ("counted", "found", "refuted"),
    [(16, 16, False), (16, 14, False), (16, 11, True), (200, 185, False), (200, 170, True)],
)
def test_what_refutes_the_least_share(counted: int, found: int, refuted: bool) -> None:
    sampled = replace(summarize("kernel", []), counted=counted, found=found)
    assert sampled.refuted == refuted
    assert replace(sampled, worst=0.51).refuted


@pytest.mark.parametrize("case", [VERIFY, COMMIT], ids=["verify", "commit"])
def test_a_product_with_an_ordinary_state_counts(case: Case) -> None:
    assert product_share(build(case)) > SHARE


@pytest.mark.parametrize(
    "case",
    [
        replace(VERIFY, states="zero"),
        replace(VERIFY, padding=(0, 1)),
        replace(VERIFY, lengths=(0, 0)),
        replace(VERIFY, states="tiny"),
        replace(VERIFY, gate_form="softplus", gates="saturated"),
        replace(COMMIT, states="zero"),
        replace(COMMIT, padding=(0, 1)),
        replace(COMMIT, lengths=(0, 0)),
        replace(COMMIT, betas="zero"),
        replace(COMMIT, keys="zero"),
    ],
    ids=lambda c: f"{c.operation} {c.to_json()}"[:60],
)
def test_a_product_that_vanishes_does_not_count(case: Case) -> None:
    assert product_share(build(case)) < SHARE


def test_the_share_of_a_product_is_what_it_adds() -> None:
    """One token, S = s e e', q = e, no value: the output is the product alone."""
    built = build(replace(VERIFY, lengths=(1,), values="zero", keys="collinear"))
    assert product_share(built) == pytest.approx(1.0)
    built.arguments["recurrent_state"].masked_fill_(torch.tensor(True), 0.0)
    assert product_share(built) == 0.0


def test_sums_up_distinct_cases() -> None:
    def sample(case: Case, real: float, counts: bool, found: bool) -> Sample:
        return Sample("kda_mtp_verify", case, real, 0.0, counts, found)

    samples = [
        sample(VERIFY, 0.1, True, True),
        sample(VERIFY, 0.1, True, True),
        sample(replace(VERIFY, seed=6), 0.3, True, False),
        sample(replace(VERIFY, seed=7), 0.2, False, False),
    ]
    found = summarize("kda_mtp_verify", samples)
    assert (found.judged, found.counted, found.found, found.worst) == (3, 2, 1, 0.3)
    assert found.share == 0.5
    assert not found.holds
    assert found.missed == (replace(VERIFY, seed=6).to_json(),)
    assert not summarize("kda_replay_commit", samples).holds
