"""A forked process does not have the threads that torch computed with, and would wait for them forever."""

from __future__ import annotations

import os

import torch


def compute_alone_after_fork() -> None:
    """Let forked children compute with one thread, as the workers of torch's own data loaders do."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_use_one_thread)


def _use_one_thread() -> None:
    torch.set_num_threads(1)
