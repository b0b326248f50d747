"""What the kernels require of their arguments: clauses as data, and one contract per operation."""

from .clause import STAGES, Clause, Contract
from .commit import COMMIT, COMMIT_SPEC, CONV_COMMIT
from .dspark import DSPARK
from .mtp import MTP_VERIFY

CONTRACTS = (MTP_VERIFY, DSPARK, COMMIT, COMMIT_SPEC, CONV_COMMIT)

__all__ = [
    "COMMIT",
    "COMMIT_SPEC",
    "CONTRACTS",
    "CONV_COMMIT",
    "DSPARK",
    "MTP_VERIFY",
    "STAGES",
    "Clause",
    "Contract",
]
