"""Compound selection on Davis and KIBA: which drug-target pairs are active and diverse?"""

from __future__ import annotations

from pathlib import Path

from setgrad.datasets._pair_sets import PROTOCOL_TEXTS, PairTask, make_splits
from setgrad.datasets._pairs import read_deepdta
from setgrad.datasets._task import Task
from setgrad.errors import unknown_name

COMPOUND_DATASETS = ("davis", "kiba")

_ACTIVITY = {"davis": "pKd of 68 kinase inhibitors", "kiba": "KIBA score of 2,111 drugs"}
_SOURCE = (
    "Davis: M. Davis et al., Nature Biotechnology 29, 2011; KIBA: J. Tang et al., J. Chem. Inf. Model. 54, 2014; both "
    "as prepared by H. Öztürk et al., DeepDTA, 2018, published without a licence: do not redistribute. Construction: "
    "G. Özcan et al., arXiv:2412.11239, appendix I, for BindingDB."
)


def compounds(
    dataset: str,
    protocol: str = "diverse",
    *,
    random_state: int = 0,
    data_dir: str | Path | None = None,
    cache: str | Path | None = None,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
) -> Task:
    """Return the task of finding the active and diverse compounds, or only the active ones, of 300 drug-target pairs.

    Protocol "diverse", as in the text of Özcan et al. (2024, arXiv:2412.11239): the most active third of the set is
    selected, and of each compound its most active pair. Affinity propagation on the Tanimoto similarity of Morgan
    fingerprints clusters the compounds; the cluster centres are to be found. Where affinity propagation does not
    converge with damping 0.5, it is repeated with 0.7 and 0.9; if that fails too, the set is drawn again.

    Protocol "active", as in the published loader of Ou et al. (2022): the 15 most active pairs are to be found. Pairs
    with equal activity on both sides of a limit are left out, so that the answer depends on the set alone; where values
    are tied, "active" therefore has slightly fewer than 15.

    Items are the tokens of `pair_tokens`, one byte each, which `setgrad.encoders.PairItems` reads. `item_ids` are
    positions in the matrix of the data set, row by row. As published, all splits are drawn from all pairs: a pair of a
    test set occurs in training sets too.

    Args:
        dataset: One of `COMPOUND_DATASETS`.
        protocol: One of `COMPOUND_PROTOCOLS`. "diverse" needs RDKit and scikit-learn (the extra `chem`).
        random_state: Seed of the draws.
        data_dir: The folder that contains `deepdta`; by default the environment variable `SETGRAD_DATA`.
        cache: A folder that stores built tasks; by default the environment variable `SETGRAD_CACHE`, if it is set. A
            stored task needs neither the data files nor RDKit.
        n_train: Number of training sets; 1000 by default.
        n_validation: Number of validation sets; 100 by default.
        n_test: Number of test sets; 100 by default.

    Raises:
        OptionError: If the data set or the protocol is unknown, or a number is not an integer of at least 0.
        DataError: If a file is missing or has too few pairs.
        FileFormatError: If a file or the stored task is damaged.
        MissingDependencyError: If RDKit or scikit-learn is needed and not installed.

    Examples:
        >>> compounds("davis", "cheap")
        Traceback (most recent call last):
        setgrad.errors.OptionError: unknown compound protocol 'cheap'; choose one of: diverse, active
    """
    if dataset not in COMPOUND_DATASETS:
        raise unknown_name("compound data set", dataset, COMPOUND_DATASETS)
    spec = PairTask.of(f"compounds-{dataset}", protocol, random_state, (n_train, n_validation, n_test))
    train, validation, test = make_splits(spec, lambda: read_deepdta(dataset, data_dir), cache)
    description = f"Drug-target pairs, {_ACTIVITY[dataset]}: each set holds 300 pairs; {PROTOCOL_TEXTS[protocol]}."
    return Task(f"compounds:{dataset}:{protocol}", description, train, validation, test, _SOURCE)
