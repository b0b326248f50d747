"""Conv commit: the window recorded at the last accepted token goes into the conv histories."""

from __future__ import annotations

from . import facts

FACTS = facts.Facts(
    name="conv_commit",
    told="conv commit: the window recorded at the last accepted token goes into the conv "
    "histories",
    kernel="kda_conv_commit",
    family="token-order",
    fields=frozenset((
        *facts.DIMS, *facts.REQUESTS, *facts.POOLS, *facts.LAYERS, "conv_pool",
    )),
    axes={
        **dict.fromkeys(facts.HISTORIES, "s C w"),
        **dict.fromkeys(facts.WINDOWS, "s t C w"),
    },
    written=facts.HISTORIES,
    carried=facts.HISTORIES,
    slot_pools=facts.HISTORIES,
    row_pools=facts.WINDOWS,
)  # fmt: skip
