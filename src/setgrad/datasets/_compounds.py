"""Compound selection on Davis and KIBA: which of these drug-target pairs are active, and unlike each other?"""

from __future__ import annotations

from pathlib import Path

from setgrad.datasets._pair_sets import RULES, Recipe, pair_splits
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
    """Find the active and diverse compounds among 300 drug-target pairs, or only the active ones.

    Protocol "diverse": the most active third of the set is kept, each compound by its most active pair; affinity
    propagation on the Tanimoto similarity of Morgan fingerprints groups the compounds, and the centres are to be
    found. That is what the text of Özcan et al. says. "active": the 15 most active pairs, without the second step, as
    in the loader that Ou et al. publish. Pairs of equal activity that straddle a limit are left out, so the answer
    depends on the set alone; thus "active" chooses a little fewer than 15 where values are tied. Where affinity
    propagation does not settle, it is damped more, by 0.5, 0.7 and 0.9; if that does not help, the set is drawn anew.

    Items are tokens of `pair_tokens`, in one byte each, and `setgrad.encoders.PairItems` reads them. `item_ids` are
    places in the matrix of the data set, row by row. There are 1000, 100 and 100 sets unless told otherwise, all
    drawn from all pairs, as published: a pair of a test set occurs in training sets too.

    Args:
        dataset: One of `COMPOUND_DATASETS`.
        protocol: One of `COMPOUND_PROTOCOLS`. "diverse" needs RDKit and scikit-learn (the extra `chem`).
        random_state: Seed of the draws.
        data_dir: The folder that contains `deepdta`; the environment variable `SETGRAD_DATA` if None.
        cache: A folder that keeps what was built; the environment variable `SETGRAD_CACHE` if None. A task that is
            there needs neither the data files nor RDKit.
        n_train: Number of training sets; the usual number if None. The same for the other two.
        n_validation: See `n_train`.
        n_test: See `n_train`.

    Example:
        >>> compounds("davis", "cheap")
        Traceback (most recent call last):
        setgrad.errors.OptionError: unknown compound protocol 'cheap'; choose one of: diverse, active
    """
    if dataset not in COMPOUND_DATASETS:
        raise unknown_name("compound data set", dataset, COMPOUND_DATASETS)
    recipe = Recipe.of(f"compounds-{dataset}", protocol, random_state, (n_train, n_validation, n_test))
    train, validation, test = pair_splits(recipe, lambda: read_deepdta(dataset, data_dir), cache)
    description = f"Drug-target pairs, {_ACTIVITY[dataset]}: each set holds 300 pairs; {RULES[protocol]}."
    return Task(f"compounds:{dataset}:{protocol}", description, train, validation, test, _SOURCE)
