"""Stick-breaking attention: each key takes its share of what the nearer keys left over (arXiv 2410.17980)."""

from .interface import stick_breaking_attention
from .reference import reference_attention

__all__ = ["reference_attention", "stick_breaking_attention"]
