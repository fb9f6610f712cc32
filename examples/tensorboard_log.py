"""Follow a fit in TensorBoard: a callback writes the record of each epoch, and ends training when time is short.

Any tracker works the same way: `callback=` gets a dict with the numbers of the epoch. Look at the curves with
`tensorboard --logdir runs`.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import setgrad as sg

EPOCHS, ENOUGH = 12, 8


def open_log(folder: Path) -> Any:
    """Return a writer of TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        sys.exit("this example needs TensorBoard: pip install tensorboard")
    return SummaryWriter(str(folder))


def fit(folder: Path) -> sg.SubsetSelector:
    """Fit, and write loss, scores and seconds of each epoch to a folder."""
    task = sg.datasets.load_task("moons", n_train=60, n_validation=20, n_test=20)
    selector = sg.SubsetSelector(dim=16, hidden=(16,), max_epochs=EPOCHS, random_state=0, verbose=0, device="cpu")
    with open_log(folder) as log:

        def write(record: dict[str, float]) -> bool:
            for name, value in record.items():
                log.add_scalar(name, value, int(record["epoch"]))
            return record["epoch"] >= ENOUGH  # True ends training

        return selector.fit(*task.train, validation=task.validation, callback=write)


def read(folder: Path, name: str) -> list[float]:
    """Return the curve that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(folder))
    log.Reload()
    return [event.value for event in log.Scalars(name)]


def main() -> dict[str, float]:
    """Fit, and read back what was written."""
    with tempfile.TemporaryDirectory() as folder:
        selector = fit(Path(folder))
        curves = {name: read(Path(folder), name) for name in ("loss", "validation_jaccard", "seconds")}
    return {
        "epochs of the fit": len(selector.history_),
        "epochs in the log": len(curves["loss"]),
        "best epoch": selector.best_epoch_,
        "last loss in the log": curves["loss"][-1],
        "last loss of the fit": selector.history_[-1]["loss"],
        "best score in the log": max(curves["validation_jaccard"]),
        "best score of the fit": max(record["validation_jaccard"] for record in selector.history_),
    }


if __name__ == "__main__":
    for title, number in main().items():
        print(f"{title:30} {number:.6f}")
