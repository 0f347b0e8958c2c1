"""What a site makes of its own files and of its own meter."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewjoule import InputError, mlp, write_model
from fewjoule.energy import metering, powercap
from fewjoule.federation import agent as agent_module
from fewjoule.federation.agent import AgentRunner
from fewjoule.federation.carrier.site import Site, agent_home, agent_meter, check_files
from fewjoule.federation.spec import Spec
from tests.energy.powercap_tree import Tree
from tests.federation.bench import Bench, LocalChannel


def site(folder: Path, name: str, model: Path | None = None, **arrays: Any) -> Site:
    path = folder / f"{name}.npz"
    np.savez(path, **arrays)
    return Site(name, path, model)


def agree(folder: Path, home: Site, **spec: Any) -> AgentRunner:
    runner = AgentRunner(home.name, agent_home(home), folder / home.name)
    runner.agree(Spec(method={"method": "fedavg"}, agents=(home.name,), **spec).text)
    return runner


def test_trial_4_classes_have_the_runs_numbers_at_every_site(tmp_path: Path) -> None:
    model = {"spec": "mlp:2-4-3", "init": "glorot", "loss": "cross_entropy"}
    homes = [
        site(tmp_path, "north", x=np.eye(2), y=np.array(["cat", "dog"])),
        site(tmp_path, "south", x=np.eye(2), y=np.array(["dog", "eel"])),
    ]
    same: dict[str, Any] = {"model": model, "classes": ("cat", "dog", "eel"), "local": {"max_steps": 1}}
    runners = [agree(tmp_path, home, **same) for home in homes]
    assert [runner._data.train.y.tolist() for runner in runners] == [[0, 1], [1, 2]]
    assert check_files(homes[1]) == 2  # before any run
    with pytest.raises(InputError, match=r"targets of agent 'south' are text.*classes = \[\"cat\", \"dog\"\]"):
        agree(tmp_path, homes[1], model=model)
    with pytest.raises(InputError, match="unknown class 'eel'; the classes are cat, dog"):
        agree(tmp_path, homes[1], model=model, classes=("cat", "dog"))
    with pytest.raises(InputError, match="classes must differ"):
        Spec(method={}, model={}, agents=("north",), classes=("cat", "cat"))


@pytest.mark.parametrize(
    ("spec", "loss", "words"),
    [("mlp:2-3-1", "mse", "the model is mlp:1-4-1, the file holds mlp:2-3-1"), ("mlp:1-4-1", "cross_entropy", "loss")],
)
def test_trial_5_a_model_of_another_architecture_or_loss_is_refused(
    tmp_path: Path, spec: str, loss: str, words: str
) -> None:
    """Both have 13 weights, as the run's model has."""
    own = mlp([int(n) for n in spec.removeprefix("mlp:").split("-")], loss=loss)
    write_model(tmp_path / "own.safetensors", own, np.zeros(13))
    home = site(tmp_path, "north", tmp_path / "own.safetensors", x=np.zeros((3, 1)), y=np.zeros((3, 1)))
    model = {"spec": "mlp:1-4-1", "init": "glorot", "loss": "mse"}
    with pytest.raises(InputError, match=words):
        agree(tmp_path, home, model=model)
    write_model(tmp_path / "own.safetensors", mlp([1, 4, 1]), np.full(13, 0.5), force=True)
    assert agree(tmp_path, home, model=model)._local_model.tolist() == [0.5] * 13


def test_trial_12_an_agent_with_counters_completes_and_reports_their_joules(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter moves with every second execution only, so one execution alone shows nothing."""
    tree, ran, real = Tree(tmp_path / "powercap"), [0], agent_module._compiled
    counter = tree.zone("intel-rapl:0", "package-0") / "energy_uj"
    before = int(counter.read_text())

    def counted(program: Any, *args: Any) -> Any:
        compiled = real(program, *args)

        def run(*arrays: Any) -> Any:
            if program is agent_module._step:
                ran[0] += 1
                tree.use(0.004 if ran[0] % 2 == 0 else 0.0, "intel-rapl:0")
            else:
                tree.use(0.001, "intel-rapl:0")
            return compiled(*arrays)

        programs.setdefault(program, run)
        return programs[program]

    def vendors() -> Any:
        raise AssertionError("a vendor's library was loaded, which takes memory and was not asked for")

    programs: dict[Any, Any] = {}
    monkeypatch.setattr(agent_module, "_compiled", counted)
    monkeypatch.setattr(metering, "PowercapMeter", lambda watch: powercap.PowercapMeter(tree.root, watch=watch))
    monkeypatch.setattr(metering, "ZeusMeter", vendors)
    meter, reason = agent_meter(Site("north", tmp_path))
    assert "measured" in reason
    spec = bench.spec("fedavg", agents=("north",))
    server, outcome = bench.run(spec, channel=LocalChannel({"north": bench.agent("north", meter=meter)}))
    assert outcome.status == "complete"
    rounds, runs = server.contract.method.rounds, ran[0]
    joules = server.records.column("joules")[:, 0]
    assert set(server.records.column("kind")[1:, 0]) == {1}  # measured
    in_window = runs - (rounds - 1)  # later rounds ran once each and were not metered
    assert joules[1 : rounds + 1].tolist() == pytest.approx([0.004 * (in_window // 2) / in_window] * rounds)
    assert joules[-1] == pytest.approx(0.001)
    assert int(counter.read_text()) > before
    plain, _ = bench.run(bench.spec("fedavg", agents=("north",), nonce="unmetered"), channel=bench.channel("north"))
    np.testing.assert_array_equal(server.meta, plain.meta)  # repeating changed nothing
