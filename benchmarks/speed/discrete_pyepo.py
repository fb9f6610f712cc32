"""PyEPO's layers for the problems of `discrete-speed`: with its own models, and with a model around a plain solver."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.speed.discrete_tasks import LAMBDA, Plain, Task

# PyEPO's modules of models by the package that solves them, the fastest first.
BACKENDS = {"gurobipy": "pyepo.model.grb", "ortools": "pyepo.model.ort"}


def is_installed() -> bool:
    """Return whether PyEPO is installed."""
    return importlib.util.find_spec("pyepo") is not None


def version() -> str:
    """Return the version of PyEPO."""
    return str(importlib.import_module("importlib.metadata").version("pyepo"))


def ready_models(task: Task, threads: int) -> dict[str, Any]:
    """Return PyEPO's own model of the problem, for each installed backend that has one."""
    models: dict[str, Any] = {}
    if task.model is None:
        return models
    name, arguments = task.model
    for package, module in BACKENDS.items():
        if importlib.util.find_spec(package) is None or not hasattr(importlib.import_module(module), name):
            continue
        model = getattr(importlib.import_module(module), name)(*arguments)
        if package == "gurobipy":
            model._model.Params.Threads = threads
        models[package] = model
    return models


def own_model(task: Task, solve: Plain) -> Any:
    """Return a model around a function of one instance, as PyEPO's documentation describes it."""
    base, sense = importlib.import_module("pyepo.model.opt").optModel, task.solver(1).sense
    epo = importlib.import_module("pyepo").EPO

    class Own(base):  # type: ignore[misc, valid-type]
        """The function behind PyEPO's interface."""

        modelSense = epo.MINIMIZE if sense == "min" else epo.MAXIMIZE

        def _getModel(self) -> tuple[None, list[int]]:
            return None, list(range(task.d))

        def setObj(self, c: Any) -> None:
            """Set the costs."""
            self.costs = np.asarray(c)

        def solve(self) -> tuple[Any, float]:
            """Return the solution and its objective."""
            z = solve(self.costs)
            return z, float(self.costs @ z)

    return Own()


def layer(model: Any, estimator: str) -> Callable[[Tensor], Tensor]:
    """Return PyEPO's Identity or Blackbox, in one process."""
    func = importlib.import_module("pyepo.func")
    result: Callable[[Tensor], Tensor]
    result = func.negativeIdentity(model) if estimator == "identity" else func.blackboxOpt(model, lambd=LAMBDA)
    return result
