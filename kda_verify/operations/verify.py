"""Multi-token verify: outputs of drafted tokens, and the records from which some are accepted."""

from __future__ import annotations

from . import facts

RINGS = {
    "ring_v": "replayssm_rawv",
    "ring_k": "replayssm_rawk",
    "ring_g": "replayssm_g",
    "ring_beta": "replayssm_beta",
}
"""Operands of the rings, by the record that a law reads there."""

FACTS = facts.Facts(
    name="verify",
    told="multi-token verify: conv, gate, recurrence and output of every draft token; the "
    "committed pools are only read",
    kernel="kda_mtp_verify",
    family="one-pass",
    fields=frozenset((
        *facts.DIMS, *facts.REQUESTS, *facts.POOLS, *facts.ROWS, *facts.GATES, *facts.NUMBERS,
        "conv", "conv_pool", "taps", "out_norm", "out_given", "records",
    )),
    queries="x_q",
    keys="x_k",
    values="x_v",
    axes={
        "x_q": "1 t h k", "x_k": "1 t h k", "x_v": "1 t H v", "g": "1 t H k", "beta": "1 t H",
        "A_log": "H", "dt_bias": "(Hk)", "w_q": "(hk) w", "w_k": "(hk) w", "w_v": "(Hv) w",
        "cs_q": "s (hk) w", "cs_k": "s (hk) w", "cs_v": "s (Hv) w",
        "recurrent_state": "s H v k", "onorm_gate": "1 t H v", "onorm_weight": "v",
    },
    written=("out", "intermediate_ssm", *facts.WINDOWS, *RINGS.values()),
    carried=("recurrent_state", *facts.HISTORIES),
    states=("recurrent_state",),
    aligned=("recurrent_state", "intermediate_ssm"),
    slot_pools=("recurrent_state", *facts.HISTORIES, *RINGS.values()),
    row_pools=("intermediate_ssm", *facts.WINDOWS),
)  # fmt: skip
