"""What a run spent, computed anew from the rows of its energy.csv: the one definition that every shown number has."""

import csv
from collections import defaultdict

import pytest


def recomputed(path, seeds=1):
    """By method, phase and kind: joules, seconds, bits and flops per seed; None where no row knows it.

    Agents work at the same time: a round takes as long as its slowest agent.
    """
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    totals = {}
    for key in dict.fromkeys((row["method"], row["phase"], row["kind"]) for row in rows):
        chosen = [row for row in rows if (row["method"], row["phase"], row["kind"]) == key]
        amounts = {}
        for column in ("joules", "bits", "flops"):
            known = [float(row[column]) for row in chosen if row[column]]
            amounts[column] = pytest.approx(sum(known) / seeds) if known else None
        rounds = defaultdict(lambda: defaultdict(float))
        for row in chosen:
            if row["seconds"]:
                rounds[row["seed"], row["round"]][row["agent"]] += float(row["seconds"])
        slowest = [max(agents.values()) for agents in rounds.values()]
        amounts["seconds"] = pytest.approx(sum(slowest) / seeds) if slowest else None
        totals[key] = amounts
    return totals
