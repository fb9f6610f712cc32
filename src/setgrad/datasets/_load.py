"""`load_task`: all tasks by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from setgrad.datasets._amazon import AMAZON_CATEGORIES, AMAZON_PROTOCOLS, amazon
from setgrad.datasets._anomaly import ANOMALY_IMAGES, anomaly
from setgrad.datasets._bindingdb import bindingdb
from setgrad.datasets._bundles import BUNDLE_CATEGORIES, bundles
from setgrad.datasets._celeba import celeba
from setgrad.datasets._clusters import clusters
from setgrad.datasets._compounds import COMPOUND_DATASETS, compounds
from setgrad.datasets._digits import digits
from setgrad.datasets._load_table import TABLES
from setgrad.datasets._pair_sets import COMPOUND_PROTOCOLS
from setgrad.datasets._synthetic import gaussian, moons
from setgrad.datasets._task import Task
from setgrad.errors import OptionError, unknown_name


@final
@dataclass(frozen=True)
class TaskLoader:
    """A task, or a family of tasks, that `load_task` loads by name.

    Attributes:
        summary: One line about the subsets to find.
        make: The function that returns the task. It takes the parts of the variant by position, and the keywords
            `random_state`, `n_train`, `n_validation`, `n_test`; `data_dir` too if `reads_files`.
        variants: The members of a family: what follows the name and a colon. Empty for a single task.
        reads_files: Whether the task needs data files in the folder `SETGRAD_DATA`.
        packages: Optional packages that the task needs.
    """

    summary: str
    make: Callable[..., Task]
    variants: tuple[str, ...] = ()
    reads_files: bool = False
    packages: str = ""

    @property
    def needs(self) -> str:
        """Everything that the task needs besides setgrad itself."""
        files = "data files in the folder SETGRAD_DATA" if self.reads_files else ""
        return ", ".join(part for part in (files, self.packages) if part)


LOADERS: dict[str, TaskLoader] = {
    "gaussian": TaskLoader("the rarer of two Gaussian clouds, 10 of 100 points", gaussian),
    "moons": TaskLoader("the rarer of two half moons, 10 of 100 points", moons),
    "digits": TaskLoader("the odd ones out among handwritten digits, sets of 8 to 20", digits, packages="scikit-learn"),
    "clusters": TaskLoader("one of three clusters, picked at random; to be completed, sets of 9 to 15", clusters),
    "amazon": TaskLoader(
        "the products of a customer's baby registry among 30",
        amazon,
        tuple(f"{category}:{protocol}" for category in AMAZON_CATEGORIES for protocol in AMAZON_PROTOCOLS),
        reads_files=True,
    ),
    "anomaly": TaskLoader(
        "the odd ones among 8 faces or handwritten digits",
        anomaly,
        ANOMALY_IMAGES,
        reads_files=True,
        packages="SciPy for faces",
    ),
    "celeba": TaskLoader(
        "the faces that lack two attributes of the others, among 8", celeba, reads_files=True, packages="Pillow"
    ),
    "bundles": TaskLoader(
        "the products of a shopping session that a person bundled", bundles, BUNDLE_CATEGORIES, reads_files=True
    ),
    "compounds": TaskLoader(
        "the active and diverse compounds among 300 drug-target pairs",
        compounds,
        tuple(f"{dataset}:{protocol}" for dataset in COMPOUND_DATASETS for protocol in COMPOUND_PROTOCOLS),
        reads_files=True,
        packages="RDKit and scikit-learn for diverse",
    ),
    "bindingdb": TaskLoader(
        "the active and diverse compounds among 300 pairs of BindingDB",
        bindingdb,
        reads_files=True,
        packages="RDKit and scikit-learn",
    ),
}


def task_names() -> list[str]:
    """Return the name of every task that `load_task` loads, one for each variant of a family.

    Examples:
        >>> task_names()[:4]
        ['gaussian', 'moons', 'digits', 'clusters']
    """
    return [f"{name}:{v}" if v else name for name, loader in LOADERS.items() for v in loader.variants or ("",)]


def load_task(
    name: str,
    *,
    random_state: int = 0,
    data_dir: str | Path | None = None,
    category: str | None = None,
    protocol: str | None = None,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
) -> Task:
    """Load a task by name. The same name and `random_state` always give the same data.

    Args:
        name: One of `task_names()`: a task such as "moons", or a family and a variant such as "anomaly:mnist". The
            protocol may be left out: "amazon:toys" is "amazon:toys:farthest".
        random_state: Seed of all random draws. The global random state is neither read nor changed.
        data_dir: Folder of the data files, for tasks that read files; by default the environment variable
            `SETGRAD_DATA`.
        category: The category, if it is not part of the name.
        protocol: The protocol, if it is not part of the name.
        n_train: Number of training sets; by default that of the task.
        n_validation: Number of validation sets; by default that of the task.
        n_test: Number of test sets; by default that of the task.

    Returns:
        The task, with training, validation and test splits.

    Raises:
        OptionError: If there is no such task, or a number is not an integer of at least 0.
        DataError: If data files are missing.
        FileFormatError: If a data file is damaged.
        MissingDependencyError: If an optional package is needed and not installed.

    Examples:
        >>> task = load_task("moons", n_train=20, n_validation=5, n_test=5)
        >>> sets, subsets = task.train
        >>> sets
        Sets(20 sets, 2000 items, sizes 100 to 100, item shape (2,), torch.float32, cpu)
        >>> load_task("suns")
        Traceback (most recent call last):
        setgrad.errors.OptionError: unknown data set 'suns'; choose one of: gaussian, moons, digits, clusters...
    """
    family, *rest = name.split(":")
    if name in TABLES:
        raise OptionError(f"{name!r} is a table; load it with load_table({name!r})")
    if family not in LOADERS:
        raise unknown_name("data set", name, LOADERS)
    variant = (*rest, *(part for part in (category, protocol) if part is not None))
    loader = LOADERS[family]
    max_parts = max((v.count(":") + 1 for v in loader.variants), default=0)
    if len(variant) > max_parts:
        raise OptionError(f"{':'.join((family, *variant))!r} has too many parts; {_remedy(family, loader)}")
    if loader.variants and not rest and category is None:
        raise OptionError(f"{family!r} is a family of data sets; {_remedy(family, loader)}")
    folder = {"data_dir": data_dir} if loader.reads_files else {}
    return loader.make(
        *variant, random_state=random_state, n_train=n_train, n_validation=n_validation, n_test=n_test, **folder
    )


def _remedy(family: str, loader: TaskLoader) -> str:
    if not loader.variants:
        return f"{family!r} has no variants"
    return f"load one of them, such as {f'{family}:{loader.variants[-1]}'!r}"
