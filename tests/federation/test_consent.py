"""An agent's owner says what it takes part in; the agent refuses the rest, and the server shows its words."""

import re
from pathlib import Path
from typing import Any

import pytest

from fewjoule import METHODS, InputError, method
from fewjoule.federation.consent import Consent, consent_in, local_steps, read_consent
from tests.federation.bench import NAMES, Bench, LocalChannel


def written(bench: Bench, text: str) -> Path:
    path = bench.folder / "consent.toml"
    path.write_text(text)
    return path


def run(bench: Bench, text: str, name: str = "fedavg", **settings: Any) -> tuple[str, str]:
    """How a run ends in which `south` has this consent."""
    check = consent_in(written(bench, text))
    agents = {n: bench.agent(n, consent=check) if n == "south" else bench.agent(n) for n in NAMES}
    spec = bench.spec(name, policy="stop", settings=settings, local={"max_steps": 500}, nonce=text)
    _, outcome = bench.run(spec, channel=LocalChannel(agents))
    return outcome.status, outcome.reason


@pytest.mark.parametrize(
    ("text", "name", "settings", "words"),
    [
        ('methods = ["average", "fedsgd"]', "fedavg", {}, "method 'fedavg' is not one of average, fedsgd"),
        ("methods = []", "average", {}, "method 'average' is not one of none"),
        ("most_rounds = 3", "fedavg", {}, "4 rounds are above 3"),
        ("most_local_steps = 99", "fedavg", {}, "100 local steps in a round are above 99"),
        ("most_local_steps = 0", "fedsgd", {}, "1 local steps in a round are above 0"),
        ("most_local_steps = 5", "fedavg", {"epochs": 2}, "the run counts in epochs (2 in a round)"),
        ("most_epochs = 1", "fedavg", {"epochs": 2}, "2 epochs in a round are above 1"),
        ("most_training_steps = 499", "average", {}, "500 steps of offline training are above 499"),
        ("smallest_batch = 9", "fedavg", {}, "a batch of 8 samples is below 9"),
        ("ask_first = true", "average", {}, "asks first; to take part, add '"),
        ('ask_first = true\napproved = ["00000000"]', "average", {}, "asks first"),
    ],
)
def test_a_run_beyond_the_consent_is_refused_in_one_line(
    bench: Bench, text: str, name: str, settings: dict[str, Any], words: str
) -> None:
    status, reason = run(bench, text, name, **settings)
    assert status == "stopped"
    assert reason.startswith(f"agreement: agent south: does not take part by its consent.toml: {words}")
    assert "\n" not in reason


GENEROUS = """methods = ["fedavg"]
most_rounds = 4
most_local_steps = 100
most_training_steps = 500
smallest_batch = 8
"""


@pytest.mark.parametrize("text", ["", GENEROUS])
def test_a_run_within_the_consent_goes_on(bench: Bench, text: str) -> None:
    assert run(bench, text)[0] == "complete"


def test_approved_runs_pass_once_their_name_is_in_the_file(bench: Bench) -> None:
    spec, path = bench.spec("average"), written(bench, "ask_first = true")
    agent = bench.agent("south", consent=consent_in(path))
    with pytest.raises(InputError, match=f"add '{spec.run.hex()[:8]}' to approved"):
        agent.agree(spec.text)
    path.write_text(f'ask_first = true\napproved = ["{spec.run.hex()[:8]}"]')
    assert agent.agree(spec.text)
    path.write_text("methods = []")  # withdrawn: the server asks again whenever it goes on with a run
    with pytest.raises(InputError, match="not one of none"):
        agent.agree(spec.text)


def test_somebody_at_the_agent_is_asked_once_per_run(bench: Bench) -> None:
    questions: list[str] = []

    def ask(question: str) -> bool:
        questions.append(question)
        return ": average (" in question

    agent = bench.agent("south", consent=consent_in(written(bench, "ask_first = true"), ask))
    for _ in range(2):
        assert agent.agree(bench.spec("average").text)
        with pytest.raises(InputError, match="asks first"):
            agent.agree(bench.spec("fedavg").text)
    assert len(questions) == 2
    assert "fedavg (rounds 4, local_steps 100" in questions[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("most_round = 3", "unknown key 'most_round'; did you mean 'most_rounds'"),
        ("most_rounds = -1", "most_rounds: .*got -1"),
        ('most_rounds = "3"', "most_rounds: .*got '3'"),
        ('methods = ["fedavgg"]', "unknown method 'fedavgg'; did you mean 'fedavg'"),
        ('approved = ["1f"]', "approved.0: "),
        ("most_rounds =", "is not TOML"),
        ("a" * 70_000, "at most 65536 bytes"),
        ("\udcff", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_when_the_agent_starts(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "consent.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=words):
        consent_in(path)


def test_a_missing_file_is_no_consent(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_consent(tmp_path / "consent.toml")


def test_the_example_of_the_page_is_a_consent(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "federation-rules.md"
    (example,) = re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.S)
    path = tmp_path / "consent.toml"
    path.write_text(example)
    consent = read_consent(path)
    assert consent.ask_first
    assert set(consent.model_fields_set) == set(Consent.model_fields) - {"most_epochs"}


def test_local_steps_are_known_of_every_method() -> None:
    steps = {name: local_steps(method(name)) for name in METHODS}
    assert steps["lean"] == 100  # a tenth of 1000 steps of offline training, in one round
    assert steps["fedsgd"] == steps["meta_backward"] == steps["maml"] == 1
    assert (steps["fedavg"], steps["imaml"], steps["average"]) == (100, 50, 0)
