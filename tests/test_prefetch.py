"""Work that a thread does ahead: in order, no more than one ahead, with errors and an end."""

import threading

import pytest

from setgrad._prefetch import prefetched


def test_items_come_in_order_and_no_more_than_one_ahead():
    made = []

    def work():
        for number in range(6):
            made.append(number)
            yield number

    for number in prefetched(work()):
        assert len(made) <= number + 2
    assert made == list(range(6))


def test_an_error_of_the_thread_is_raised_after_the_items_before_it():
    def work():
        yield 1
        raise ValueError("broken")

    items = prefetched(work())
    assert next(items) == 1
    with pytest.raises(ValueError, match="broken"):
        next(items)


def test_closing_ends_the_thread():
    before = threading.active_count()
    items = prefetched(iter(range(10**9)))
    assert next(items) == 0
    items.close()
    assert threading.active_count() == before
