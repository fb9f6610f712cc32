"""Random damage: to the bytes of a file, and to values of JSON."""

from __future__ import annotations

import random
from typing import Any

# Values that no file of ours has in such a place.
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2.5, 10**5, 10**9, 10**30, -(10**30), float("nan"), float("inf"), 1e308, "", "x", "0",
    "../../etc/passwd", "\ud800", "\x00", "a" * 10_000, [], [[]], [1], [0], [-1], ["x"], [10**9], {}, {"name": "x"},
)  # fmt: skip


def mutate_bytes(content: bytes, draw: random.Random) -> bytes:
    """Return bytes with one random change: a bit, a byte, a block, or the length."""
    if not content:
        return b"\x00"
    data, place = bytearray(content), draw.randrange(len(content))
    length = min(draw.choice((1, 4, 64, 1024)), len(data) - place)
    kind = draw.randrange(9)
    if kind < 3:
        data[place] ^= 1 << draw.randrange(8)
    elif kind == 3:
        data[place] = draw.choice((0, 1, 127, 128, 255))
    elif kind == 4:
        data[place : place + length] = draw.randbytes(length)
    elif kind == 5:
        del data[place : place + length]
    elif kind == 6:
        data[place:place] = data[place : place + length]
    elif kind == 7:
        del data[place:]
    else:
        data += draw.randbytes(length)
    return bytes(data)


def mutate_value(value: Any, draw: random.Random) -> Any:
    """Return JSON with one value replaced, removed, doubled or put under another name."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name, other = draw.choice(list(value)), draw.choice(list(value))
        changed = dict(value)
        kind = draw.random()
        if kind < 0.1:
            del changed[name]
        elif kind < 0.2:
            changed[f"{name}x"] = changed.pop(name)
        elif kind < 0.3:
            changed[name] = changed[other]
        else:
            changed[name] = mutate_value(value[name], draw)
        return changed
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        kind = draw.random()
        if kind < 0.2:
            return value[:place] + value[place + 1 :]
        if kind < 0.4:
            return value[:place] + [value[place]] * draw.choice((2, 100)) + value[place + 1 :]
        return [*value[:place], mutate_value(value[place], draw), *value[place + 1 :]]
    return draw.choice(_VALUES)
