"""Replay commit: the accepted prefix of the rings goes into the state pool."""

from __future__ import annotations

from . import facts

RINGS = ("rawv", "rawk", "gk", "beta")

FACTS = facts.Facts(
    name="commit",
    told="replay commit: the accepted tokens of the rings are folded into the state pool",
    kernel="kda_replay_commit",
    family="token-order",
    fields=frozenset((
        *facts.DIMS, *facts.REQUESTS, *facts.POOLS, *facts.NUMBERS, *facts.LAYERS, "beta_form",
        "lower_bound", "track",
    )),
    # A ring holds what its verify computed: keys after SiLU and the log decay itself.
    fixed={"conv": False, "gate_form": "given"},
    keys="rawk",
    values="rawv",
    axes={
        "checkpoint_state": "s H v k", "rawv": "s H t v", "rawk": "s h t k", "gk": "s H t k",
        "beta": "s H t",
    },
    written=("checkpoint_state",),
    carried=("checkpoint_state",),
    states=("checkpoint_state",),
    aligned=("checkpoint_state",),
    slot_pools=("checkpoint_state", *RINGS),
)  # fmt: skip
