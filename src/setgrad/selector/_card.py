"""The page of a saved model, `README.md`: what it was fitted on, how well it does, and what it is not for."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from setgrad.selector._records import validation_score
from setgrad.selector._tables import CONDITIONAL

_LONGEST_TEXT, _MOST_COLUMNS = 80, 200
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
# What `score_sets` does.
_GIVEN_TOO = ", and in half of the choices one right item"
_USE = """\
```python
import setgrad as sg

selector = sg.load({arguments})
picks = selector.predict({new})
```
"""


def model_card(config: dict[str, Any]) -> str:
    """Return the page in Markdown, from the content of `config.json`; texts of the user show as they are."""
    parts = [_introduction(config), _data(config), _scores(config), _options(config), _limits(config)]
    return "\n".join(parts)


def escape(text: str) -> str:
    r"""Return a text that Markdown shows as it is, in one line of at most 80 characters.

    Examples:
        >>> print(escape("<b>*price*</b>"))
        \<b\>\*price\*\<\/b\>
    """
    # Characters that are not seen could turn the direction of the page or end a line.
    seen = "".join(" " if unicodedata.category(letter).startswith(("C", "Z")) else letter for letter in text)
    line = " ".join(seen.split())
    short = line if len(line) <= _LONGEST_TEXT else line[: _LONGEST_TEXT - 1] + "…"
    return "".join("\\" + letter if letter in _PUNCTUATION else letter for letter in short)


def _introduction(config: dict[str, Any]) -> str:
    arguments = '"path/of/this/folder"'
    if config["options_in_use"]["phi"] is None:
        arguments += ", phi=module"
    new = "sets" if config["table"] is None else '"new.parquet"'
    texts = [
        "# A model that chooses subsets\n",
        "From each set of items it chooses a subset. It was written by setgrad; what you add to this page stays.\n",
        "## How to use it\n",
        _USE.format(arguments=arguments, new=new),
    ]
    if "phi=" in arguments:
        texts.append("Its `phi` was a module of the user: load it with the same module, whose weights are here.\n")
    if config["table"] is not None:
        texts.append("On the command line: `setgrad predict FOLDER new.parquet -o picks.parquet`.\n")
    return "\n".join(texts)


def _data(config: dict[str, Any]) -> str:
    origin, texts = config.get("origin"), ["## Data\n"]
    if origin is None:
        texts.append("It was fitted by an earlier version of setgrad, which did not tell its data.\n")
    else:
        splits = [origin["training"], origin["validation"]]
        shares = [f"{each['chosen']} ({_percent(each['chosen'], each['items'])})" for each in splits]
        sizes = [f"{each['smallest']} to {each['largest']}" for each in splits]
        rows: list[Sequence[object]] = [
            ("sets", *(each["sets"] for each in splits)),
            ("items", *(each["items"] for each in splits)),
            ("chosen items", *shares),
            ("items of a set", *sizes),
            ("most chosen of a set", *(each["largest_subset"] for each in splits)),
        ]
        texts += [_table(("", "training", "validation"), rows), f"SHA-256 of the data: `{origin['sha256']}`\n"]
    texts.append(_columns(config))
    return "\n".join(texts)


def _columns(config: dict[str, Any]) -> str:
    table = config["table"]
    if table is None:
        shape = " × ".join(map(str, config["item_shape"])) or "1"
        return f"An item has {shape} numbers; no table was read.\n"
    roles = [("set", table["set_id"]), ("item", table["item_id"]), ("whether it was chosen", table["chosen"])]
    named = [(role, escape(name)) for role, name in roles if name is not None]
    rows: list[Sequence[object]]
    if table.get("columns") is None:
        rows = [(escape(name), "number", "") for name in table["features"]]
    else:
        rows = [
            (escape(column["name"]), column["kind"], "the same in a set" if column["context"] else "")
            for column in table["columns"]
        ]
    texts = [_table(("role", "column"), named)] if named else []
    texts.append(_table(("feature", "kind", ""), rows[:_MOST_COLUMNS]))
    if len(rows) > _MOST_COLUMNS:
        texts.append(f"And {len(rows) - _MOST_COLUMNS} more, in `config.json`.\n")
    return "\n".join(texts)


def _scores(config: dict[str, Any]) -> str:
    rule, is_conditional = config["size_rule"]["name"], config["options_in_use"]["method"] == CONDITIONAL
    rows = [("while training", _score(validation_score(config)))]
    for name, score in config["size_scores"].items():
        rows.append((f"number of items by `{name}`{', which is used' if name == rule else ''}", _score(score)))
    return "\n".join(
        [
            "## Scores\n",
            "Mean Jaccard score on the validation sets, of 100. The first is that of the best epoch, with the true "
            f"size given{_GIVEN_TOO if is_conditional else ''}; in a fit with limits, within them.\n",
            _table(("", "score"), rows),
        ]
    )


def _options(config: dict[str, Any]) -> str:
    options = {name: value for name, value in config["options_in_use"].items() if value is not None}
    options.setdefault("phi", "a module of the user")
    rows = [(f"`{name}`", f"`{value}`") for name, value in options.items()]
    texts = ["## Options in use\n", _table(("option", "value"), rows)]
    origin = config.get("origin")
    if origin is not None:
        versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
        texts += ["## Versions\n", f"Fitted on {origin['date']} with {versions}.\n"]
    return "\n".join(texts)


def _limits(config: dict[str, Any]) -> str:
    lines = [
        "The validation sets chose the best epoch and the rule of sizes too, so the scores are a little too good. "
        "Score new sets: `setgrad evaluate`.",
        "It has learned what was chosen, not what would have been better, nor why.",
        "Logits of different sets are comparable only as far as the sets of the data were.",
    ]
    origin = config.get("origin")
    if origin is not None:
        training = origin["training"]
        lines.insert(
            1,
            f"Sets of {training['smallest']} to {training['largest']} items were trained on; what it chooses from "
            "others was not tried.",
        )
    if config["table"] is not None:
        lines.append("A category, an id or a word that training did not show counts as unknown.")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


def _score(value: float) -> str:
    return f"{100 * value:.2f}"
