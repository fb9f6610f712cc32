"""Boosted trees that give each item a first score, from columns and from features relative to its set."""

from setgrad.trees.boosted import BoostedTrees

__all__ = ["BoostedTrees"]
