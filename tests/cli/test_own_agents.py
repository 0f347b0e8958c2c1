"""The commands of an engineer with devices in the field, from files to files, and what they say to bad input."""

import csv
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import save_file

from fewjoule.cli.federation import traffic_table
from fewjoule.cli.screen import SEE_CHOOSING, show_summary
from fewjoule.energy import Ledger
from fewjoule.errors import InputError
from fewjoule.models.nets import logistic, mlp
from fewjoule.models.weights import read_header, read_model, write_model
from fewjoule.tasks import mnist
from tests.cli.conftest import Command


def digits(which: list[int], each: int, seed: int, pool: str = "train") -> tuple[np.ndarray, np.ndarray]:
    images = mnist.load()
    x, y = (images.train_x, images.train_y) if pool == "train" else (images.test_x, images.test_y)
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.permutation(np.flatnonzero(y == d))[:each] for d in which])
    return x[rows], y[rows]


def save_new_task(path: Path, which: list[int], seed: int) -> None:
    (x, y), (x_test, y_test) = digits(which, 10, seed), digits(which, 30, seed, "test")
    np.savez(path, x=x, y=y, x_test=x_test, y_test=y_test)


@pytest.mark.slow
def test_mnist_agents_from_files_to_a_graph(fewjoule: Command, tmp_path: Path) -> None:
    low, high, both = (tmp_path / name for name in ("low", "high", "both"))
    for folder in (low, high, both):
        folder.mkdir()
    for folder in (low, both):
        np.savez(folder / "low.npz", **dict(zip("xy", digits([0, 1, 2], 100, 1), strict=True)))
    for folder in (high, both):
        np.savez(folder / "high.npz", **dict(zip("xy", digits([7, 8, 9], 100, 2), strict=True)))
    local = ["--divide-by", 255, "--local-learning-rate", 0.1, "--local-steps", 500]

    # one agent trains its own model and keeps it as PyTorch would
    code, out, err = fewjoule(
        "train", low, "--model", "mlp:784-8-8-10", "--method", "average", "-o", tmp_path / "low.st", *local
    )
    assert code == 0, err
    assert "classification (the targets are whole numbers)" in out
    assert fewjoule("export", tmp_path / "low.st", "--to", "pytorch", "-o", both / "low.safetensors")[0] == 0

    # it joins another agent, which has no model yet; the architecture comes from the weights
    meta = tmp_path / "meta.safetensors"
    code, out, err = fewjoule(
        "train", both, "--method", "fedavg", "--set", "rounds=5", "--set", "learning_rate=0.1", "-o", meta, *local,
        "--seed", 1, "--energy", tmp_path / "energy.csv",
    )  # fmt: skip
    assert code == 0, err
    assert "model mlp:784-8-8-10 (from low.safetensors)" in out
    assert "low.safetensors: pytorch layout, taken as a ReLU net" in out
    assert "high.npz 300 0 7, 8, 9 to be trained" in " ".join(out.split())
    assert "aligned; the average's loss on an agent's samples after 10 steps" in out
    assert "uplink" in out
    ledger = Ledger.from_csv(tmp_path / "energy.csv")
    # one upload of 6442 weights before the first round and one in each: 35.513 J on the paper's link
    assert ledger.total(phase="uplink") == pytest.approx(2 * 6 * 35.513, rel=1e-4)
    card = read_header(meta).card
    assert card is not None
    assert card["method"]["rounds"] == 5
    assert [agent["model"] for agent in card["agents"]] == ["trained here", "given"]
    assert {row["phase"] for row in card["energy"]} == {"pretraining", "computation", "uplink"}

    new = tmp_path / "new"
    new.mkdir()
    for i, which in enumerate(([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])):
        save_new_task(new / f"task{i}.npz", which, i)
    adapted = tmp_path / "adapted.safetensors"
    code, out, err = fewjoule(
        "adapt",
        meta,
        new / "task0.npz",
        "--steps",
        100,
        "--learning-rate",
        0.1,
        "-o",
        adapted,
        "--choose",
        "validation",
    )
    assert code == 0, err
    assert "held-out accuracy" in out
    assert "chosen by validation" in out
    reached = float(out.split("adapted model")[0].rpartition("energy:")[0].split()[-1])  # the table's last cell
    assert 0.6 < reached <= 1

    code, out, err = fewjoule("predict", adapted, new / "task0.npz", "-o", tmp_path / "out.csv")
    assert code == 0, err
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 50
    chances = np.array([[float(row[f"p_{d}"]) for d in range(10)] for row in rows])
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-5)
    assert [int(row["class"]) for row in rows] == chances.argmax(1).tolist()

    code, out, err = fewjoule("export", adapted, "--to", "onnx", "-o", tmp_path / "m.onnx")
    assert code == 0, err
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    x = (np.load(new / "task0.npz")["x"] / np.float32(255)).astype(np.float32)
    (scores,) = session.run(None, {"x": x})
    loaded = read_model(adapted)
    np.testing.assert_allclose(scores, loaded.model.apply(loaded.vector, jnp.asarray(x)), atol=1e-5)
    shares = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(shares / shares.sum(1, keepdims=True), chances, atol=1e-5)

    code, out, err = fewjoule(
        "evaluate",
        meta,
        new,
        "--steps",
        "0,50",
        "--learning-rate",
        0.1,
        "-o",
        tmp_path / "eval.csv",
        "--cdf",
        tmp_path / "cdf.csv",
    )
    assert code == 0, err
    assert "CDF: share of tasks with accuracy after 50 steps" in out
    assert (tmp_path / "eval.csv").read_text().startswith("task,steps,loss,accuracy\ntask0,0,")
    assert (tmp_path / "cdf.csv").read_text().strip().endswith(",1.0")

    code, out, err = fewjoule("show", adapted)
    assert code == 0, err
    assert "mlp:784-8-8-10" in out
    assert "chosen_by validation" in out
    code, out, _ = fewjoule("show", adapted, "--json")
    assert json.loads(out)["adapted"]["samples"] == 50


def sinusoids(folder: Path, amplitudes: tuple[float, ...] = (2, 6)) -> None:
    folder.mkdir(exist_ok=True)
    x = np.linspace(-5, 5, 30)
    for a in amplitudes:
        np.savez(folder / f"a{a:g}.npz", x=x, y=a * np.sin(x))


QUICK = ("--model", "mlp:1-8-1", "--local-steps", 20, "--set", "rounds=2", "--set", "local_steps=2")


@pytest.mark.slow
def test_settings_come_from_a_study_file_and_flags_win(fewjoule: Command, tmp_path: Path) -> None:
    study = tmp_path / "mine.toml"
    study.write_text('[model]\nspec = "mlp:1-4-1"\ninit = "he"\n[local]\nmax_steps = 7\n[energy]\nlink = "wifi"\n')
    sinusoids(tmp_path / "agents")
    train = ("train", tmp_path / "agents", "--study", study, "--method", "average")

    def card(*flags: object) -> dict[str, Any]:
        code, _, err = fewjoule(*train, "-o", tmp_path / "m", "--force", *flags)
        assert code == 0, err
        found = read_header(tmp_path / "m").card
        assert found is not None
        return found

    own = card()
    assert (own["model"], own["local_training"]["max_steps"], own["link"]) == ("mlp:1-4-1", 7, "wifi")
    own = card("--model", "mlp:1-5-1", "--local-steps", 9, "--link", "lte")
    assert (own["model"], own["local_training"]["max_steps"], own["link"]) == ("mlp:1-5-1", 9, "lte")
    study.write_text('[model]\nspec = "mlp:1-4-1"\nspeck = 1\n')
    code, _, err = fewjoule(*train, "-o", tmp_path / "n")
    assert code == 2
    assert "mine.toml: unknown key 'speck' in [model]; did you mean 'spec'?" in err
    study.write_text("[local]\nmax_steps = 7\n")
    code, _, err = fewjoule(*train, "-o", tmp_path / "n")
    assert code == 2
    assert "mine.toml has no [model]" in err


@pytest.mark.slow
def test_a_method_that_needs_held_out_samples_gets_them(fewjoule: Command, tmp_path: Path) -> None:
    sinusoids(tmp_path / "agents")
    common = ("train", tmp_path / "agents", "--model", "mlp:1-4-1", "--method", "maml", "-o", tmp_path / "m")
    code, _, err = fewjoule(*common, "--validation", 0)
    assert code == 2
    assert "the method needs held-out samples" in err
    assert "--validation 0.2" in err
    code, out, err = fewjoule(*common, "--local-steps", 5, "--local-learning-rate", 1e9)
    assert code == 2
    assert "a2.npz: local training diverged at learning rate 1e+09; lower --local-learning-rate" in err
    assert ["a2.npz", "24", "6"] in [line.split()[:3] for line in out.splitlines()]
    assert not (tmp_path / "m").exists()


def test_trial_32_huge_inputs_are_to_be_scaled(fewjoule: Command, tmp_path: Path) -> None:
    x = np.linspace(1, 3e5, 30)[:, None]
    (tmp_path / "agents").mkdir()
    np.savez(tmp_path / "agents" / "a.npz", x=x, y=np.sin(x))
    code, _, err = fewjoule(
        "train", tmp_path / "agents", "--model", "mlp:1-1", "--local-steps", 50, "-o", tmp_path / "m"
    )
    assert code == 2
    assert (
        "a.npz: local training diverged at learning rate 0.01; the inputs reach 3e+05, so scale them to about 1 (--div"
        in err
    )


@pytest.mark.slow
def test_a_report_stands_beside_the_controls(fewjoule: Command, tmp_path: Path) -> None:
    sinusoids(tmp_path / "agents")
    sinusoids(tmp_path / "new", (3, 4, 5))
    run = tmp_path / "run"
    command = ("train", tmp_path / "agents", *QUICK, "-o", tmp_path / "m", "--run", run, "--steps", "0,1")
    code, _, err = fewjoule(*command)
    assert code == 2
    assert "--run and --tasks go together" in err
    code, _, err = fewjoule(*command, "--tasks", tmp_path / "new")
    assert code == 2
    assert "a3.npz has no held-out samples" in err
    assert "say how many to adapt on by shots (--shots)" in err
    assert not run.exists()
    code, out, err = fewjoule(*command, "--tasks", tmp_path / "new", "--shots", 10)
    assert code == 0, err
    assert f"report: {run / 'report.html'}" in out
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["methods"]) == {"fedavg", "average", "local", "random"}
    assert summary["tasks"] == 3
    rows = (run / "evaluation.csv").read_text().splitlines()
    assert len(rows) == 1 + 4 * 3 * 2
    # the run starts from the very models that the command trained, so its meta-model is the command's
    np.testing.assert_allclose(
        read_model(run / "meta" / "fedavg-0.safetensors").vector, read_model(tmp_path / "m").vector, atol=1e-5
    )
    assert "<html" in (run / "report.html").read_text()


def test_trial_27_train_says_that_its_start_is_worth_nothing(fewjoule: Command, tmp_path: Path) -> None:
    sinusoids(tmp_path / "agents")
    code, out, err = fewjoule(
        "train", tmp_path / "agents", "--model", "mlp:1-8-1", "--method", "random", "-o", tmp_path / "m"
    )
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("WARNING: this meta-model is ")]
    assert "no better than a constant: loss" in line
    card = read_header(tmp_path / "m").card
    assert card is not None
    assert [f"WARNING: this meta-model is {remark}; {SEE_CHOOSING}" for remark in card["remarks"]] == [line]
    x = np.linspace(-5, 5, 30)
    assert card["worth"]["constant"] == pytest.approx(np.mean([np.var(a * np.sin(x)) for a in (2, 6)]), rel=1e-4)


def test_a_study_that_nothing_judges_names_no_report(fewjoule: Command, tmp_path: Path) -> None:
    sinusoids(tmp_path / "agents")
    (tmp_path / "s.toml").write_text(
        f'name = "own"\nseeds = [0]\n[family]\nkind = "files"\nfolder = "{tmp_path / "agents"}"\n[model]\n'
        'spec = "mlp:1-8-1"\n[local]\nmax_steps = 50\n[[methods]]\nname = "average"\nmethod = "average"\n'
    )
    code, out, err = fewjoule("run", tmp_path / "s.toml", "--out", tmp_path / "run")
    assert code == 0, err
    assert "diverged" not in out
    assert "report" not in out
    assert f"run folder: {tmp_path / 'run'}; no page, since the study names no new tasks" in out
    assert "agents' loss after 10 steps" in out


@pytest.mark.slow
def test_a_folder_of_tasks_is_adapted_to_as_one_by_one(fewjoule: Command, tmp_path: Path) -> None:
    meta = trained(fewjoule, tmp_path)
    new = tmp_path / "new"
    new.mkdir()
    x = np.linspace(-2, 2, 9)
    np.savez(new / "few.npz", x=x[:4], y=np.sin(x[:4]), x_test=x, y_test=np.sin(x))
    np.savez(new / "many.npz", x=x, y=2 * np.sin(x))
    code, _, err = fewjoule("adapt", meta, new, "--steps", 3, "--learning-rate", 0.05, "--meter", "operations")
    assert code == 0, err
    rows = list(csv.DictReader((tmp_path / "new.adapted" / "tasks.csv").open()))
    assert [(row["task"], row["samples"]) for row in rows] == [("few", "4"), ("many", "9")]
    assert rows[1]["held-out loss after 3"] == ""
    for row in rows:
        code, _, err = fewjoule(
            "adapt", meta, new / f"{row['task']}.npz", "--steps", 3, "--learning-rate", 0.05, "--meter", "operations",
            "-o", tmp_path / row["task"],
        )  # fmt: skip
        assert code == 0, err
        alone = read_model(tmp_path / row["task"])
        here = read_model(tmp_path / "new.adapted" / f"{row['task']}.safetensors")
        np.testing.assert_allclose(here.vector, alone.vector, atol=1e-6)
        assert here.card["adapted"].keys() == alone.card["adapted"].keys()
        if row["task"] == "many":  # the others are padded to as many samples
            assert here.card["energy"][-1]["joules"] == pytest.approx(alone.card["energy"][-1]["joules"])
        assert float(row["loss after 3"]) == pytest.approx(alone.card["adapted"]["loss"], rel=1e-4)
    assert float(rows[0]["held-out loss after 3"]) == pytest.approx(
        read_model(tmp_path / "few").card["adapted"]["test_loss"], rel=1e-4
    )
    # nothing is written over it, and nothing at all where a task diverges
    assert "exists" in fewjoule("adapt", meta, new)[2]
    before = sorted(tmp_path.rglob("*"))
    code, _, err = fewjoule("adapt", meta, new, "--learning-rate", 1e30, "-o", tmp_path / "wild")
    assert code == 2
    assert "fine-tuning diverged on 2 of 2 tasks (few, many) within 10 steps of 1e+30; lower --learning-rate" in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_inputs_are_standardised_alike_by_every_command(fewjoule: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "agents").mkdir()
    raw = 3e5 + 1e4 * rng.normal(size=(2, 20, 2)).astype(np.float32)
    for i, x in enumerate(raw):
        np.savez(tmp_path / "agents" / f"a{i}.npz", x=x, y=(i + 1) * (x[:, 0] - 3e5) / 1e4)
    meta = tmp_path / "meta"
    net = ("--model", "mlp:2-4-1", "--method", "average", "--local-steps", 50)
    train = ("train", tmp_path / "agents", *net, "-o", meta)
    code, _, err = fewjoule(*train, "--standardise")
    assert code == 0, err
    loaded = read_model(meta)
    flat = raw.reshape(-1, 2).astype(float)
    np.testing.assert_allclose(loaded.card["reading"]["mean"], flat.mean(0), rtol=1e-9)
    np.testing.assert_allclose(loaded.card["reading"]["scale"], flat.std(0), rtol=1e-9)

    new = tmp_path / "agents" / "a0.npz"
    assert fewjoule("adapt", meta, new, "--steps", 2, "-o", tmp_path / "adapted")[0] == 0
    adapted = read_model(tmp_path / "adapted")
    expected = adapted.model.apply(adapted.vector, jnp.asarray((raw[0] - flat.mean(0)) / flat.std(0), jnp.float32))
    code, out, err = fewjoule("predict", tmp_path / "adapted", new)
    assert code == 0, err
    np.testing.assert_allclose([float(line) for line in out.splitlines()[1:]], expected[:, 0], atol=1e-2)

    code, out, err = fewjoule("export", tmp_path / "adapted", "-o", tmp_path / "graph.onnx")
    assert code == 0, err
    assert "it standardises its inputs itself" in out
    session = onnxruntime.InferenceSession(str(tmp_path / "graph.onnx"))
    np.testing.assert_allclose(session.run(None, {"x": raw[0]})[0], expected, atol=2e-2)

    write_model(tmp_path / "agents" / "a1.safetensors", mlp([2, 4, 1]), np.zeros(17))
    code, _, err = fewjoule(*train[:-1], tmp_path / "other", "--standardise")
    assert code == 2
    assert "a1.safetensors was trained on inputs as they are; leave standardise" in err


def test_trial_32_many_agents_fill_no_screen(fewjoule: Command, tmp_path: Path) -> None:
    sinusoids(tmp_path / "agents", tuple(range(1, 41)))
    code, out, err = fewjoule(
        "train", tmp_path / "agents", "--model", "mlp:1-1", "--method", "random", "-o", tmp_path / "m"
    )
    assert code == 0, err
    assert "... and 20 more agents, 1200 samples in all" in out
    assert ", ... and 28 more; seeds: 0" in out
    assert len(out.splitlines()) < 45


def test_local_models_are_not_trained_where_the_method_needs_none(fewjoule: Command, tmp_path: Path) -> None:
    sinusoids(tmp_path / "agents")
    code, out, err = fewjoule("train", tmp_path / "agents", *QUICK, "--set", "start=random", "-o", tmp_path / "m")
    assert code == 0, err
    assert "no local models are needed" in out
    card = read_header(tmp_path / "m").card
    assert card is not None
    assert "pretraining" not in {row["phase"] for row in card["energy"]}
    assert card["alignment"] is None


def test_text_classes_are_predicted_by_name(fewjoule: Command, tmp_path: Path) -> None:
    card = {"reading": {"target": "state", "classes": ["dry", "wet"], "columns": ["humidity"]}}
    write_model(tmp_path / "m", logistic(1, 2), [-9.0, 9.0, 0.0, 0.0], card)
    (tmp_path / "in.csv").write_text("humidity\n-1\n1\n")
    code, out, err = fewjoule("predict", tmp_path / "m", tmp_path / "in.csv")
    assert code == 0, err
    assert [line.split(",")[0] for line in out.splitlines()] == ["class", "dry", "wet"]
    assert out.startswith("class,p_dry,p_wet\n")


def trained(fewjoule: Command, tmp_path: Path) -> Path:
    sinusoids(tmp_path / "agents")
    write_model(tmp_path / "meta", mlp([1, 8, 1]), np.full(25, 0.1), {"reading": {"target": "y"}})
    return tmp_path / "meta"


def model_of_another_width(folder: Path) -> None:
    write_model(folder / "a2.safetensors", mlp([2, 8, 1]), np.zeros(33))


def unknown_tensor(folder: Path) -> None:
    save_file(
        {"0.weight": np.zeros((8, 1), np.float32), "0.wobble": np.zeros(8, np.float32)}, folder / "a2.safetensors"
    )


def cut_model(folder: Path) -> None:
    write_model(folder / "whole", mlp([1, 8, 1]), np.zeros(25))
    (folder / "a2.safetensors").write_bytes((folder / "whole").read_bytes()[:-4])


def pickled_model(folder: Path) -> None:
    (folder / "a2.safetensors").write_bytes(pickle.dumps({"0.weight": [1.0]}))


def huge_header(folder: Path) -> None:
    with (folder / "a2.safetensors").open("wb") as file:
        file.write((3 * 10**9).to_bytes(8, "little") + b"{")
        file.truncate(3 * 10**9 + 100)


def no_agents(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def two_widths(folder: Path) -> None:
    np.savez(folder / "a9.npz", x=np.zeros((3, 2)), y=np.zeros(3))


def two_targets(folder: Path) -> None:
    np.savez(folder / "a9.npz", x=np.zeros(3), y=np.zeros(3, int))


def a_nan(folder: Path) -> None:
    np.savez(folder / "a9.npz", x=np.array([0, np.nan]), y=np.zeros(2))


def no_target(folder: Path) -> None:
    (folder / "a9.csv").write_text("x,z\n1,2\n")


BAD = [
    (no_agents, "agents holds no agents"),
    (two_widths, "a9.npz has inputs of shape [2]"),
    (two_targets, "a9.npz has targets that are whole numbers"),
    (a_nan, "a9.npz: x must be finite"),
    (no_target, "a9.csv has no column 'y'"),
    (model_of_another_width, "a2.safetensors: the model is mlp:1-8-1, the file holds mlp:2-8-1"),
    (unknown_tensor, "a2.safetensors: unknown tensor name '0.wobble'"),
    (cut_model, "a2.safetensors is truncated"),
    (pickled_model, "a2.safetensors is a pickle"),
    (huge_header, "a2.safetensors: its header claims 3000000000 bytes"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_bad_input_is_one_line_and_leaves_nothing(
    spoil: Callable[[Path], None], message: str, fewjoule: Command, tmp_path: Path
) -> None:
    sinusoids(tmp_path / "agents")
    spoil(tmp_path / "agents")
    (tmp_path / "out").mkdir()
    code, _, err = fewjoule(
        "train", tmp_path / "agents", *QUICK, "-o", tmp_path / "out" / "m", "--energy", tmp_path / "out" / "e.csv"
    )
    lines = [line for line in err.splitlines() if line.startswith("fewjoule: ")]
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]
    assert list((tmp_path / "out").iterdir()) == []


def test_nothing_is_overwritten_without_force(fewjoule: Command, tmp_path: Path) -> None:
    meta = trained(fewjoule, tmp_path)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    new = tmp_path / "agents" / "a2.npz"
    for command in (
        ("train", tmp_path / "agents", *QUICK, "-o", mine),
        ("adapt", meta, new, "-o", mine),
        ("predict", meta, new, "-o", mine),
        ("evaluate", meta, tmp_path / "agents", "--shots", 5, "-o", mine),
        ("export", meta, "-o", mine),
    ):
        code, _, err = fewjoule(*command)
        assert code == 2
        assert "exists and is not overwritten" in err
        assert mine.read_text() == "mine"
    assert fewjoule("predict", meta, new, "-o", mine, "--force")[0] == 0
    assert mine.read_text().startswith("y\n")


WRONG = [
    (
        ("train", "{agents}", "-o", "{out}", "--model", "mlp:1-8-1", "--method", "lean", "--set", "budget=1"),
        "'budget_joules'?",
    ),
    (("adapt", "{meta}", "{new}", "--steps", -1), "steps must be at least 0, got -1"),
    (("adapt", "{meta}", "{new}", "--choose", "luck"), "steps are chosen by leave-one-out or validation, not 'luck'"),
    (("adapt", "{meta}", "{new}", "--learning-rate", 1e30, "--steps", 3), "lower --learning-rate"),
    (("adapt", "{meta}", "{wide}"), "wide.npz: the samples have inputs of shape [3]"),
    (("adapt", "{new}", "{new}"), "a2.npz is a pickle or a zip archive"),
    (("predict", "{meta}", "{wide}"), "wide.npz has inputs of shape [3]"),
    (("predict", "{meta}", "{meta}x"), "does not exist"),
    (("evaluate", "{meta}", "{agents}"), "by shots (--shots)"),
    (("evaluate", "{meta}", "{agents}", "--steps", "a"), "--steps takes whole numbers"),
    (("export", "{meta}", "--to", "tflite"), "unknown target of --to 'tflite'"),
    (("show", "{new}"), "pickle or a zip archive"),
    (("train", "{agents}", "-o", "{out}"), "give it, as in --model mlp:1-40-40-1"),
    (("train", "{agents}", "-o", "{out}", "--model", "mlp:3-4-1"), "agents have inputs of shape [1]"),
    (("train", "{agents}", "-o", "{out}", "--method", "fedawg"), "did you mean 'fedavg'?"),
    (("train", "{agents}", "-o", "{out}", "--set", "rounds"), "--set takes NAME=VALUE"),
    (("train", "{agents}", "-o", "{out}.onnx"), "train writes safetensors, not out.onnx; then: fewjoule export"),
    (("train", "{agents}", "-o", "{out}", "--set", "round=3"), "did you mean 'rounds'?"),
    (("train", "{agents}", "-o", "{out}", *QUICK, "--align", "yes"), "align must be one of auto, always, never"),
    (("train", "{agents}", "-o", "{out}", *QUICK, "--link", "smoke"), "unknown link 'smoke'"),
    (("train", "{agents}", "-o", "{out}", *QUICK, "--set", "learning_rate=1e9"), "diverged"),
    (("adapt", "{meta}", "{new}", "--meter", "nonsense"), "unknown meter 'nonsense'; choose one of auto, cpu-time"),
    (("adapt", "{meta}", "{new}", "--device", "toaster"), "unknown device 'toaster'"),
    (("train", "{agents}", "-o", "{out}", *QUICK, "--meter", "nonsense"), "energy.meter"),
    (("train", "{agents}", "-o", "{out}", "--study", "{study}", "--method", "average"), "local must be a table, got 3"),
]


@pytest.mark.parametrize(("command", "message"), WRONG, ids=[" ".join(map(str, c[-2:])) for c, _ in WRONG])
def test_wrong_arguments_are_said_in_one_line(
    command: tuple[object, ...], message: str, fewjoule: Command, tmp_path: Path
) -> None:
    meta = trained(fewjoule, tmp_path)
    np.savez(tmp_path / "wide.npz", x=np.zeros((4, 3)), y=np.zeros(4))
    (tmp_path / "odd.toml").write_text("local = 3\n[model]\n")
    names = {
        "study": tmp_path / "odd.toml", "meta": meta,
        "new": tmp_path / "agents" / "a2.npz", "agents": tmp_path / "agents",
        "wide": tmp_path / "wide.npz", "out": tmp_path / "out",
    }  # fmt: skip
    before = sorted(tmp_path.rglob("*"))
    code, _, err = fewjoule(*(part.format(**names) if isinstance(part, str) else part for part in command))
    said = [line for line in err.splitlines() if line.startswith("fewjoule: ")]
    assert code == 2
    assert len(said) == 1
    assert message in said[0]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("key", "value"), [("agents", [3]), ("agents", "x"), ("energy", 5), ("energy", [[]]), ("link", ["paper"])]
)
def test_trial_20_a_card_of_the_wrong_types_is_one_line(
    key: str, value: object, fewjoule: Command, tmp_path: Path
) -> None:
    write_model(tmp_path / "m", mlp([1, 2]), np.zeros(4), {key: value})
    code, _, err = fewjoule("show", tmp_path / "m")
    assert code == 2
    assert f"{key} in its model card must be a" in err


@pytest.mark.parametrize("show", [show_summary, traffic_table])
@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', "[" * 100_000])
def test_trial_20_a_damaged_summary_is_one_line(show: Callable[[Path], Any], text: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(InputError, match=r"summary\.json"):
        show(tmp_path)


def test_the_installed_command_exits_with_2(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from fewjoule.cli import main; main()", "show", str(tmp_path / "none")]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        f"fewjoule: {tmp_path / 'none'} does not exist or is not a file; check the name."
    ]
