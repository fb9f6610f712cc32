"""From a Matplotlib figure to a picture that carries all it needs and follows the reader's light or dark page."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Text and axes are drawn in this colour, which nothing else uses, and then given the colour of the page's text.
INK = "#010203"

_STYLE = "<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#d7dce2}}</style>"


@final
@dataclass(frozen=True)
class Picture:
    """A picture as a `data:` address, and what it shows in words."""

    address: str
    alt: str


def to_picture(figure: Figure, alt: str, *, tight: bool = False) -> Picture:
    """Render a figure; the same figure always gives the same bytes."""
    import matplotlib

    buffer = io.StringIO()
    # The context gives back the settings it found: these two cannot be passed to savefig.
    with matplotlib.rc_context({"svg.hashsalt": "setgrad", "svg.fonttype": "none"}):
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            bbox_inches="tight" if tight else None,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    svg = buffer.getvalue()
    start = svg.index("<svg")
    svg = svg[start:].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head = svg.index(">") + 1
    svg = svg[:head] + _STYLE + svg[head:]
    return Picture("data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii"), alt)


def new_figure(width: float, height: float, *, spread: bool = True) -> Figure:
    """Make an empty figure of so many inches, without touching Matplotlib's own list of figures.

    `spread` gives the axes all the room that their labels leave; without it, whoever adds axes places them.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained" if spread else None)
