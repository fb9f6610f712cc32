"""Picks by tasks of Ray, each for a part of the table. One whose process is lost is run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from setgrad._progress import progress_bar
from setgrad.cluster._ray import check_count, check_ray, check_resources, shared_paths
from setgrad.errors import LostRankError
from setgrad.selector import load
from setgrad.selector._writing import PicksSummary


def write_picks(
    model: str | Path,
    table: Any,
    folder: str | Path,
    *,
    parts: int,
    resources: Mapping[str, float] | None = None,
    retries: int = 3,
    **arguments: Any,
) -> PicksSummary:
    """Choose from a table on a Ray cluster, part by part, and write the picks of each part to a file.

    The files in the folder are together the picks of `SubsetSelector.write_picks`. All machines need setgrad, and the
    same files under the same paths. A second call writes all parts again.

    Args:
        model: The folder of a model.
        table: What `write_picks` takes, as paths or addresses.
        folder: The folder for the picks.
        parts: The number of parts. Each reads the ids of the whole table, and is written anew if its process is lost:
            take a few times as many as run at once.
        resources: What Ray sets aside for each part that runs, such as {"CPU": 4, "GPU": 1}; None for one CPU.
        retries: How often a part may start again.
        **arguments: The other arguments of `SubsetSelector.write_picks`: `size`, `carry`, ...

    Returns:
        The number of chosen items of each set, in the order of the table, and the picks of the first sets.

    Raises:
        DataError: If the table cannot be read, or a file cannot be written; and other errors of `write_picks`.
        LostRankError: If the processes of a part were lost more often than `retries`.
        MissingDependencyError: If Ray is not installed.
        OptionError: If an argument is not allowed.

    Examples:
        >>> write_picks("/shared/model", "/shared/rows", "/shared/picks", parts=32)  # doctest: +SKIP
    """
    check_ray()
    check_count("parts", parts, 1)
    check_count("retries", retries, 0)
    import ray

    resources = check_resources(resources)
    known = {name: resources.pop(key) for name, key in _OPTIONS.items() if key in resources}
    task = ray.remote(_write).options(max_retries=int(retries), resources=resources, **known)
    place = str(Path(folder).resolve())
    job = (str(Path(model).resolve()), shared_paths(table), place, arguments)
    started = [task.remote(*job, (number + 1, parts)) for number in range(parts)]
    try:
        with progress_bar("choosing", parts, unit="parts") as progress:
            waiting = started
            while waiting:
                done, waiting = ray.wait(waiting)
                ray.get(done)
                progress.update(parts - len(waiting))
        summaries = [ray.get(one) for one in started]
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.ObjectLostError) as error:
        raise LostRankError(f"the processes of a part were lost {retries + 1} times: {error}") from None
    finally:
        for one in started:
            ray.cancel(one, force=True)
    return PicksSummary(
        Path(place),
        np.concatenate([summary.sizes for summary in summaries]),
        sum(summary.items for summary in summaries),
        summaries[0].first,
    )


# How Ray calls what it counts itself, as an option of a task and as a resource.
_OPTIONS = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}


def _write(model: str, table: Any, folder: str, arguments: dict[str, Any], part: tuple[int, int]) -> PicksSummary:
    """Write a part; only the first one sends picks back."""
    summary = load(model).write_picks(table, folder, part=part, **arguments)
    return summary if part[0] == 1 else replace(summary, first=summary.first.slice(0, 0))
