"""What a shop's table is usually given to: boosted trees, and logistic regression.

A rival is called with the sessions to learn from, those to validate on, and a seed; it returns the scores of another
table. The validation sessions end the training and choose between a few settings, by the log-loss or by the order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from benchmarks.tables.features import CATEGORICAL, as_categories, in_context, one_hot, raw, with_set_means
from benchmarks.tables.shop import BOUGHT, PRODUCT, SESSION, Frame, session_sizes
from setgrad.errors import MissingDependencyError

Score = Callable[[Frame], np.ndarray]
Rival = Callable[[Frame, Frame, int], Score]
_ROUNDS, _PATIENCE = 2000, 50
_TREES: Mapping[str, Any] = {
    "learning_rate": 0.05,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
    "num_threads": 1,
}
# Settings to choose from by the validation sessions.
_LEAVES, _SHARES, _DEPTHS, _STRENGTHS = (7, 31), (0.3, 0.8), (4, 6), (0.01, 0.1, 1.0)


@final
@dataclass(frozen=True)
class LightGBM:
    """Boosted trees on columns of a table, as classifier of items or as ranker of the items of a session."""

    columns: Callable[[Frame], Frame]
    ranker: bool = False

    def __call__(self, train: Frame, validation: Frame, seed: int) -> Score:
        """Return the scores of the best of the settings, each stopped at its best round."""
        lightgbm = _library("lightgbm")

        def prepare(frame: Frame, reference: Any = None) -> Any:
            group = session_sizes(frame) if self.ranker else None
            columns = as_categories(self.columns(frame))
            return lightgbm.Dataset(columns, frame[BOUGHT].astype(int), group=group, reference=reference)

        models = []
        for leaves in _LEAVES:
            for share in _SHARES:
                known = prepare(train)
                model = lightgbm.train(
                    {**_TREES, **self._objective(train), "num_leaves": leaves, "feature_fraction": share, "seed": seed},
                    known,
                    _ROUNDS,
                    valid_sets=[prepare(validation, known)],
                    callbacks=[lightgbm.early_stopping(_PATIENCE, verbose=False)],
                )
                (score,) = model.best_score["valid_0"].values()
                models.append((score if self.ranker else -score, model))
        best = max(models, key=lambda entry: entry[0])[1]
        return lambda frame: best.predict(as_categories(self.columns(frame)), raw_score=True)

    def _objective(self, train: Frame) -> dict[str, Any]:
        if not self.ranker:
            return {"objective": "binary"}
        most = int(train.groupby(SESSION)[BOUGHT].sum().max())
        # LightGBM advises to rank a few places more than those that count.
        return {
            "objective": "lambdarank",
            "metric": "ndcg",
            "eval_at": [most],
            "lambdarank_truncation_level": most + 3,
        }


@final
@dataclass(frozen=True)
class CatBoost:
    """Boosted trees that read categories and texts as they are."""

    columns: Callable[[Frame], Frame]

    def __call__(self, train: Frame, validation: Frame, seed: int) -> Score:
        """Return the scores of the better depth, stopped at its best round."""
        catboost = _library("catboost")

        def pool(frame: Frame) -> Any:
            columns = self.columns(frame)
            categories = [name for name in CATEGORICAL if name in columns]
            labels = frame[BOUGHT].astype(int)
            return catboost.Pool(columns, labels, cat_features=categories, text_features=["title"])

        models = []
        for depth in _DEPTHS:
            model = catboost.CatBoostClassifier(
                iterations=_ROUNDS,
                learning_rate=0.1,
                depth=depth,
                early_stopping_rounds=_PATIENCE,
                random_seed=seed,
                thread_count=1,
                verbose=False,
                allow_writing_files=False,
            )
            models.append(model.fit(pool(train), eval_set=pool(validation)))
        best = min(models, key=lambda model: model.best_score_["validation"]["Logloss"])
        return lambda frame: best.predict(self.columns(frame), prediction_type="RawFormulaVal")


def logistic(train: Frame, validation: Frame, seed: int) -> Score:
    """Score by logistic regression on one-hot columns, their means over the session, and the products of both."""
    _library("sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def columns(frame: Frame) -> np.ndarray:
        return with_set_means(one_hot(frame), frame[SESSION].to_numpy(str))

    known, held_out = columns(train), columns(validation)
    models = [
        make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000)).fit(known, train[BOUGHT])
        for strength in _STRENGTHS
    ]
    best = min(models, key=lambda model: log_loss(validation[BOUGHT], model.predict_proba(held_out)[:, 1]))
    return lambda frame: best.decision_function(columns(frame))


def popularity(train: Frame, validation: Frame, seed: int) -> Score:
    """Score by how often the product was bought; ties are broken at random."""
    counts = train[train[BOUGHT]][PRODUCT].value_counts()
    tie_break = chance(train, validation, seed)
    # The logarithm, because the size rules read scores as logits.
    return lambda frame: np.log1p(frame[PRODUCT].map(counts).fillna(0).to_numpy()) + 1e-6 * tie_break(frame)


def chance(train: Frame, validation: Frame, seed: int) -> Score:
    """Score at random."""
    rng = np.random.default_rng(seed)
    return lambda frame: rng.random(len(frame))


def _library(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise MissingDependencyError(f"this rival needs {name}: pip install 'setgrad[bench]'") from None


RIVALS: dict[str, Rival] = {
    "lightgbm": LightGBM(raw),
    "lightgbm-context": LightGBM(in_context),
    "lightgbm-ranker": LightGBM(in_context, ranker=True),
    "catboost": CatBoost(raw),
    "catboost-context": CatBoost(in_context),
    "logistic": logistic,
    "popularity": popularity,
    "chance": chance,
}
