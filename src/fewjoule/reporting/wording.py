"""Numbers and sentences as people read them. `page.js` formats joules in the same way; a test compares the two."""

import re
from collections.abc import Iterable, Sequence
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from fewjoule.energy.show import digits, si_text


def joules_text(value: float) -> str:
    return si_text(value, "J")


def seconds_text(value: float) -> str:
    """Seconds with a prefix below a minute, then minutes or hours."""
    if value < 60:
        return si_text(value, "s")
    return f"{digits(value / 60)} min" if value < 3600 else f"{digits(value / 3600)} h"


def percent_text(share: float) -> str:
    """A share of one as per cent; very small and nearly whole shares are not rounded to 0 or 100."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    if 0.999 < share < 1:
        return "> 99.9 %"
    return f"{100 * share:.1f} %" if share not in (0, 1) else f"{100 * share:.0f} %"


def times_text(ratio: float) -> str:
    """Two significant digits: `0.53`, `8.5`, `14,000`."""
    return f"{ratio:.2g}" if ratio < 10 else f"{float(f'{ratio:.2g}'):,.0f}"


def kinds_text(kinds: Sequence[str]) -> str:
    """`analytic`, or `modelled + analytic` where amounts of different kinds were added up."""
    return " + ".join(kinds) if kinds else "nothing spent"


def listing(items: Iterable[object]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    names = [str(item) for item in items]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def few_names(items: Sequence[str], most: int = 8) -> str:
    """All of them where they are few, else the first ones and how many more there are."""
    return listing(items) if len(items) <= most else f"{', '.join(items[:most])} and {len(items) - most} more"


def counted(number: int, one: str) -> str:
    """`1 seed`, `5 seeds`."""
    return f"{number} {one if number == 1 else one + 's'}"


def drawable(text: str) -> str:
    """The same text with a replacement for characters that no SVG may hold; on them vl-convert ends the process."""
    return re.sub("[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "\N{REPLACEMENT CHARACTER}", text)


def no_break(text: str) -> str:
    """The same text, kept on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def asset(name: str) -> str:
    """The text of a file in report/assets."""
    return (files("fewjoule.reporting") / "assets" / name).read_text(encoding="utf-8")


def templates(*, autoescape: bool) -> Environment:
    """The Jinja templates in report/assets, with the functions above as filters."""
    environment = Environment(
        loader=PackageLoader("fewjoule.reporting", "assets"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (joules_text, seconds_text, percent_text, kinds_text, digits, listing, few_names, counted, no_break)
    environment.filters |= {function.__name__: function for function in filters}
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    return environment
