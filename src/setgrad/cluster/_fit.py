"""A fit by workers of Ray Train. If one is lost, all of them start again and go on from the checkpoint."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setgrad._files import previous_of
from setgrad._progress import announce
from setgrad.cluster._ray import check_count, check_ray, check_resources, shared_paths
from setgrad.errors import LostRankError, OptionError, SetgradError
from setgrad.selector import SubsetSelector, load
from setgrad.selector._model_files import check_model_folder

# Arguments of `fit` that cannot be sent to other machines, that several processes do not have, or that are set here.
_NOT_PASSED = (
    *("self", "sets", "subsets", "groups", "sample_weight", "start"),
    *("constraint", "gradient", "choice_loss", "callback", "distributed"),
)


def fit(
    selector: SubsetSelector,
    table: Any,
    folder: str | Path,
    *,
    workers: int,
    resources: Mapping[str, float] | None = None,
    retries: int = 3,
    **arguments: Any,
) -> SubsetSelector:
    """Fit on a Ray cluster: every worker calls `fit(distributed=True)`, and the first one saves the model.

    If a worker is lost, all of them start again and go on from the checkpoint. So does the next call with the same
    arguments after this program has ended. The training losses are those of one process up to 1e-5.

    All machines need setgrad, and the same files under the same paths. Ray is the one that is running in this program
    or named by RAY_ADDRESS; without it Ray starts on this machine.

    Args:
        selector: A selector with the options of the fit. One without `random_state` gets 0, and one without
            `checkpoint` the file `FOLDER.ckpt`, which is removed when the model is saved.
        table: What `fit` takes, as paths or addresses.
        folder: The folder for the model.
        workers: The number of processes.
        resources: What Ray sets aside for each of them, such as {"CPU": 4, "GPU": 1}; None for one CPU.
        retries: How often the workers may start again.
        **arguments: The other arguments of `fit`: names of columns, `validation`, `stream`.

    Returns:
        The fitted selector, as `load` reads it from the folder.

    Raises:
        DataError: If the data cannot be used, or a file cannot be written; and other errors of `fit`.
        LostRankError: If workers were lost more often than `retries`.
        MissingDependencyError: If Ray is not installed.
        OptionError: If an argument is not allowed.

    Examples:
        >>> selector = SubsetSelector(checkpoint="/shared/run.ckpt")
        >>> columns = {"set_id": "session", "chosen": "bought"}
        >>> selector = fit(selector, "/shared/rows", "/shared/model", workers=8, **columns)  # doctest: +SKIP
    """
    check_ray()
    check_count("workers", workers, 1)
    check_count("retries", retries, 0)
    resources = check_resources(resources)
    allowed = [name for name in inspect.signature(SubsetSelector.fit).parameters if name not in _NOT_PASSED]
    unknown = [name for name in arguments if name not in allowed]
    if unknown:
        raise OptionError(f"a fit on a cluster has no argument {unknown[0]!r}; it takes {', '.join(allowed)}")
    if "validation" in arguments:
        arguments["validation"] = shared_paths(arguments["validation"])
    place = Path(folder).resolve()
    own = place.with_name(f"{place.name}.ckpt") if selector.checkpoint is None else None
    options = {**selector.get_params(), "checkpoint": str(own or Path(selector.checkpoint or "").resolve())}
    if selector.random_state is None:
        options["random_state"] = 0
    SubsetSelector(**options).validate()
    check_model_folder(place, checkpoint=options["checkpoint"])
    job = {"options": options, "table": shared_paths(table), "arguments": arguments, "folder": str(place)}
    logs = place.with_name(f"{place.name}.ray")
    _run(job, workers, resources, retries, logs, shown=selector.verbose > 0)
    shutil.rmtree(logs, ignore_errors=True)
    if own is not None:
        for path in (own, previous_of(own)):
            path.unlink(missing_ok=True)
    return load(place, device=selector.device)


def _run(
    job: dict[str, Any], workers: int, resources: dict[str, float], retries: int, logs: Path, *, shown: bool
) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
    from ray.train.torch import TorchConfig, TorchTrainer

    has_gpu = resources.get("GPU", 0) > 0
    trainer = TorchTrainer(
        _work,
        train_loop_config=job,
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if has_gpu else "gloo"),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=has_gpu, resources_per_worker=resources),
        # Not Ray's own retries, which would repeat errors in the data or the options too.
        run_config=RunConfig(storage_path=str(logs), failure_config=FailureConfig(max_failures=0)),
    )
    for attempt in range(retries + 1):
        try:
            trainer.fit()
            return
        except WorkerGroupError as error:
            cause = _own_error(error.worker_failures.values())
            if cause is not None:
                raise cause from None
            if attempt == retries:
                raise LostRankError(
                    f"workers were lost or failed {retries + 1} times; the same call goes on from the checkpoint "
                    f"{job['options']['checkpoint']}. The last time:\n{error}"
                ) from None
        announce(f"a worker was lost; all start again, {retries - attempt} times at most", shown=shown)


def _own_error(failures: Any) -> SetgradError | None:
    """Return an error that would come again; None if workers were lost."""
    # Ray wraps the errors of the function.
    causes = [getattr(failure, "_base_exc", failure) for failure in failures]
    own = [cause for cause in causes if isinstance(cause, SetgradError) and not isinstance(cause, LostRankError)]
    return own[0] if own else None


def _work(job: dict[str, Any]) -> None:
    """What each worker does."""
    from ray.train import get_context

    selector = SubsetSelector(**job["options"]).fit(job["table"], distributed=True, **job["arguments"])
    if get_context().get_world_rank() == 0:
        selector.save(job["folder"])
