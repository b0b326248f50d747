"""Who takes part: ours, and every peer that can run here."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from . import peers_fla, peers_sglang
from .contenders import Contender, NotRun
from .ours import Ours

PEERS = ("sglang", "fla")


def gather(
    folder: Path | None = None, peers: Collection[str] = PEERS
) -> tuple[list[Contender], dict[str, str]]:
    """Return the contenders, ours first, and the reasons of the peers that cannot run.

    Args:
        folder: see `peers_sglang.contenders`.
        peers: names of the peers wanted.

    Raises:
        ValueError: an unknown peer, or a folder that holds no `sglang`.
    """
    for name in peers:
        if name not in PEERS:
            raise ValueError(f"`peers` must be among {', '.join(PEERS)}, got {name!r}")
    contenders: list[Contender] = [Ours()]
    not_run = {name: "not asked for" for name in PEERS if name not in peers}
    for name, found in (
        ("sglang", peers_sglang.contenders(folder) if "sglang" in peers else None),
        ("fla", peers_fla.contenders() if "fla" in peers else None),
    ):
        if isinstance(found, NotRun):
            not_run[name] = found.reason
        elif found is not None:
            contenders += found
    return contenders, not_run
