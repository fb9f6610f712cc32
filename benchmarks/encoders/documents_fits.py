"""One trial of document classification: networks that read sets of words with several gradients, and linear rivals."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.encoders.reuters import News, read_news, vocabulary
from benchmarks.lib.machine import memory_now, memory_peak, reset_peak
from benchmarks.lib.records import Record, RunContext
from setgrad import encoders
from setgrad.selector import resolve_device
from setgrad.sets import Layout, Sets

# Encoder, gradient, whether it gets the position of a word, and the most words that it reads (None: all).
CONTENDERS: dict[str, tuple[str, str, bool, int | None]] = {
    "deepsets full": ("deepsets", "full", False, None),
    "deepsets sample": ("deepsets", "sample", False, None),
    "sse full": ("sse", "full", False, None),
    "sse sample": ("sse", "sample", False, None),
    "umbc full": ("umbc", "full", False, None),
    "umbc exact": ("umbc", "exact", False, None),
    "umbc sample": ("umbc", "sample", False, None),
    "umbc subset": ("umbc", "subset", False, None),
    "umbc places full": ("umbc", "full", True, None),
    "transformer 128": ("transformer", "full", True, 128),
    "transformer 512": ("transformer", "full", True, 512),
}
LINEAR = ("tf-idf logistic", "tf-idf svm")
# A story with more words is long.
LONG = 256
_SMALL = 0.1


@final
@dataclass(frozen=True)
class Trial:
    """One training run and its test."""

    model: str
    seed: int
    epochs: int = 10
    batch: int = 64
    dim: int = 128
    slots: int = 32
    # Learning rates of the words, of which a step changes only a few, and of all other weights.
    word_rate: float = 3e-2
    rate: float = 5e-4
    decay: float = 0.01
    dropout: float = 0.3
    # Words of a story in a chunk.
    chunk: int = 32
    stories: int | None = None

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.model}, seed {self.seed}"


def attempt(trial: Trial, context: RunContext) -> Record:
    """Train, choose epoch and threshold on the validation part, and return the test scores."""
    news = read_news(context.data_dir, trial.stories)
    peak = None
    if trial.model in LINEAR:
        validation, test, epoch = fit_linear(trial.model, news)
    else:
        validation, test, epoch, peak = fit_network(trial, news, resolve_device(context.device))
    train, held, tested = news.parts
    threshold = best_threshold(validation, news.labels[held])
    chosen, truth = test > threshold, news.labels[tested]
    known = news.labels[train].any(0) & truth.any(0)
    long = np.array([len(news.words[i]) > LONG for i in tested])
    scores = {
        "micro": 100 * micro_f1(chosen, truth),
        "macro": 100 * macro_f1(chosen[:, known], truth[:, known]),
        "long": 100 * micro_f1(chosen[long], truth[long]),
        "validation": 100 * micro_f1(validation > threshold, news.labels[held]),
    }
    summary = f"micro {scores['micro']:.2f}, macro {scores['macro']:.2f}"
    return {**scores, "threshold": float(threshold), "best_epoch": epoch, "peak_memory": peak, "summary": summary}


def micro_f1(chosen: np.ndarray, truth: np.ndarray) -> float:
    """Return the F1 of all pairs of story and topic together.

    Examples:
        >>> micro_f1(np.array([[True, True]]), np.array([[True, False]]))
        0.6666666666666666
    """
    return float(2 * (chosen & truth).sum() / max(1, chosen.sum() + truth.sum()))


def macro_f1(chosen: np.ndarray, truth: np.ndarray) -> float:
    """Return the mean F1 of the topics."""
    return float((2 * (chosen & truth).sum(0) / np.maximum(1, chosen.sum(0) + truth.sum(0))).mean())


def best_threshold(scores: np.ndarray, truth: np.ndarray) -> float:
    """Return the one threshold of all topics with the best micro F1."""
    order = np.argsort(-scores, axis=None)
    hits = np.cumsum(truth.reshape(-1)[order])
    f1 = 2 * hits / (np.arange(1, len(order) + 1) + truth.sum())
    best = int(f1.argmax())
    sorted_scores = scores.reshape(-1)[order]
    return float((sorted_scores[best] + sorted_scores[min(best + 1, len(order) - 1)]) / 2)


# ---- networks


@final
class Words(nn.Module):
    """Maps items (index of the word, position in the story) to features.

    The features of a word are one row of a table. With a normalisation and layers after it, training is far slower.
    """

    def __init__(self, words: int, dim: int, *, places: bool, dropout: float) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(words, dim), places
        # Small, because steps of Adam have a fixed size, and means of words are normalised.
        nn.init.normal_(self.embed.weight, std=_SMALL)
        rates = torch.exp(-math.log(2000) * torch.arange(dim // 2) / (dim // 2))
        self.rates: Tensor
        self.register_buffer("rates", rates)
        self.drop = nn.Dropout(dropout)

    def forward(self, items: Tensor) -> Tensor:
        """Return features `(total, dim)` of items `(total, 2)`."""
        x = self.embed(items[:, 0].long())
        if self.places:
            turns = items[:, 1:] * self.rates
            x = x + _SMALL * torch.cat([turns.sin(), turns.cos()], 1)
        return self.drop(x)


def make_network(name: str, words: int, frequency: Tensor, trial: Trial, *, places: bool) -> encoders.SetEncoder:
    """Return an encoder of stories whose code is one logit for each topic."""
    dim = trial.dim
    phi = Words(words, dim, places=places, dropout=trial.dropout)
    last = nn.Linear(dim * trial.slots if name == "sse" else dim, len(frequency))
    # The network starts with the frequencies of the topics, which are rare.
    last.bias.data = torch.logit(frequency.clamp(1e-4, 1 - 1e-4))
    end = nn.Sequential(nn.Dropout(trial.dropout), last)
    if name == "deepsets":
        # Means of many words differ little; normalised, they differ from the first step on.
        return encoders.DeepSets(2, phi, pooling="mean", head=nn.Sequential(nn.LayerNorm(dim), end))
    if name == "sse":
        head = nn.Sequential(nn.LayerNorm(dim), nn.Flatten(1), end)
        return encoders.SSE(2, dim, trial.slots, heads=4, phi=phi, head=head)
    if name == "umbc":
        head = nn.Sequential(encoders.TransformerHead(dim, decode=0), nn.Flatten(1), end)
        # As published for text: no residual, so only words are normalised.
        return encoders.UMBC(2, dim, trial.slots, activation=encoders.SlotSigmoid(), residual=False, phi=phi, head=head)
    return encoders.SetTransformer(2, dim, decode=0, phi=phi, head=nn.Sequential(nn.Flatten(1), end))


def as_sets(news: News, part: np.ndarray, known: dict[str, int], most: int | None) -> Sets:
    """Return the stories of a part as sets of (index of the word, position)."""
    items = []
    for story in part:
        numbers = [known.get(word, 0) for word in news.words[story][:most]]
        items.append(np.stack([np.array(numbers, np.float32), np.arange(len(numbers), dtype=np.float32)], 1))
    return Sets.from_list(items)


def batches(lengths: np.ndarray, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield stories in random batches of similar lengths: sorted by length within pools of 16 batches."""
    order = rng.permutation(len(lengths))
    pools = [order[i : i + 16 * size] for i in range(0, len(order), 16 * size)]
    groups = []
    for pool in pools:
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        groups += [pool[i : i + size] for i in range(0, len(pool), size)]
    for number in rng.permutation(len(groups)):
        yield groups[number]


def random_chunks(sets: Sets, chunk: int, rng: np.random.Generator) -> list[Sets]:
    """Return each set cut at random into equally many chunks of similar sizes, `chunk` for the longest set.

    Chunks of consecutive words would mostly be empty for a short story, and a sample of them useless.
    """
    lengths, offsets = sets.layout.host_lengths, sets.layout.host_offsets
    owner = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((rng.random(len(owner)), owner))
    count = max(1, math.ceil(sets.layout.longest / chunk))
    chunks = []
    for number in range(count):
        start, stop = (lengths * k // count for k in (number, number + 1))
        layout = Layout.from_lengths(stop - start, sets.device)
        rows = np.repeat(offsets[:-1] + start - layout.host_offsets[:-1], stop - start) + np.arange(layout.total)
        chunks.append(Sets(sets.values[layout.to_device(order[rows])], layout))
    return chunks


def logits(encoder: encoders.SetEncoder, sets: Sets, gradient: str, chunk: int, rng: np.random.Generator) -> Tensor:
    """Return the logits of a training step."""
    if gradient == "full":
        return encoder(sets)
    parts = random_chunks(sets, chunk, rng)
    if gradient == "subset":
        return encoder(parts[0])
    assert isinstance(encoder, encoders.MergeableEncoder)
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    return encoder.stream(parts, gradient=gradient, generator=generator)


def fit_network(trial: Trial, news: News, device: torch.device) -> tuple[np.ndarray, np.ndarray, int, int | None]:
    """Return the scores of validation and test part by the best epoch, its number, and the peak of a step in bytes."""
    name, gradient, places, most = CONTENDERS[trial.model]
    rng = np.random.default_rng(trial.seed)
    known = vocabulary(news.words[story] for story in news.parts[0])
    train, validation, test = (as_sets(news, part, known, most).to(device) for part in news.parts)
    labels = torch.from_numpy(news.labels[news.parts[0]]).float()
    encoder = make_network(name, len(known) + 1, labels.mean(0), trial, places=places).to(device)
    labels = labels.to(device)
    words, others = (
        [p for key, p in encoder.named_parameters() if key.endswith("embed.weight") == kind] for kind in (True, False)
    )
    groups = [
        {"params": words, "lr": trial.word_rate, "weight_decay": 0.0},
        {"params": others, "lr": trial.rate, "weight_decay": trial.decay},
    ]
    optimizer = torch.optim.AdamW(groups)
    steps = trial.epochs * sum(1 for _ in batches(train.layout.host_lengths, trial.batch, rng))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    score = partial(predict, encoder, batch=8 * trial.batch)
    best, best_weights, number = -1.0, copy.deepcopy(encoder.state_dict()), 0
    base: int | None = None
    peak: int | None = None
    for epoch in range(1, trial.epochs + 1):
        encoder.train()
        for batch in batches(train.layout.host_lengths, trial.batch, rng):
            out = logits(encoder, train.take(batch.tolist()), gradient, trial.chunk, rng)
            loss = nn.functional.binary_cross_entropy_with_logits(out, labels[torch.from_numpy(batch).to(device)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if base is None and device.type == "cuda":
                # Weights, gradients and moments are allocated by now; the peak counts the rest of a step.
                reset_peak(device)
                base = memory_now(device)
        if peak is None and base is not None:
            # The first epoch has batches of all lengths; later on the peak would be that of validation.
            peak = memory_peak(device) - base
        scores = score(validation)
        truth = news.labels[news.parts[1]]
        reached = micro_f1(scores > best_threshold(scores, truth), truth)
        if reached > best:
            best, best_weights, number = reached, copy.deepcopy(encoder.state_dict()), epoch
    encoder.load_state_dict(best_weights)
    return score(validation), score(test), number, peak


@torch.no_grad()
def predict(encoder: encoders.SetEncoder, sets: Sets, *, batch: int) -> np.ndarray:
    """Return the logits of whole stories."""
    encoder.eval()
    order = np.argsort(sets.layout.host_lengths, kind="stable")
    out = [encoder(sets.take(order[i : i + batch].tolist())).cpu() for i in range(0, len(order), batch)]
    scores = np.empty((len(order), out[0].shape[1]), np.float32)
    scores[order] = torch.cat(out).numpy()
    return scores


# ---- linear classifiers


def fit_linear(name: str, news: News) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the scores of linear classifiers, one for each topic, of tf-idf features; C is chosen by validation."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    texts = [[" ".join(news.words[story]) for story in part] for part in news.parts]
    vectors = TfidfVectorizer(token_pattern=r"\S+", ngram_range=(1, 2), min_df=3, sublinear_tf=True)
    train, validation, test = vectors.fit_transform(texts[0]), *(vectors.transform(text) for text in texts[1:])
    labels, truth = news.labels[news.parts[0]], news.labels[news.parts[1]]
    best = (-1.0, np.zeros(0), np.zeros(0))
    for strength in (1.0, 10.0, 100.0) if name == "tf-idf logistic" else (0.3, 1.0, 3.0):
        scores = [np.full((x.shape[0], labels.shape[1]), -1e9) for x in (validation, test)]
        # A topic without an example is never chosen.
        for topic in np.flatnonzero(labels.any(0) & ~labels.all(0)):
            kind = LogisticRegression(C=strength, solver="liblinear") if "logistic" in name else LinearSVC(C=strength)
            kind.fit(train, labels[:, topic])
            for column, x in zip(scores, (validation, test), strict=True):
                column[:, topic] = kind.decision_function(x)
        reached = micro_f1(scores[0] > best_threshold(scores[0], truth), truth)
        if reached > best[0]:
            best = (reached, scores[0], scores[1])
    return best[1], best[2], 0
