"""Triton kernels of Kimi Delta Attention for speculative decoding: verify and commit."""

from .dspark import commit_kda_replayssm_spec, fused_kda_decode_mtp_dspark
from .mtp import kda_mtp_verify
from .replay import kda_conv_commit, kda_replay_commit

__all__ = [
    "commit_kda_replayssm_spec",
    "fused_kda_decode_mtp_dspark",
    "kda_conv_commit",
    "kda_mtp_verify",
    "kda_replay_commit",
]
