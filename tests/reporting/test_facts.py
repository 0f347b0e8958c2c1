"""What the report says of a run, against the ledger and against brute force."""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewjoule.cli.screen import show_summary
from fewjoule.energy import LINKS
from fewjoule.errors import InputError
from fewjoule.reporting import write_report
from fewjoule.reporting.charts import spread
from fewjoule.reporting.facts import digest, frontier, seconds_kind
from fewjoule.reporting.run_folder import RunFolder
from tests.reporting.run_folders import AGENTS, METHODS, OWN_BITS, WEIGHTS, make_folder

POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


@given(POINTS)
def test_the_frontier_is_what_nothing_else_dominates(pairs: list[tuple[int, int]]) -> None:
    points = [(str(i), float(x), float(y)) for i, (x, y) in enumerate(pairs)]
    found = frontier(points)
    where = {name: (x, y) for name, x, y in points}

    def dominated(name: str) -> bool:
        x, y = where[name]
        return any((a <= x and b <= y) and (a, b) != (x, y) for a, b in where.values())

    # of equal points one stands for all
    assert {where[name] for name in found} == {where[name] for name in where if not dominated(name)}
    assert len({where[name] for name in found}) == len(found)
    assert [where[name][0] for name in found] == sorted(where[name][0] for name in found)


def test_joules_per_seed_are_those_of_the_ledger(regression: Path) -> None:
    folder = RunFolder.read(regression)
    for f in digest(folder):
        for s in f.spent:
            whole = folder.ledger.total(method=f.name, phase=s.phase, kind=s.kind)
            assert s.joules == pytest.approx(whole / len(folder.summary.seeds), rel=1e-12)


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_uplink_is_the_paper_s_formula(metric: str, tmp_path: Path) -> None:
    folder = RunFolder.read(make_folder(tmp_path / "run", metric=metric, seeds=1, tasks=3))
    agents = len(AGENTS[metric])
    for f in digest(folder):
        _, _, rounds, first, *_ = METHODS[f.name]
        one = LINKS["paper"].energy_joules(OWN_BITS.get(f.name, 32 * WEIGHTS[metric]))
        assert f.joules(["uplink"]) == pytest.approx(one * (rounds * agents + min(first, agents)), rel=1e-9)


def test_agents_that_send_at_once_take_the_time_of_one(regression: Path) -> None:
    facts = {f.name: f for f in digest(RunFolder.read(regression))}
    one = LINKS["paper"].seconds(32 * WEIGHTS["loss"])
    (uplink,) = (s for s in facts["meta_backward"].spent if s.phase == "uplink")
    assert uplink.seconds == pytest.approx(51 * one, rel=1e-9)
    (uplink,) = (s for s in facts["local"].spent if s.phase == "uplink")
    assert uplink.seconds == pytest.approx(one, rel=1e-9)


def test_the_clock_of_the_cpu_model_is_measured_though_its_joules_are_not(regression: Path) -> None:
    (computation,) = (
        s for f in digest(RunFolder.read(regression)) if f.name == "maml" for s in f.spent if s.phase == "computation"
    )
    assert (computation.kind, seconds_kind(computation)) == ("modelled", "measured")


def test_methods_are_ranked_by_quality_and_the_diverged_come_last(regression: Path, classification: Path) -> None:
    losses = [f.quality for f in digest(RunFolder.read(regression))]
    assert losses[-1] is None
    assert losses[:-1] == sorted(losses[:-1])
    accuracies = [f.quality for f in digest(RunFolder.read(classification))]
    assert accuracies[:-1] == sorted(accuracies[:-1], reverse=True)


def sentences(page: str, css: str) -> list[str]:
    """The paragraphs of a class as HTML, with plain spaces."""
    return [" ".join(text.split()) for text in re.findall(rf'<p class="{css}">(.*?)</p>', page, re.S)]


def test_the_sentence_answers_and_what_diverged_is_named(regression: Path) -> None:
    page = (regression / "report.html").read_text(encoding="utf-8")
    said = " ".join(re.findall(r'id="answer">(.*?)</p>', page, re.S)[0].split())
    assert said.startswith("On the paper’s link, Answers (20 of 6 bits) gives loss ")
    assert "Meta-Backward gives loss" in said
    assert any("linear radius diverged on every seed (0 and 1)" in line for line in sentences(page, "note"))


def test_a_run_in_which_everything_diverged_says_so(tmp_path: Path) -> None:
    only = {"meta_backward-linear": METHODS["meta_backward-linear"]}
    page = write_report(make_folder(tmp_path / "run", methods=only)).read_text(encoding="utf-8")
    assert "Every method diverged" in sentences(page, "answer")[0]
    assert 'data-chart="energy"' in page
    assert 'data-chart="quality"' not in page
    assert not (tmp_path / "run" / "figures" / "quality.svg").exists()


def test_lines_are_thinned(regression: Path) -> None:
    folder = RunFolder.read(regression)
    assert len(folder.trace["maml"]["round"]) == 500
    svg = spread(folder, [f for f in digest(folder) if f.name == "maml"], 540, "words")
    (path,) = re.findall(r'<path d="(M[^"]*)"', svg)
    assert path.count("L") < 60


def test_two_methods_with_one_label_are_told_apart(tmp_path: Path) -> None:
    run = make_folder(
        tmp_path / "run", methods={"a": METHODS["average"], "b": METHODS["average"], "maml": METHODS["maml"]}
    )
    facts = digest(RunFolder.read(run))
    assert sorted(f.label for f in facts) == ["MAML", "average (a)", "average (b)"]
    assert sorted(f.short for f in facts) == ["MAML", "average (a)", "average (b)"]


def change_summary(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    change(summary)
    path.write_text(json.dumps(summary))


def test_trial_27_page_and_terminal_say_what_a_start_is_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path / "run", methods={"average": METHODS["average"]})
    remark = "no better than a constant: loss 9 after 10 steps on the agents' samples; without any model it is 8"
    change_summary(folder, lambda s: s["methods"]["average"].update(remarks=[remark]))
    show_summary(folder)
    assert f"average is {remark}" in " ".join(capsys.readouterr().out.split())
    page = write_report(folder).read_text(encoding="utf-8")
    assert any(f"average is {remark}." in html.unescape(line) for line in sentences(page, "note"))


def test_trial_29_an_infinite_mean_says_how_many_tasks_overflowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path / "run", methods={"average": METHODS["average"]}, seeds=2, tasks=60)

    def overflow(summary: dict[str, Any]) -> None:
        summary["statistic"] = "mean"
        at = summary["methods"]["average"]["quality"]["10"]
        at["loss"]["mean"], at["overflowed"] = None, 7

    change_summary(folder, overflow)
    words = "infinite: 7 of 120 overflowed"
    show_summary(folder)
    assert words in capsys.readouterr().out
    assert words in repr(RunFolder.read(folder))
    assert write_report(folder).read_text(encoding="utf-8").count(words) == 2  # in both tables


def test_a_run_that_nothing_judged_shows_the_agents_losses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(tmp_path / "run", methods={"average": METHODS["average"]})

    def forget(summary: dict[str, Any]) -> None:
        summary["tasks"] = 0
        summary["methods"]["average"] |= {"quality": {}, "worth": {"final": 0.25}}

    change_summary(folder, forget)
    (folder / "evaluation.csv").write_text("method,seed,task,steps,loss,accuracy\n")
    show_summary(folder)
    said = capsys.readouterr().out
    assert "agents' loss after 10 steps" in said
    assert "0.25" in said
    assert "diverged" not in said
    with pytest.raises(InputError, match="has no new tasks to compare its methods on"):
        write_report(folder)
