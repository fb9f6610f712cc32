"""Log a model to MLflow, and choose with it as any model of MLflow: the pyfunc flavour, without pickle.

MLflow keeps this file as the code of the model, and the folder of the selector beside it. `mlflow models serve` and
Spark can load it then; whoever loads it needs setgrad. Needs `pip install mlflow` (or mlflow-skinny), and no server.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import setgrad as sg

try:
    import mlflow
    from mlflow.pyfunc import PythonModel
except ImportError:
    mlflow, PythonModel = None, object


class Chooser(PythonModel):
    """Rows of a table in, the picks out; `params={"size": 3}` sets the number of items, 0 leaves it to the model."""

    def load_context(self, context: Any) -> None:
        """Load the selector from the folder that MLflow keeps."""
        self.selector = sg.load(context.artifacts["selector"]).set_params(verbose=0)

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return set id, item id, chosen, probability and rank of each row."""
        return self.selector.predict(model_input, size=(params or {}).get("size") or None)


def make_shop(visits: int, seed: int) -> pd.DataFrame:
    """Return visits of eight products; the cheap ones are bought, of any brand but one."""
    rng, rows = np.random.default_rng(seed), visits * 8
    visit = np.repeat([f"v{n}" for n in range(visits)], 8)
    shop = pd.DataFrame({"visit": visit, "product": [f"p{n}" for n in range(rows)]})
    shop = shop.assign(price=rng.uniform(5, 90, rows), brand=rng.choice(["Acme", "Nord", "Orla"], rows))
    return shop.assign(bought=shop["price"].lt(40) & shop["brand"].ne("Acme"))


def main() -> dict[str, float]:
    """Fit with a run that records every epoch, log the model, load it as MLflow does, and compare its picks."""
    if mlflow is None:
        sys.exit("this example needs MLflow: pip install mlflow-skinny")
    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri(f"sqlite:///{folder}/runs.db")
        mlflow.create_experiment("shop", artifact_location=Path(folder, "artifacts").as_uri())
        mlflow.set_experiment("shop")
        selector = sg.SubsetSelector(dim=16, hidden=(32,), max_epochs=20, random_state=0, verbose=0, device="cpu")
        with mlflow.start_run() as run:

            def record(epoch: dict[str, Any]) -> None:
                mlflow.log_metric("validation_jaccard", epoch["validation_jaccard"], step=epoch["epoch"])

            selector.fit(make_shop(150, 1), set_id="visit", item_id="product", chosen="bought", callback=record)
            selector.save(Path(folder, "model"))
            new = make_shop(40, 2).drop(columns="bought")
            mlflow.pyfunc.save_model(
                Path(folder, "logged"),
                python_model=__file__,
                artifacts={"selector": str(Path(folder, "model"))},
                pip_requirements=[f"setgrad=={sg.__version__}"],
                signature=mlflow.models.infer_signature(new, selector.predict(new), params={"size": 0}),
            )
        history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "validation_jaccard")
        loaded = mlflow.pyfunc.load_model(Path(folder, "logged").as_uri())
        picks, three = loaded.predict(new), loaded.predict(new, params={"size": 3})
        return {
            "score": selector.score(make_shop(40, 2)),
            "epochs recorded": len(history),
            "epochs of the fit": len(selector.history_),
            "picks that are those of predict": float((picks["chosen"] == selector.predict(new)["chosen"]).mean()),
            "items of a set with size 3": float(three.groupby("visit")["chosen"].sum().mean()),
            "pickled files": len([*Path(folder, "logged").rglob("*.pkl")]),
        }


if mlflow is not None:
    mlflow.models.set_model(Chooser())

if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:<40} {number:.4g}")
