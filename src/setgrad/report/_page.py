"""The page from its templates. Every text is escaped, so data cannot become markup."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

# Signs that no document may hold (half of a pair, most controls), and those that turn the direction of the text around.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def render(template: str, **values: Any) -> str:
    """Return a template of this package with its places filled.

    Args:
        template: Its file.
        values: What it shows; texts are escaped.
    """
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("setgrad.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _clean(value: Any) -> Any:
    # Markup is what other templates have made already.
    return _FORBIDDEN.sub("\ufffd", value) if type(value) is str else value
