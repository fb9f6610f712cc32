"""Work that a thread does ahead of the loop that uses its results."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from queue import Queue
from typing import Any, TypeVar

Item = TypeVar("Item")


def prefetched(items: Iterable[Item]) -> Generator[Item]:
    """Yield the items in their order, while a thread computes the next one, and no more than that.

    An error in the thread is raised here. Closing the iterator ends the thread.

    Examples:
        >>> list(prefetched(range(3)))
        [0, 1, 2]
    """
    # What the thread says: an item, an error, or that there is no more.
    queue: Queue[tuple[str, Any]] = Queue()
    is_wanted, is_over = threading.Semaphore(1), threading.Event()

    def work() -> None:
        try:
            iterator = iter(items)
            while is_wanted.acquire() and not is_over.is_set():
                try:
                    queue.put(("item", next(iterator)))
                except StopIteration:
                    queue.put(("end", None))
                    return
        except BaseException as error:
            queue.put(("error", error))

    thread = threading.Thread(target=work, name="setgrad-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = queue.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            is_wanted.release()
            yield value
            # Not held while the next one is waited for.
            del value
    finally:
        is_over.set()
        is_wanted.release()
        thread.join()
