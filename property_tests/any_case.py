"""Any case of an operation, the unlikely combinations included, and the oracle called on it."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kda_verify.cases.build import Built
from kda_verify.cases.case import (
    BETA_FORMS,
    BETAS,
    GATE_FORMS,
    GATES,
    INITIALS,
    KEYS,
    POISONS,
    STATES,
    TAPS,
    VALUES,
    Case,
)
from kda_verify.operations import NAMES, facts, registry

SMALL = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


@st.composite
def cases(draw: st.DrawFn, operation: str | None = None, exact: bool = False) -> Case:
    """Draw any case of an operation, exact ones without the stages that round."""

    def choose(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    operation = operation or choose(*NAMES)
    lengths = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)))
    batched = facts(operation).takes("batched") and len(set(lengths)) == 1 and draw(st.booleans())
    conv = draw(st.booleans())
    qk_norm = (exact and conv) or draw(st.booleans())
    dtypes = ("float32", "bfloat16") if exact else ("float32", "bfloat16", "float16")
    padding = tuple(n for n in range(len(lengths)) if draw(st.booleans()))
    initial = choose(*INITIALS)
    if facts(operation).takes("initial") and initial != "pool":
        padding = ()
    pooled = bool(facts(operation).slot_pools) and (
        initial == "pool" or not facts(operation).takes("initial")
    )
    state_dtype = choose("float32", "bfloat16") if pooled else "float32"
    layers = choose(0, 2) if facts(operation).layered else 0
    return Case(
        operation=operation, heads=choose(1, 2), group=choose(1, 2), size_k=choose(16, 20, 64),
        size_v=choose(16, 19), lengths=lengths, capacity=max(*lengths, 1) + choose(0, 1),
        padding=padding, initial=initial, state_dtype=state_dtype,
        slack_rows=choose(0, 2), dtype=choose(*dtypes),
        logit_dtype=choose("float32", "bfloat16"), rows=choose("packed", "pitched", "separate"),
        pool=choose("dense", "pitched", "envelope"), conv_pool=choose("transposed", "dense"),
        state_layout=choose("vk", "kv"), batched=batched, spare_slots=choose(0, 1, 3),
        index_stride=choose(1, 3), conv=conv, qk_norm=qk_norm, gate_form=choose(*GATE_FORMS),
        beta_form=choose(*BETA_FORMS), gate_bias=draw(st.booleans()),
        gate_rate=draw(st.booleans()), out_norm=not exact and draw(st.booleans()),
        out_given=draw(st.booleans()), layers=layers, track=draw(st.booleans()),
        records=("rings", "snapshots", *(("windows",) if conv else ())), null_block=choose(-1, 1),
        exact=exact, keys=choose(*KEYS), gates=choose(*GATES), taps=choose(*TAPS),
        betas=choose(*BETAS), values=choose(*VALUES), states=choose(*STATES),
        poison=choose(*POISONS), seed=draw(st.integers(0, 999)),
    )  # fmt: skip


def call_oracle(built: Built) -> Any:
    """Run the oracle of the case's operation on the call."""
    return registry.operation(built.case.operation).oracle(**built.arguments)
