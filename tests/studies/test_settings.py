"""Studies are checked whole before work begins, and every mistake is named with its cure."""

import pytest

from fewjoule.cli.options import named_values
from fewjoule.errors import InputError
from fewjoule.studies.prepare import prepare
from fewjoule.studies.settings import BUILT_IN, load_study

SMALL = """
name = "small"
seeds = [0]
[family]
kind = "sinusoid"
amplitudes = [1, 2]
[model]
spec = "mlp:1-4-1"
[[methods]]
name = "average"
method = "average"
"""


def write(folder, text):
    path = folder / "study.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["sinusoid", "mnist"])
def test_the_papers_studies_hold_the_papers_settings_and_the_mandatory_controls(name):
    study = load_study(name, full=True)
    methods = {entry.name: entry.build() for entry in study.methods}
    assert methods["meta_backward"].rounds == 50
    assert dict(methods["meta_backward"].settings)["learning_rate"] == 0.01
    assert dict(methods["meta_backward"].settings)["batch"] == 100
    for x in (50, 500):
        for y in (50, 500):
            settings = dict(methods[f"imaml-{x}-{y}"].settings)
            assert (settings["rounds"], settings["inner_steps"]) == (x, y)
            assert (settings["regularisation"], settings["cg_steps"]) == (2.0, 5)
    assert {"average", "local", "random", "fedsgd", "fedavg-5x100", "reptile-50x50", "fomaml", "maml"} <= set(methods)
    assert study.build_model().size == {"sinusoid": 1761, "mnist": 6442}[name]
    assert study.evaluation.tasks == {"sinusoid": 500, "mnist": 100}[name]
    assert study.evaluation.shots == {"sinusoid": 40, "mnist": 10}[name]


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"sinusoid", "mnist"}))
@pytest.mark.parametrize("quick", [False, True])
def test_the_natural_studies_hold_the_mandatory_controls_and_judge_every_agent(name, quick):
    study = load_study(name, quick=quick)
    assert {"average", "local", "random", "fedavg", "lean", "answers"} <= {entry.name for entry in study.methods}
    assert study.evaluation.own_test > 0 or (name, quick) == ("omniglot", False)  # its net is too slow for that
    assert study.family.kind == study.name == name
    fedavg = next(entry for entry in study.methods if entry.name == "fedavg")
    assert fedavg.label == "FedAvg {rounds} x {local_steps}".format(**fedavg.settings)


@pytest.mark.parametrize("name", ["omniglot", "writers", "fashion"])
def test_without_data_and_network_one_line_says_how_to_get_them(name, tmp_path, monkeypatch):
    import pooch

    def refuse(url, **_):
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", refuse)
    monkeypatch.setenv("FEWJOULE_CACHE", str(tmp_path))
    for study, words in ((load_study(name), "could not be downloaded"), (load_study(name, data_dir="."), "not exist")):
        with pytest.raises(InputError, match=rf"{words}.*github\.com.*--data-dir") as caught:
            prepare(study)
        assert "\n" not in str(caught.value)


def test_a_folder_of_data_is_refused_where_no_study_reads_one(tmp_path):
    for source in ("sinusoid", write(tmp_path, SMALL)):
        with pytest.raises(InputError, match="--data-dir is for studies with data files"):
            load_study(source, data_dir=".")


def test_the_largest_corner_runs_only_when_asked_and_quick_leaves_more_out():
    names = {flag: {e.name for e in load_study("sinusoid", **{flag: True}).methods} for flag in ("quick", "full")}
    normal = {e.name for e in load_study("sinusoid").methods}
    large = {"imaml-50-500", "imaml-500-50", "imaml-500-500", "imaml-50-50-half-step", "ceiling"}
    assert names["full"] - normal == large
    assert load_study("sinusoid", full=True).evaluation.steps == [0, 1, 5, 10, 50]
    assert load_study("sinusoid").evaluation.steps == [0, 1, 5, 10]
    assert names["quick"] < normal
    assert {"meta_backward", "average", "fedsgd", "imaml-50-50"} <= names["quick"]


def test_overrides_reach_tables_and_methods():
    study = load_study(
        "sinusoid",
        settings={"evaluation.tasks": 7, "methods.meta_backward.rounds": 3, "energy.meter": "cpu-time"},
        seeds=[4],
    )
    assert study.evaluation.tasks == 7
    assert next(e for e in study.methods if e.name == "meta_backward").build().rounds == 3
    assert study.energy.meter == "cpu-time"
    assert study.seeds == [4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL.replace("seeds", "seed", 1), "unknown key 'seed'.*did you mean 'seeds'"),
        ("quik = 3\n" + SMALL, "unknown key 'quik'.*did you mean 'quick'"),
        (
            SMALL.replace("amplitudes", "amplitude"),
            r"family.*amplitudes is missing|unknown key 'amplitude' in \[family\]",
        ),
        (SMALL.replace("spec", "spek"), "spec is missing|unknown key 'spek'"),
        (SMALL.replace('method = "average"', 'method = "averge"'), "unknown method 'averge'; did you mean 'average'"),
        (SMALL.replace("[0]", "[0, 0]"), "seeds must differ"),
        (SMALL.replace("[0]", "[]"), "seeds"),
        (SMALL.replace("mlp:1-4-1", "mlq:1-4-1"), "unknown model 'mlq'; did you mean 'mlp'"),
        (SMALL + "rounds = 3\n", "unknown setting of method 'average': 'rounds'"),
        (SMALL + '[[methods]]\nname = "average"\nmethod = "average"\n', "got 'average' twice"),
        (SMALL + '[[methods]]\nname = "m"\nmethod = "fedsgd"\nround = 3\n', "did you mean 'rounds'"),
        (SMALL + '[[methods]]\nname = "m"\nmethod = "fedsgd"\nrounds = 0\n', "rounds must be at least 1, got 0"),
        (SMALL + '[[methods]]\nname = "../m"\nmethod = "fedsgd"\n', "methods"),
        (SMALL.replace("[model]", "[evaluation]\nheadline = 3\n[model]"), "headline must be one of"),
        (SMALL.replace("[model]", "[evaluation]\nsteps = [5, 1]\nheadline = 5\n[model]"), "must rise"),
        (SMALL.replace("[model]", '[energy]\nlink = "papr"\n[model]'), "unknown link 'papr'; did you mean 'paper'"),
        (SMALL.replace("[model]", '[energy]\ndevice = "toaster"\n[model]'), "unknown device 'toaster'"),
        (
            SMALL.replace("[model]", '[local]\noptimiser = "sdg"\n[model]'),
            "unknown optimiser 'sdg'; did you mean 'sgd'",
        ),
        (SMALL + "=", "not valid TOML"),
    ],
)
def test_a_wrong_study_file_is_refused_with_the_cure(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        load_study(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "sinsoid"}, "did you mean 'sinusoid'"),
        ({"source": "no.toml"}, "no.toml does not exist"),
        ({"source": "sinusoid", "quick": True, "full": True}, "not both"),
        ({"source": "sinusoid", "settings": {"evaluation.task": 3}}, "did you mean 'tasks'"),
        ({"source": "sinusoid", "settings": {"methods.meta_bakward.rounds": 3}}, "did you mean 'meta_backward'"),
        ({"source": "sinusoid", "data_dir": "x"}, "--data-dir is for studies with data files"),
    ],
)
def test_wrong_arguments_are_refused_with_the_cure(arguments, message):
    with pytest.raises(InputError, match=message):
        load_study(**arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL.replace("[[methods]]", "[[other]]").replace("seeds", "methods = [3]\nseeds", 1), "methods"),
        ("quick = 3\n" + SMALL, "quick must be a table of settings, got 3"),
        ("full = 3\n" + SMALL, "full must be a table of settings, got 3"),
        (SMALL + 'runs = ["x"]\n', "methods.average.runs"),
        (SMALL + f"[[methods]]\nname = 'm'\nmethod = 'fedsgd'\nrounds = {10**30}\n", "rounds must be at most"),
        (SMALL.replace("seeds = [0]", f"seeds = [{10**30}]"), "seeds"),
        (SMALL.replace("amplitudes = [1, 2]", 'amplitudes = "x"'), "family.amplitudes"),
        ("family = 3\n" + SMALL.replace("[family]", "[other]"), "family|other"),
    ],
)
def test_trial_20_wrong_types_in_a_study_file_are_one_line(tmp_path, text, message):
    for quick in (False, True):
        with pytest.raises(InputError, match=message) as caught:
            load_study(write(tmp_path, text), quick=quick)
        assert "\n" not in str(caught.value)


def test_trial_20_a_method_is_not_overwritten_by_a_number():
    with pytest.raises(InputError, match=r"methods.meta_backward is a method; name one of its settings"):
        load_study("sinusoid", settings={"methods.meta_backward": 5})


def test_trial_29_a_batch_of_all_samples_can_be_said():
    assert named_values(["batch=none", "rounds=3", "start=random"]) == {"batch": None, "rounds": 3, "start": "random"}
    study = load_study("sinusoid", settings={"methods.fedsgd.batch": None, "local.batch": None})
    assert study.local.batch is None
    assert dict(next(e for e in study.methods if e.name == "fedsgd").build().settings)["batch"] is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{SMALL}participation = 0\n", "greater than 0"),
        (f"{SMALL}participation = 0.5\n[federation]\n", "'average': participation is for simulated studies, got 0.5"),
    ],
)
def test_a_share_of_the_agents_is_for_simulated_rounds(tmp_path, text, told):
    with pytest.raises(InputError, match=told):
        load_study(write(tmp_path, text))
    assert load_study(write(tmp_path, f"{SMALL}participation = 0.5\n")).methods[0].participation == 0.5


def test_the_studies_of_real_federations_hold_the_controls_and_what_papers_are_compared_with():
    personal = {"average", "random", "fedavg", "fedrep", "ditto", "protonet", "lean", "answers", "invented"}
    episodic = {"protonet", "maml", "anil", "meta_sgd", "reptile"}
    for name, due in {"fashion": personal, "writers": personal, "hapt": personal, "omniglot": episodic}.items():
        assert due <= {entry.name for entry in load_study(name).methods}
        quick = {entry.name for entry in load_study(name, quick=True).methods}
        assert {"average", "random", "lean", "answers"} <= quick
    omniglot = {entry.name: entry for entry in load_study("omniglot").methods}
    assert all(omniglot[name].settings["ways"] and omniglot[name].participation < 1 for name in episodic)
