"""Which subjects there are."""

from __future__ import annotations

from . import emulated, ours
from .base import Subject
from .fla import FlaRecurrent


def all_subjects() -> tuple[Subject, ...]:
    """List every kernel, whether or not it can run here."""
    return (*ours.subjects(), FlaRecurrent())


def find(name: str) -> Subject:
    """Return the kernel or the emulated kernel of that name.

    Raises:
        ValueError: no subject has it.
    """
    subjects = (*all_subjects(), *emulated.SUBJECTS)
    for subject in subjects:
        if subject.name == name:
            return subject
    known = ", ".join(s.name for s in subjects)
    raise ValueError(f"`kernel` must be one of {known}, got {name!r}")
