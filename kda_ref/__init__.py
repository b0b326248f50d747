"""The oracle: Kimi Delta Attention in pure PyTorch, float64, one token at a time."""

from .bounded import Bounded, cast, round_to, stored, ulp
from .budget import UNIT_ROUNDOFF, Precision, RoundingPoints
from .commit import CommitResult, kda_conv_commit, kda_replay_commit
from .sequences import SequenceResult, kda_recurrent
from .verify import MtpResult, RequestTrace, kda_mtp_verify

__all__ = [
    "UNIT_ROUNDOFF",
    "Bounded",
    "CommitResult",
    "MtpResult",
    "Precision",
    "RequestTrace",
    "RoundingPoints",
    "SequenceResult",
    "cast",
    "kda_conv_commit",
    "kda_mtp_verify",
    "kda_recurrent",
    "kda_replay_commit",
    "round_to",
    "stored",
    "ulp",
]
