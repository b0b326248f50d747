"""The recurrent operation: whole sequences, packed or batched, from given states or a pool.

A pool is advanced in place, slot by slot; otherwise the final states are returned.
"""

from __future__ import annotations

from . import facts

FACTS = facts.Facts(
    name="recurrent",
    told="recurrent operation: whole sequences, one token after another",
    kernel=None,
    family="token-order",
    fields=frozenset((
        *facts.DIMS, *facts.REQUESTS, *facts.POOLS, *facts.ROWS, *facts.GATES, *facts.NUMBERS,
        "batched", "initial", "state_layout",
    )),
    fixed={"conv": False},
    bounded=False,
    queries="q",
    keys="k",
    values="v",
    axes={
        "q": "1 t h k", "k": "1 t h k", "v": "1 t H v", "g": "1 t H k", "beta": "1 t H",
        "A_log": "H", "dt_bias": "(Hk)", "initial_state": "s H v k",
    },
    written=("initial_state",),
    carried=("initial_state",),
    states=("initial_state",),
    slot_pools=("initial_state",),
)  # fmt: skip
