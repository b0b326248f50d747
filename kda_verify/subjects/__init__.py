"""Adapters around the kernels that can be judged."""

from .base import Claims, Subject
from .registry import all_subjects, find

__all__ = ["Claims", "Subject", "all_subjects", "find"]
