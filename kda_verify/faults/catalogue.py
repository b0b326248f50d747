"""Every planted fault there is."""

from __future__ import annotations

from . import cheats, commit_faults, contract_faults, verify_faults
from .planted import Plant
from .plants import PLANTS

FAULTS: tuple[Plant, ...] = (
    *PLANTS,
    *verify_faults.PREPARE,
    *verify_faults.STREAM_AND_SCAN,
    *verify_faults.LAUNCH,
    *commit_faults.REPLAY,
    *commit_faults.CONV,
    *contract_faults.CONTRACT,
    *cheats.CHEATS,
)
