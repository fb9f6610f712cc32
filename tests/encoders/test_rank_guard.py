"""A process that is killed, stopped or late, at any stage: all others end with a LostRankError in the stated time."""

from __future__ import annotations

import sys

import pytest
import torch.distributed as dist

from benchmarks.attack.ranks import FAILED, KILLED, LATE, LOST, NOTHING, RANKS, STOPPED, lose_a_rank
from setgrad.encoders import guard_ranks
from setgrad.errors import LostRankError, OptionError

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are stopped as Linux does")


@on_linux
@pytest.mark.parametrize(
    ("stage", "way"),
    [
        *((stage, way) for way in (KILLED, STOPPED) for stage in ("start", "data", "forward", "backward", "save")),
        ("forward", LATE),  # in a collective operation
        ("sleep", KILLED),  # while the others wait for something else
    ],
)
def test_the_others_end_when_a_process_is_lost(stage, way, tmp_path):
    codes, texts = lose_a_rank(tmp_path, stage, way)
    for rank in range(RANKS):
        if rank != LOST:
            assert codes[rank] == 1
            assert "LostRankError: " in texts[rank] and "then start all of them again" in texts[rank], texts[rank]


@on_linux
def test_an_error_in_one_process_ends_the_others(tmp_path):
    codes, texts = lose_a_rank(tmp_path, "save", FAILED)
    assert codes == [1] * RANKS
    assert "DataError: the disk is gone" in texts[LOST] and "LostRankError" not in texts[LOST]
    others = [text for rank, text in enumerate(texts) if rank != LOST]
    assert all("LostRankError: another process of the group failed; look at" in text for text in others)


@on_linux
def test_without_a_loss_all_end_together(tmp_path):
    codes, texts = lose_a_rank(tmp_path, "end", NOTHING)
    assert codes == [0] * RANKS, texts
    assert (tmp_path / "model").exists()


def test_the_group_is_gone_after_the_block_and_one_that_was_there_stays(tmp_path):
    meet = {"init_method": f"file://{tmp_path}/meet", "rank": 0, "world_size": 1}
    with guard_ranks("gloo", timeout=5, **meet):
        assert dist.get_world_size() == 1
    assert not dist.is_initialized()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/other", rank=0, world_size=1)
    try:
        with guard_ranks(timeout=5), pytest.raises(ZeroDivisionError):
            1 / 0  # noqa: B018
        assert dist.is_initialized()
        with pytest.raises(KeyError, match="own"), guard_ranks(timeout=5):
            raise KeyError("own")
        with pytest.raises(LostRankError, match="did not answer for 5 s"), guard_ranks(timeout=5):
            raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    finally:
        dist.destroy_process_group()


def test_a_timeout_must_be_positive():
    with pytest.raises(OptionError, match="timeout must be a positive number"), guard_ranks(timeout=0):
        pass


def test_an_error_without_a_message_says_what_to_do():
    """The thread that watches raises the class: it may arrive after the block, where nothing adds a message."""
    assert "look at the messages of the other processes" in str(LostRankError())
    assert str(LostRankError("rank 3 is gone")) == "rank 3 is gone"
