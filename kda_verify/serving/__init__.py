"""Serving schedules: an engine that plays them on kernels, and a model that knows the answer.

A schedule is what a serving engine does with one pool of slots: requests come, are verified and
committed in batches of changing order and size, are rejected, tracked, freed, and their slots are
reused. `Schedule` is the recipe, `Player` runs it and checks everything after every step.
"""

from .engine import Engine, Kernels, our_kernels
from .play import Failure, Player, play
from .schedule import Schedule, Seat, Step

__all__ = [
    "Engine",
    "Failure",
    "Kernels",
    "Player",
    "Schedule",
    "Seat",
    "Step",
    "our_kernels",
    "play",
]
