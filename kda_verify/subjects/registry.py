"""Which subjects there are."""

from __future__ import annotations

from . import ours
from .base import Subject
from .fla import FlaRecurrent


def all_subjects() -> tuple[Subject, ...]:
    """List every subject, whether or not it can run here."""
    return (*ours.subjects(), FlaRecurrent())


def find(name: str) -> Subject:
    """Return the subject of that name.

    Raises:
        ValueError: no subject has it.
    """
    for subject in all_subjects():
        if subject.name == name:
            return subject
    known = ", ".join(s.name for s in all_subjects())
    raise ValueError(f"`kernel` must be one of {known}, got {name!r}")
