"""Answers, their zero-bit control and a ceiling in a study: what is charged to whom, and who can win."""

from pathlib import Path

import pytest

import fewjoule as fj
from fewjoule.errors import InputError
from fewjoule.reporting.facts import digest, on_frontier
from fewjoule.reporting.run_folder import RunFolder
from fewjoule.studies.settings import make_study

LEARNING = {"questions": "range:-5:5", "number": 6, "episodes": 2, "steps": 2}
TABLE = {
    "name": "asked",
    "seeds": [0, 1],
    "family": {"kind": "sinusoid", "amplitudes": [2, 6, 10], "samples": 20, "validation": 10},
    "model": {"spec": "mlp:1-6-1"},
    "local": {"max_steps": 40, "batch": 10},
    "evaluation": {"tasks": 4, "queries": 10, "steps": [0, 2], "headline": 2},
    "energy": {"meter": "operations"},
    "methods": [
        {"name": "answers", "method": "answers", **LEARNING},
        {"name": "invented", "method": "invented", **LEARNING, "scale": 10.0},
        {"name": "top", "method": "reptile", "ceiling": 5, "start": "random", "rounds": 2, "local_steps": 2},
        {"name": "average", "method": "average"},
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    out: Path = tmp_path_factory.mktemp("study") / "run"
    return make_study(TABLE, "the test").run(out)


@pytest.mark.slow
def test_the_server_pays_apart_and_a_ceiling_sends_nothing(folder: RunFolder) -> None:
    served = folder.ledger.select(phase="server")
    assert {row.agent for row in served} == {"server"}
    assert {row.method for row in served} == {"answers", "invented", "top"}
    assert all(row.joules > 0 and row.flops for row in served)
    assert {row.method for row in folder.ledger.select(phase="uplink")} == {"answers", "average"}
    assert {row.method for row in folder.ledger.select(phase="computation")} == {"answers"}
    bits = {row.bits for row in folder.ledger.select(phase="uplink", method="answers")}
    assert bits <= {8 * (6 + 4 + 5), 8 * (6 + 5 + 5)}  # frame, head, 36 bits


@pytest.mark.slow
def test_a_ceiling_wins_nothing_and_totals_stand_with_and_without_the_server(folder: RunFolder) -> None:
    shares = {name: method.share_best for name, method in folder.summary.methods.items()}
    assert shares["top"] == 0
    assert sum(share or 0 for share in shares.values()) == pytest.approx(1)
    assert "with the server" in repr(folder)
    page = (folder.path / "report.html").read_text("utf-8")
    assert "with the server" in page
    assert 'data-part="with-server"' in page
    facts = digest(folder)
    assert "top" not in on_frontier(facts)
    assert not next(f for f in facts if f.name == "top").contends
    answers = [page[page.index(start) :] for start in ('<section class="cards"', '<p class="answer" id="answer">')]
    for part, end in zip(answers, ("</section>", "</p>"), strict=True):
        assert "average" in part[: part.index(end)]
        assert "top" not in part[: part.index(end)]
    assert "top: trained on tasks like the new ones, which nobody has in practice; it is only a reference." in page
    assert '<option value="top"' not in page


def test_true_tasks_are_of_the_new_tasks_family() -> None:
    study = make_study(TABLE, "the test")
    agents = study.true_agents(4)
    y = abs(agents.data.train.y[0]).max((-2, -1))
    assert (y < 10).all()
    assert (y[1:] > y[:-1]).all()  # amplitudes 1.3, 3.8, 6.3, 8.8
    digits = fj.study("mnist", seeds=[0]).true_agents(7)
    assert len(set(digits.names)) == 7
    assert all(len(name) == len("digits 01234") for name in digits.names)


def test_a_ceiling_that_would_need_local_models_is_refused() -> None:
    wrong = {**TABLE, "methods": [{"name": "top", "method": "average", "ceiling": 5}]}
    with pytest.raises(InputError, match="a ceiling needs the family sinusoid or mnist"):
        make_study(wrong, "the test")
