"""Profiles, the device, and the interpreter: chosen once, before anything imports Triton."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(1)
warnings.filterwarnings("ignore", message=".*Triton is not supported.*")

# First calls compile and interpreted kernels are slow: no deadline, no health check on time.
_COMMON = {
    "deadline": None,
    "suppress_health_check": (HealthCheck.too_slow, HealthCheck.data_too_large),
    "print_blob": False,
}
settings.register_profile("dev", settings(max_examples=8, **_COMMON))  # type: ignore[arg-type]
settings.register_profile(
    "verify",
    settings(max_examples=15, derandomize=True, database=None, **_COMMON),  # type: ignore[arg-type]
)
settings.register_profile("explore", settings(max_examples=500, **_COMMON))  # type: ignore[arg-type]
settings.register_profile(
    "mutate",
    settings(
        max_examples=8,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        **_COMMON,  # type: ignore[arg-type]
    ),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag that chooses how many examples each property draws."""
    parser.addoption(
        "--kda-profile",
        default=os.environ.get("KDA_PROFILE", "verify"),
        choices=("dev", "verify", "explore", "mutate"),
        help="examples per property: dev (few, random), verify (the same each time), explore "
        "(many, random, remembered), mutate (no shrinking); also KDA_PROFILE [%(default)s]",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the profile explicitly: Hypothesis loads its own wherever CI is set."""
    settings.load_profile(config.getoption("--kda-profile"))


@pytest.fixture(scope="session")
def device() -> str:
    """Where operands live: the GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"
