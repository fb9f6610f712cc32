"""Tools of scikit-learn on rows with groups: cross-validation, grid search, predictions, importances, a pipeline.

The rows are products that sessions of a shop have shown, in any order; the two cheapest in the customer's currency are
bought. A row alone cannot tell, so `groups` says which rows belong together. Metadata routing, switched on by
`sklearn.set_config(enable_metadata_routing=True)`, passes it on: a selector asks for it by
`set_fit_request(groups=True)`. `cross_val_predict` gives predictions nothing but rows: there `set_id` names a column.
`permutation_importance` gives a score nothing but rows too, but leaves them in their order, so that a scoring function
can add the groups.
"""

import numpy as np
import pandas as pd
import sklearn
from sklearn.inspection import permutation_importance
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import setgrad as sg

SESSIONS, ITEMS = 90, 6


def rows(seed: int) -> pd.DataFrame:
    """Return one row for each product that a session has shown, shuffled."""
    rng = np.random.default_rng(seed)
    count = SESSIONS * ITEMS
    frame = pd.DataFrame(
        {
            "session": np.repeat(np.arange(SESSIONS), ITEMS),
            "price": rng.lognormal(2.0, 1.0, count).round(2),
            "brand": rng.choice(["Acme", "Bolt", "Core"], count),
        }
    )
    value = frame["price"] * np.where(frame["brand"] == "Bolt", 2.0, 1.0)
    frame["bought"] = value.groupby(frame["session"]).rank() <= 2
    return frame.sample(frac=1, random_state=seed)


def make_selector(**options: object) -> sg.SubsetSelector:
    """Return a small selector."""
    small = {"dim": 16, "hidden": (16,), "max_epochs": 12, "learning_rate": 1e-2, "device": "cpu", "verbose": 0}
    return sg.SubsetSelector(**{**small, "random_state": 0, **options})  # type: ignore[arg-type]


def main() -> None:
    """Run the recipes, and print their scores."""
    frame = rows(seed=0)
    groups, chosen = frame["session"], frame["bought"]
    items = frame[["price", "brand"]]
    folds = GroupKFold(3)

    selector = make_selector().set_fit_request(groups=True).set_score_request(groups=True)
    scores = cross_val_score(selector, items, chosen, params={"groups": groups}, cv=folds)
    print(f"cross-validation: {scores.mean():.3f}")

    search = GridSearchCV(selector, {"trees": [False, True]}, cv=folds).fit(items, chosen, groups=groups)
    for trees, score in zip((False, True), search.cv_results_["mean_test_score"], strict=True):
        print(f"grid search, {'with' if trees else 'without'} trees: {score:.3f}")

    # A prediction gets the rows only, so that they must tell their set: a column in place of groups.
    by_column = make_selector().set_fit_request(set_id=True, groups=False)
    passed = {"groups": groups, "set_id": "session"}
    offered = frame.drop(columns="bought")
    picks = cross_val_predict(by_column, offered, chosen, params=passed, cv=folds)
    print(f"share of cross-validated picks that was bought: {chosen[picks].mean():.3f}")
    probability = cross_val_predict(by_column, offered, chosen, params=passed, cv=folds, method="predict_proba")
    print(f"cross-validated area under the curve: {roc_auc_score(chosen, probability):.3f}")

    def score_by_groups(fitted: sg.SubsetSelector, rows: pd.DataFrame, bought: pd.Series) -> float:
        return fitted.score(rows, bought, groups=groups)

    fitted = make_selector().fit(items, chosen, groups=groups)
    importances = permutation_importance(fitted, items, chosen, scoring=score_by_groups, n_repeats=5, random_state=0)
    for name, importance in zip(items.columns, importances.importances_mean, strict=True):
        print(f"Jaccard that is lost without {name}: {importance:.3f}")

    last = make_selector().set_fit_request(groups=True).set_predict_request(groups=True)
    pipeline = make_pipeline(StandardScaler(), last)
    numbers = pd.get_dummies(items).to_numpy(dtype=float)
    found = pipeline.fit(numbers, chosen, groups=groups).predict(numbers, groups=groups)
    print(f"share of a pipeline's picks that was bought: {chosen[found].mean():.3f}")


if __name__ == "__main__":
    with sklearn.config_context(enable_metadata_routing=True):
        main()
