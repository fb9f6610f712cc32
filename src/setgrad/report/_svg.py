"""Matplotlib figures as self-contained SVG images that follow the light or dark colours of the page."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Text and axes are drawn in this colour, which nothing else uses, and then set to the colour of the page's text.
INK = "#010203"

_STYLE = "<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#d7dce2}}</style>"


@final
@dataclass(frozen=True)
class Picture:
    """An image as a `data:` URL, with alternative text."""

    url: str
    alt: str


def to_picture(figure: Figure, alt: str) -> Picture:
    """Render a figure as SVG; the same figure always gives the same bytes."""
    import matplotlib

    buffer = io.StringIO()
    # These two settings cannot be passed to savefig; the context restores them.
    with matplotlib.rc_context({"svg.hashsalt": "setgrad", "svg.fonttype": "none"}):
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    svg = buffer.getvalue()
    start = svg.index("<svg")
    svg = svg[start:].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head = svg.index(">") + 1
    svg = svg[:head] + _STYLE + svg[head:]
    return Picture("data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii"), alt)


def new_figure(width: float, height: float, *, fill: bool = True) -> Figure:
    """Return an empty figure of this size in inches, outside pyplot's list of figures.

    With `fill` the axes take all the space that their labels leave; without it, the caller places them.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained" if fill else None)
