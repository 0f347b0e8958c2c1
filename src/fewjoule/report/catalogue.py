"""The charts of a report with their captions, in the order of the page."""

from functools import partial

from fewjoule.report import charts
from fewjoule.report.charts import Chart
from fewjoule.report.datasets import Rows
from fewjoule.report.facts import Facts
from fewjoule.report.folder import Summary
from fewjoule.report.wording import counted, joules_text, listing, quality_text

THIN = "Thin lines in every panel: the average of the local models (neutral) and Meta-Backward (its own colour)."


def catalogue(summary: Summary, facts: list[Facts], data: dict[str, Rows]) -> list[Chart]:
    """Every chart for which the run has numbers."""
    statistic = summary.statistic.capitalize()
    order = [f.label for f in facts]
    metric, steps = summary.metric, counted(summary.headline_steps, "fine-tuning step")
    where = "lower left is better"
    found = [f for f in facts if f.quality is not None]
    ranking = listing(f"{f.label} {quality_text(f.quality or 0)}" for f in found) if found else "every method diverged"
    entries = [
        Chart(
            "quality",
            "Quality against joules",
            f"{statistic} {metric if metric == 'loss' else 'error (1 - accuracy)'} after {steps} (measured; bars: 95 % "
            f"over seeds) against the joules of the training (computation and radio; see the table for their kinds). "
            f"Both axes are logarithmic, {where}. Dashed: the frontier, where nothing is both better and cheaper.",
            f"Scatter of {metric} against joules, both logarithmic. "
            + "; ".join(f"{f.label}: {quality_text(f.quality or 0)} for {joules_text(f.joules())}" for f in found),
            partial(charts.quality_against_joules, summary, data),
            ("points", "frontier", "free"),
        ),
        Chart(
            "cdf",
            f"Distribution of the {metric} over new tasks",
            f"Share of the {summary.tasks} new tasks (all seeds) with at most this {metric} after {steps}; measured. "
            f"{'Further left' if metric == 'loss' else 'Further right'} is better. {THIN}",
            f"Cumulative distributions of the {metric} over new tasks, one panel per family. {statistic}s: {ranking}.",
            partial(charts.cdf, summary, data),
            ("cdf",),
        ),
        Chart(
            "energy",
            "Joules of computation and communication",
            "Per run, all agents together; each kind of knowledge has its own shape. Pretraining of the local models "
            "and the adaptation of one new device are shown beside the training. The axis is logarithmic.",
            "Dot plot of joules by method and phase, logarithmic. "
            + "; ".join(_spent(f, "joules") for f in facts if f.spent),
            partial(charts.amounts, "energy", "joules (log)", "J", data, order=order),
            ("energy",),
        ),
        Chart(
            "time",
            "Time of computation and communication",
            "Computation is the time this computer took for all agents; radio is the time that passes while agents "
            "send at once, each in a band of its own, round after round. Pretraining and adaptation as above. The "
            "axis is logarithmic.",
            "Dot plot of seconds by method and phase, logarithmic. "
            + "; ".join(_spent(f, "seconds") for f in facts if f.spent),
            partial(charts.amounts, "time", "seconds (log)", "s", data, order=order),
            ("time",),
        ),
        Chart(
            "steps",
            f"{metric.capitalize()} against fine-tuning steps",
            f"{statistic} {metric} over the new tasks, measured. {THIN}",
            f"{statistic} {metric} against the number of fine-tuning steps, one panel per family.",
            partial(charts.steps, summary, data),
            ("steps",),
        ),
        Chart(
            "spread",
            "How far the agents are apart",
            "Distance of the farthest agent's model from the mean of the agents' models at the end of each round "
            "(median over seeds, measured), both axes logarithmic. Thin: Meta-Backward.",
            "Distance of the farthest agent against rounds, one panel per family, both axes logarithmic.",
            partial(charts.spread, data),
            ("spread",),
        ),
        Chart(
            "radius",
            "The ball of Meta-Backward",
            "Radius of the ball that the projection allows in each round, beside the distance of the farthest agent "
            "and the step of the server (medians over seeds, measured).",
            "Radius of the ball, distance of the farthest agent and step of the server against rounds.",
            partial(charts.radius, data),
            ("radius",),
        ),
        Chart(
            "paths",
            "The agents' paths",
            "From each agent's first model (circle) to its last (cross), and the server's meta-model, in the plane of "
            "the first two principal components of all these models; first seed.",
            "Paths of the agents' models and of the server's in a plane, one panel per method.",
            partial(charts.paths, data),
            ("paths",),
        ),
    ]
    return [chart for chart in entries if any(data[name] for name in chart.datasets)]


def _spent(f: Facts, what: str) -> str:
    unit = "J" if what == "joules" else "s"
    amounts = [(s.phase, getattr(s, what)) for s in f.spent]
    return f"{f.label}: " + ", ".join(f"{phase} {value:.3g} {unit}" for phase, value in amounts if value)
