"""One status and one failure policy for every solver."""

import pytest
import torch

from setgrad import discrete, implicit
from setgrad._status import Status, handle_failures, has_answer, summarise_failures
from setgrad.errors import OptionError, SolverError

MIXED = torch.tensor([[0, 1], [8, 1]])


def test_both_packages_share_the_status() -> None:
    assert discrete.Status is implicit.Status is Status


def test_every_failure_has_a_remedy_of_its_own() -> None:
    remedies = [status.remedy for status in Status]
    assert len(set(remedies)) == len(Status)


def test_failures_are_counted_and_the_most_frequent_gives_the_remedy() -> None:
    summary = summarise_failures(MIXED)
    assert (summary.failed, summary.total, summary.first) == (3, 4, 1)
    assert summary.counts == "2 MAX_STEPS, 1 TIME_LIMIT"
    assert summary.remedy == Status.MAX_STEPS.remedy


def test_a_time_limit_has_an_answer_and_other_failures_have_none() -> None:
    assert has_answer(MIXED).tolist() == [[True, False], [True, False]]


def test_the_policy_decides_what_happens() -> None:
    def describe() -> str:
        return "three failed"

    handle_failures(MIXED, "mask", SolverError, describe)
    handle_failures(torch.zeros(3), "raise", SolverError, describe)
    with pytest.warns(RuntimeWarning, match="three failed"):
        handle_failures(MIXED, "warn", SolverError, describe)
    with pytest.raises(SolverError, match="three failed"):
        handle_failures(MIXED, "raise", SolverError, describe)
    with pytest.raises(OptionError, match="unknown on_failure 'ignore'; choose one of: raise, warn, mask"):
        handle_failures(MIXED, "ignore", SolverError, describe)
