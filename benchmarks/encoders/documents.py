"""Topics of news from sets of words: networks that read in chunks, with three gradients, against linear classifiers.

Claims checked: UMBC with a Transformer as its head is better than DeepSets, SSE and a Transformer that reads the start
of a story. With the gradient of one chunk ("sample") or of all chunks, one after the other ("exact"), it is as good as
with the whole graph ("full"), in less memory, and better than when it is trained on one chunk of each story ("subset";
Willette et al., 2023, arXiv:2208.12401, table 3 and figure 6).

Reuters-21578 replaces EURLEX: 10,377 stories of 145 words on average (EURLEX: 708), 119 topics, cut once by a fixed
seed with near-copies in the same part. As published, a story is a multiset of words without order; "umbc places" also
gets the position of a word. There are no pretrained weights, so words and head are learned. Chunks have 32 words, so a
story has 5 on average (published: 7); "umbc sample" and "umbc subset" are also trained with chunks of 8 and of 128
words (published figure 6: the first does not depend on it, the second is worse and varies more). "transformer N" reads
the first N words with their positions. The rivals "tf-idf" are linear classifiers of words and pairs of words
(scikit-learn). Epoch, C and one threshold for all topics are chosen on validation stories. Micro F1 over all topics,
macro F1 over the topics that training and test part have, micro F1 of stories of more than 256 words; in percent.
Memory is the peak of a step on a GPU beyond weights and moments.

All networks have the same training options, chosen by validation micro F1 in short runs (2 to 8 epochs, one or two
seeds) of the "full" ones. Words have the large rate 0.03 without decay and no layers, everything else has 0.0005. After
2 epochs, UMBC had 84 with 0.01 for words and 0.001 for the rest, 86 with 0.03 and 0.001 or 0.0005, but 60 with 0.01 and
0.003; with softmax and a residual as activation, 69 instead of 84. After 4, DeepSets had 73 with layers and a LayerNorm
on each word and one rate of 0.002; with one of 0.01, 84 with layers only after the mean and 88 with a linear end. With
the chosen rates, layers on each word cost it 4 (83, not 87, after 2 epochs). SSE had 80 after 2 with layers at its end,
88 with a linear one. For DeepSets, dropout made little difference. A transformer had two tries of 2 epochs: 84 with the
chosen rate, 78 with a smaller one and words that start ten times larger. Other gradients were not tuned.

Results: Micro F1 over all topics, macro F1 over the topics of training and test, micro F1 of stories of more than 256
words, in percent. With UMBC the exact gradient, chunk by chunk, is as good as the whole graph in a twentieth of the
memory; a sampled gradient is 1.4 points worse than both, and worse than a Transformer that reads 512 words, but better
than training on one chunk of each story ("subset"). A linear SVM of tf-idf features is as good as the best network.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.encoders.documents_fits import CONTENDERS, LINEAR, Trial, attempt
from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record
from benchmarks.lib.summary import mean_cell
from benchmarks.lib.tables import format_bytes, table
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad.errors import OptionError

ALL = (*CONTENDERS, *LINEAR)
# Words of a chunk, and the models that are trained with all of these sizes.
CHUNKS, SWEPT = (8, 32, 128), ("umbc sample", "umbc subset")
_COST = {"umbc exact": 3, "umbc sample": 3, "transformer 512": 2, "umbc places full": 2, "umbc full": 2}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--models", default=",".join(ALL), help=f"default: all: {', '.join(ALL)}")
    parser.add_argument("--chunks", type=int, nargs="+", default=CHUNKS, help=f"words, for {' and '.join(SWEPT)}")
    parser.add_argument("--epochs", type=int, default=Trial.epochs, help=f"of training (default: {Trial.epochs})")
    add_trial_options(parser, seeds=5)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    folders = {"reuters21578": "the news of Reuters-21578"}
    return run_and_show(options, plan(options), attempt, REPORT, folders=folders)


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options, the longest first. Linear classifiers have no seed."""
    if options.epochs < 1:
        raise OptionError(f"--epochs must be at least 1, not {options.epochs}")
    if min(options.chunks) < 1:
        raise OptionError(f"--chunks must be at least 1, not {min(options.chunks)}")
    trials = [
        replace(_trial(model, seed, options), chunk=chunk)
        for model in parse_names(options.models, ALL, "model")
        for seed in range(1 if options.quick or model in LINEAR else options.seeds)
        for chunk in (options.chunks if model in SWEPT and not options.quick else [Trial.chunk])
    ]
    return sorted(trials, key=lambda trial: -(9 if trial.model in LINEAR else _COST.get(trial.model, 1)))


def _trial(model: str, seed: int, options: argparse.Namespace) -> Trial:
    if model in LINEAR:
        return Trial(model, seed, epochs=0, stories=600 if options.quick else None)
    if options.quick:
        return Trial(model, seed, epochs=min(options.epochs, 2), dim=32, slots=8, stories=600)
    return Trial(model, seed, options.epochs)


def show(records: Sequence[Record]) -> str:
    """Return the table with one row for each model, and one of the sizes of chunks if there are several."""
    rows = []
    for model in ALL:
        runs = [record for record in records if (record["model"], record["chunk"]) == (model, Trial.chunk)]
        if runs:
            peaks = [record["peak_memory"] for record in runs if record["peak_memory"]]
            scores = [mean_cell([record[name] for record in runs], ".2f") for name in ("micro", "macro", "long")]
            rows.append([model, *scores, format_bytes(max(peaks)) if peaks else "-", str(len(runs))])
    shown = table(["", "micro F1", "macro F1", "micro F1, long", "memory of a step", "runs"], rows)
    swept = [record for record in records if record["model"] in SWEPT]
    sizes = sorted({record["chunk"] for record in swept})
    return shown if len(sizes) < 2 else f"{shown}\n\n## Words with a gradient\n\n{_sweep(swept, sizes)}"


def _sweep(records: Sequence[Record], sizes: Sequence[int]) -> str:
    """Return micro F1 by the words of a chunk."""
    rows = [
        [m, *(mean_cell([r["micro"] for r in records if (r["model"], r["chunk"]) == (m, n)], ".2f") for n in sizes)]
        for m in SWEPT
    ]
    return table(["micro F1", *(f"{size} words" for size in sizes)], rows)


REPORT = Report.of_module(__doc__, "Topics of Reuters-21578", show, "documents --data-dir DATA --device cuda --jobs 15")
