"""The tables of docs/benchmarks.md, from docs/benchmarks.json. `bench/benchmarks.py` writes both."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.federations import FEDERATIONS, PUBLISHED, Published
from fewjoule.reporting.run_folder import LEAST_SEEDS
from fewjoule.studies.summary import interval

LINKS = ("wifi", "lte", "lora-sf7")
NO_RADIO = ["0"] * (1 + len(LINKS))


def tables(numbers: dict[str, Any]) -> str:
    """All tables of the page."""
    lines = []
    for name, federation in FEDERATIONS.items():
        lines += [f"### {federation.title}", ""]
        of = numbers.get(name)
        lines += ["Not run yet.", ""] if of is None else [_caption(of), "", *_table(of), "", *_after_more(of), ""]
        lines += [*_published(name, of), ""]
    return "\n".join(lines)


def _caption(of: dict[str, Any]) -> str:
    size = "a small run (`--quick`): it shows that the study runs, not what methods reach. " if of["quick"] else ""
    most = _seeds(of)
    seeds = ", ".join(map(str, most))
    bounds = ", in brackets 95 % over seeds."
    if len(most) < LEAST_SEEDS:
        bounds = ", in round brackets 95 % over new devices: too few seeds for an interval over them."
    if any(row.get("seeds", most) != most for row in of["methods"].values()):
        bounds += " A row of other seeds says so."
    return (
        f"{size}{of['agents']} agents, {of['model']} ({of['weights']} weights), seeds {seeds}; accuracy in per cent "
        f"after {of['steps']} steps{bounds}"
    )


def _table(of: dict[str, Any]) -> Iterator[str]:
    judged = list(of["devices"])
    heads = [f"new devices, {_shots(key)} ({of['devices'][key]})" for key in judged]
    links = [f"J on {link}" for link in LINKS]
    yield table_row(
        ["method", *heads, "agents, before", "agents", "worst tenth", "bits sent by an agent", *links, "run"]
    )
    yield table_row(["---"] * (len(heads) + len(links) + 6))
    if of["alone"]:
        yield table_row(["alone (own local model)", *["–"] * len(heads), "–", *_agents(of["alone"]), *NO_RADIO, "–"])
    if of["new_alone"]:
        alone = [percent(of["new_alone"].get(key)) for key in judged]
        label = f"a new device alone (from scratch, {of['alone_steps']} steps)"
        yield table_row([label, *alone, "–", "–", "–", *NO_RADIO, "–"])
    for method in sorted(of["methods"].values(), key=lambda m: -_rank(m, judged)):
        new = [percent(method["new_devices"].get(key)) for key in judged]
        before, after = (method["agents"].get(str(s)) for s in (0, of["steps"]))
        sent = [f"{method['uplink_bits']:,.0f}", *(_joules(method["joules"][link]) for link in LINKS)]
        when = method["how"]["when"][:10] if method.get("how") else "earlier"
        yield table_row([_label(method, of), *new, percent(before, short=True), *_agents(after), *sent, when])


def _seeds(of: dict[str, Any]) -> list[int]:
    """Those of most rows: the longest list, for a slow method may have fewer."""
    return max((row.get("seeds", of["seeds"]) for row in of["methods"].values()), key=len, default=of["seeds"])


def _label(method: dict[str, Any], of: dict[str, Any]) -> str:
    seeds, most = method.get("seeds", of["seeds"]), _seeds(of)
    told = f" (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})"
    return f"{method['label']}{'' if seeds == most else told}"


def _after_more(of: dict[str, Any]) -> Iterator[str]:
    """The methods after more steps, and what each gains over a new device alone, seed by seed."""
    alone, name = of["new_alone"], "more_steps"
    rows = [row for row in of["methods"].values() if row.get(name)]
    if not rows or not alone:
        return
    judged, random = list(of["devices"]), of["methods"]["random"]
    heads = [cell for key in judged for cell in (_shots(key), "gain")]
    yield (
        f"New devices after {of['more_steps']} steps; gain: points over a device alone ({of['alone_steps']} steps), "
        "seed by seed."
    )
    yield ""
    yield table_row(["method", *heads])
    yield table_row(["---"] * (len(heads) + 1))
    yield table_row(["a new device alone", *(cell for key in judged for cell in (percent(alone.get(key)), "–"))])
    for row in sorted(rows, key=lambda row: -sum(row[name][key]["mean"] for key in judged)):
        cells = [
            cell for key in judged for cell in (percent(row[name][key]), _gain(row, alone[key], key, random["seeds"]))
        ]
        yield table_row([_label(row, of), *cells])


def _gain(row: dict[str, Any], alone: dict[str, Any], key: str, seeds: list[int]) -> str:
    """Points over a device alone, with the interval of the differences that the same seeds have."""
    own = dict(zip(seeds, alone["per_seed"], strict=True))
    reached = zip(row["seeds"], row["more_steps"][key]["per_seed"], strict=True)
    gains = np.array([value - own[seed] for seed, value in reached])
    low, high = interval((1 + gains) / 2)  # it is of shares, from 0 to 1
    around = "" if low is None or high is None else f" [{200 * low - 100:+.1f}, {200 * high - 100:+.1f}]"
    return f"{100 * gains.mean():+.1f}{around}"


def _rank(method: dict[str, Any], judged: list[str]) -> float:
    found = [method["new_devices"][key]["mean"] for key in judged if key in method["new_devices"]]
    return float(found[0]) if found else 0.0


def _published(name: str, of: dict[str, Any] | None) -> Iterator[str]:
    rows = [p for p in PUBLISHED if p.federation == name]
    if not rows:
        return
    yield table_row(["published", "of", "per cent", "ours", "ours - theirs", "source", "what differs from ours"])
    yield table_row(["---"] * 7)
    for p in rows:
        ours = _ours(p, of)
        beside = ["–", "–"] if ours is None else [f"{100 * ours:.1f}", f"{100 * ours - p.percent:+.1f}"]
        what = "agents, mean over images" if p.judged is None else _shots(p.judged.key)
        yield table_row([p.method, what, f"{p.percent:g}", *beside, p.source, p.differs])


def _ours(p: Published, of: dict[str, Any] | None) -> float | None:
    """What the method of that name reaches here, as a share."""
    method = (of or {"methods": {}})["methods"].get(p.ours)
    if method is None:
        return None
    if p.judged is None:
        over_images: float | None = method.get("over_images")
        return over_images
    found = method["new_devices"].get(p.judged.key)
    return None if found is None else float(found["mean"])


def _shots(key: str) -> str:
    return f"{key} shot{'' if key.split()[-1] == '1' else 's'}"


def table_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _agents(spread: dict[str, Any] | None) -> list[str]:
    if spread is None:
        return ["–", "–"]
    return [percent(spread), f"{100 * spread['worst_tenth']:.1f}"]


def percent(numbers: dict[str, Any] | None, *, short: bool = False) -> str:
    if numbers is None:
        return "–"
    around = ""
    if not short and numbers.get("low") is not None:
        around = f" [{100 * numbers['low']:.1f}, {100 * numbers['high']:.1f}]"
    elif not short and numbers.get("over_devices"):
        low, high = numbers["over_devices"]
        around = f" ({100 * low:.1f}, {100 * high:.1f})"
    return f"{100 * numbers['mean']:.1f}{around}"


def _joules(value: float) -> str:
    return "0" if value == 0 else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
