import re
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

# Files that may import private modules of setgrad, and why.
ALLOWED = {
    "attack/fuzz_inputs.py": "forges files with right checksums, which only private functions write",
    "attack/interruptions.py": "interrupts the functions that write files, also where no public one does",
    "attack/targets.py": "attacks files that only private functions write or read",
    "tables/table_reading.py": "times the reading of a table without a fit",
    "selection/copula.py": "trains with networks that no option names",
    "selection/models.py": "the ablation changes values of the default that only the selector knows",
    "selection/inference.py": "tests a fitted model with another inference than it was trained with",
    "speed/processes.py": "times the reading of ids alone, which every process does",
    "speed/gpu_fit.py": "fits without the replayed steps that the trainer chooses by itself",
    "speed/members_speed.py": "compares ways to train that the trainer chooses by itself",
}


def test_benchmarks_import_public_names() -> None:
    private = re.compile(r"^\s*(from|import) setgrad[\w.]*\._", re.MULTILINE)
    files = {str(path.relative_to(BENCHMARKS)): path.read_text(encoding="utf-8") for path in BENCHMARKS.rglob("*.py")}
    assert {name for name, text in files.items() if private.search(text)} == ALLOWED.keys()
