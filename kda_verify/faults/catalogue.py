"""Every planted fault there is."""

from __future__ import annotations

from . import (
    cheats,
    commit_faults,
    contract_faults,
    held_out_commit,
    held_out_verify,
    verify_faults,
)
from .planted import Plant
from .plants import PLANTS

HELD_OUT: tuple[Plant, ...] = (
    *held_out_commit.HELD_OUT_COMMIT,
    *held_out_verify.HELD_OUT_VERIFY,
)
"""Written without sight of the cases and of the other faults; `held_out_verify.NEEDS_GPU` too."""

FAULTS: tuple[Plant, ...] = (
    *PLANTS,
    *verify_faults.PREPARE,
    *verify_faults.STREAM_AND_SCAN,
    *verify_faults.LAUNCH,
    *commit_faults.REPLAY,
    *commit_faults.CONV,
    *contract_faults.CONTRACT,
    *cheats.CHEATS,
    *HELD_OUT,
)


def find(name: str) -> Plant:
    """Return the planted fault of that name.

    Raises:
        ValueError: there is none.
    """
    for plant in FAULTS:
        if plant.name == name:
            return plant
    raise ValueError(f"`name` must be one of {', '.join(p.name for p in FAULTS)}, got {name!r}")
