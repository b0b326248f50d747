"""Which cases a run draws for which subject."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from .cases import strategies
from .cases.case import Case

VARIANT_COUNT, VARIANT_SEED = 60, 20260


@dataclass(frozen=True)
class Draws:
    """Say what is drawn for a subject.

    Attributes:
        subject: name of the subject.
        strategy: name of a strategy in `kda_verify.cases.strategies`.
        examples: how many cases.
    """

    subject: str
    strategy: str
    examples: int


@dataclass(frozen=True)
class Batch:
    """A share of some draws that one worker judges.

    Attributes:
        draws: what is drawn; `draws.examples` of it.
        seed: Hypothesis's seed: the same cases each time.
        compiled: draw sizes and variants meant for a GPU.
    """

    draws: Draws
    seed: int
    compiled: bool = False

    def strategy(self) -> st.SearchStrategy[Case]:
        """Build the strategy of the batch."""
        make = getattr(strategies, self.draws.strategy)
        if not self.compiled or self.draws.strategy == "dspark_cases":
            return make()
        if self.draws.strategy == "verify_cases":
            return make(variants=variants(), most=8)
        if self.draws.strategy == "exact_verify_cases":
            return make(variants=variants(), most=4)
        return make(sizes=strategies.COMPILED_SIZES, most=8)

    def cases(self) -> list[Case]:
        """Draw the cases of the batch without judging them."""
        return drawn(self.strategy(), self.draws.examples, self.seed)


OURS = (
    Draws("kda_mtp_verify", "verify_cases", 180),
    Draws("kda_mtp_verify", "exact_verify_cases", 50),
    Draws("fused_kda_decode_mtp_dspark", "dspark_cases", 24),
    Draws("kda_replay_commit", "commit_cases", 100),
    Draws("kda_replay_commit", "exact_commit_cases", 25),
    Draws("commit_kda_replayssm_spec", "commit_cases", 25),
    Draws("kda_conv_commit", "conv_commit_cases", 85),
)
PEERS = (
    Draws("fla.fused_recurrent_kda", "recurrent_cases", 95),
    Draws("fla.fused_recurrent_kda", "exact_recurrent_cases", 25),
)

EMULATED = tuple(
    Draws(f"emulated.{form}", "verify_cases", 180)
    for form in ("token-order", "one-pass", "chunked")
)
DETERMINISM = (
    Draws("kda_mtp_verify", "verify_cases", 6),
    Draws("kda_replay_commit", "commit_cases", 6),
    Draws("kda_conv_commit", "conv_commit_cases", 4),
    Draws("fla.fused_recurrent_kda", "recurrent_cases", 4),
)
"""Cases that are repeated and called among others, bit for bit."""


def draws_for(subjects: Iterable[str]) -> tuple[Draws, ...]:
    """Return the standard draws of the named subjects."""
    names = set(subjects)
    return tuple(d for d in (*OURS, *PEERS, *EMULATED) if d.subject in names)


def batches(
    draws: Iterable[Draws], *, size: int, seed: int = 0, scale: float = 1.0, compiled: bool = False
) -> list[Batch]:
    """Cut draws into batches, the same ones each time."""
    cut = []
    for index, wanted in enumerate(draws):
        left = max(1, round(wanted.examples * scale))
        part = 0
        while left > 0:
            count = min(size, left)
            share = Draws(wanted.subject, wanted.strategy, count)
            cut.append(Batch(share, seed * 1_000_003 + index * 1_009 + part, compiled))
            left, part = left - count, part + 1
    return cut


def variants() -> list[dict[str, Any]]:
    """Return the declared combinations of compile-time constants, the same ones each time.

    Compiling each costs seconds; a run on a GPU draws from these only.
    """
    return drawn(strategies.verify_constants(), VARIANT_COUNT, VARIANT_SEED)


def drawn(strategy: st.SearchStrategy[Any], count: int, start: int) -> list[Any]:
    """Draw `count` values, the same ones for the same seed."""
    values: list[Any] = []

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Any) -> None:
        values.append(value)

    collect()
    return values[:count]
