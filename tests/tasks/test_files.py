"""Agents and tasks from a user's files: what is read, and what is refused with the file's name and a cure."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fewjoule.errors import InputError
from fewjoule.tasks.files import read_agents, read_inputs, read_task, read_tasks
from fewjoule.tasks.format import DataFormat, format_of_card
from fewjoule.tasks.readers import read_table

X = np.arange(12.0).reshape(6, 2)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def save(path: Path, x: object = X, y: object = LABELS, **more: object) -> None:
    np.savez(path, allow_pickle=True, x=np.asarray(x), y=np.asarray(y), **{k: np.asarray(v) for k, v in more.items()})


def test_npz_csv_and_parquet_of_the_same_samples_are_the_same_agent(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    folders = [tmp_path / kind for kind in ("npz", "csv", "parquet")]
    for folder in folders:
        folder.mkdir()
    save(folders[0] / "a.npz")
    rows = "\n".join(f"{a},{label},{b}" for (a, b), label in zip(X, LABELS, strict=True))
    (folders[1] / "a.csv").write_text("left,kind,right\n" + rows)
    table = pyarrow.table({"left": X[:, 0], "kind": LABELS, "right": X[:, 1]})
    pyarrow.parquet.write_table(table, folders[2] / "a.parquet")
    for folder in folders:
        read = read_agents(folder, DataFormat(target="kind"))
        assert read.agents.names == ("a",)
        assert read.format.task == "classification"
        assert read.why == "the targets are whole numbers"
        np.testing.assert_array_equal(read.agents.data.train.x[0], X)
        np.testing.assert_array_equal(read.agents.data.train.y[0], LABELS)


def test_text_targets_become_the_same_numbers_for_all_agents(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", y=["cat", "dog"] * 3)
    save(tmp_path / "b.npz", y=["bird", "dog"] * 3)
    read = read_agents(tmp_path)
    assert read.format.classes == ("bird", "cat", "dog")
    np.testing.assert_array_equal(read.agents.data.train.y, [[1, 2] * 3, [0, 2] * 3])
    save(tmp_path / "new.npz", y=["fish"] * 6)
    with pytest.raises(InputError, match=r"new.npz: unknown class 'fish'; the classes are bird, cat, dog"):
        read_task(tmp_path / "new.npz", read.format)


def test_the_task_is_told_by_type_or_by_flag(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", y=LABELS.astype(float))
    assert read_agents(tmp_path).format.task == "regression"
    as_classes = read_agents(tmp_path, DataFormat(task="classification"))
    np.testing.assert_array_equal(as_classes.agents.data.train.y[0], LABELS)
    save(tmp_path / "b.npz")
    assert read_agents(tmp_path, DataFormat(task="regression")).agents.data.train.y.shape == (2, 6, 1)


def test_columns_may_stand_in_another_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("p,q,y\n1,2,0.5\n")
    (tmp_path / "b.csv").write_text("y,q,p\n0.5,2,1\n")
    read = read_agents(tmp_path)
    np.testing.assert_array_equal(read.agents.data.train.x, [[[1, 2]], [[1, 2]]])
    (tmp_path / "in.csv").write_text("q,p\n8,9\n")
    np.testing.assert_array_equal(read_inputs(tmp_path / "in.csv", read.format), [[9, 8]])


def test_held_out_samples_come_from_the_file_or_from_a_share(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", x_test=X[:2] + 100, y_test=LABELS[:2])
    save(tmp_path / "b.npz")
    data = read_agents(tmp_path, validation=0.3).agents.data
    np.testing.assert_array_equal(data.train.mask.sum(1), [6, 4])
    np.testing.assert_array_equal(data.validation.mask.sum(1), [2, 2])
    both = np.concatenate([data.train.x[1, :4], data.validation.x[1, :2]])
    np.testing.assert_array_equal(both[both[:, 0].argsort()], X)


def test_inputs_are_scaled_the_same_everywhere(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", x=np.full((6, 4), 255, np.uint8), x_test=np.full((1, 4), 51, np.uint8), y_test=[1])
    format = DataFormat(divide_by=255)
    data = read_agents(tmp_path, format).agents.data
    np.testing.assert_allclose(data.train.x, 1)
    np.testing.assert_allclose(data.validation.x, 0.2)
    np.testing.assert_allclose(read_inputs(tmp_path / "a.npz", format), 1)


def test_tasks_are_split_by_shots_per_class(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", x=np.arange(30), y=np.repeat([0, 1, 2], 10))
    save(tmp_path / "b.npz", x=np.arange(9), y=[0] * 9, x_test=[1], y_test=[0])
    tasks, names, files, format = read_tasks(tmp_path, DataFormat(), shots=4)
    assert names == ("a", "b")
    assert files == (tmp_path / "a.npz", tmp_path / "b.npz")
    assert format.task == "classification"
    np.testing.assert_array_equal(np.bincount(np.asarray(tasks.support.y[0])), [4, 4, 4])
    np.testing.assert_array_equal(tasks.query.mask.sum(1), [18, 1])
    assert not set(np.asarray(tasks.support.x[0]).ravel()) & set(np.asarray(tasks.query.x[0][:18]).ravel())
    with pytest.raises(InputError, match=r"a.npz has no held-out samples .* by shots"):
        read_tasks(tmp_path, DataFormat())
    with pytest.raises(InputError, match="lower shots"):
        read_tasks(tmp_path, DataFormat(), shots=10)


def nothing(folder: Path) -> None:
    (folder / "notes.md").write_text("no samples here")


def two_widths(folder: Path) -> None:
    save(folder / "a.npz")
    save(folder / "b.npz", x=np.ones((6, 3)))


def two_kinds(folder: Path) -> None:
    save(folder / "a.npz")
    save(folder / "b.npz", y=LABELS + 0.5)


def a_nan(folder: Path) -> None:
    save(folder / "b.npz", x=np.where(X == 6, np.nan, X))


def a_nan_target(folder: Path) -> None:
    save(folder / "b.npz", y=[0.0, np.nan, 1, 2, 3, 4])


def too_large(folder: Path) -> None:
    save(folder / "b.npz", x=X * 1e300)


def no_target(folder: Path) -> None:
    (folder / "b.csv").write_text("p,q\n1,2\n")


def no_y(folder: Path) -> None:
    np.savez(folder / "b.npz", x=X)


def no_x(folder: Path) -> None:
    np.savez(folder / "b.npz", data=X)


def a_pickle(folder: Path) -> None:
    (folder / "b.npz").write_bytes(pickle.dumps({"x": 1}))


def a_pickle_by_name(folder: Path) -> None:
    save(folder / "a.npz")
    (folder / "b.pt").write_bytes(b"PK")


def objects(folder: Path) -> None:
    save(folder / "b.npz", y=np.array([{}] * 6, object))


def cut(folder: Path) -> None:
    save(folder / "b.npz")
    (folder / "b.npz").write_bytes((folder / "b.npz").read_bytes()[:300])


def not_npz(folder: Path) -> None:
    (folder / "b.npz").write_text("hello")


def lengths(folder: Path) -> None:
    save(folder / "b.npz", y=[1, 2])


def empty(folder: Path) -> None:
    save(folder / "b.npz", x=np.zeros((0, 2)), y=np.zeros(0))


def negative(folder: Path) -> None:
    save(folder / "b.npz", y=LABELS - 1)


def a_year(folder: Path) -> None:
    save(folder / "b.npz", y=LABELS + 2019)


def twins(folder: Path) -> None:
    save(folder / "b.npz")
    (folder / "b.csv").write_text("x,y\n1,1\n")


def lonely_model(folder: Path) -> None:
    save(folder / "a.npz")
    (folder / "b.safetensors").write_bytes(b"")


def ragged(folder: Path) -> None:
    (folder / "b.csv").write_text("p,y\n1,2\n1\n")


def hole(folder: Path) -> None:
    (folder / "b.csv").write_text("p,y\n1,2\n,3\n")


def words(folder: Path) -> None:
    (folder / "b.csv").write_text("p,y\n1,2\nred,3\n")


def twice(folder: Path) -> None:
    (folder / "b.csv").write_text("p,p,y\n1,2,3\n")


def no_bytes(folder: Path) -> None:
    (folder / "b.csv").write_text("")


def latin(folder: Path) -> None:
    (folder / "b.csv").write_bytes("p,y\né,1\n".encode("latin-1"))


def bad_parquet(folder: Path) -> None:
    (folder / "b.parquet").write_bytes(b"PAR1")


def half_test(folder: Path) -> None:
    save(folder / "b.npz", x_test=X)


def other_test(folder: Path) -> None:
    save(folder / "b.npz", x_test=np.ones((2, 5)), y_test=[0, 1])


REFUSED = [
    (nothing, "holds no agents: no file ends in .npz"),
    (two_widths, r"b.npz has inputs of shape \[3\], .*a.npz of \[2\]"),
    (two_kinds, "b.npz has targets that are real numbers, .*a.npz whole numbers; .*--task"),
    (a_nan, r"b.npz: x must be finite, got NaN or infinity in 1 of 6 samples \(first: sample 3\); drop"),
    (a_nan_target, "b.npz: y must be finite"),
    (too_large, "b.npz: x must be finite"),
    (no_target, r"b.csv has no column 'y' \(it has p, q\); name the target by target \(--target\)"),
    (no_y, "b.npz has no targets"),
    (no_x, r"b.npz has no array named x \(it has data\)"),
    (a_pickle, "b.npz is a pickle, which is never loaded"),
    (a_pickle_by_name, "b.pt is a pickle, which is never loaded"),
    (objects, "b.npz holds pickled objects, which are never loaded"),
    (cut, "b.npz is truncated or damaged"),
    (not_npz, "b.npz is not an npz file"),
    (lengths, "b.npz: x and y must have the same length, got 6 and 2"),
    (empty, "b.npz has no samples"),
    (negative, "b.npz: classes must be 0 or more, got -1"),
    (a_year, "b.npz: whole-number targets are classes, and 2021 .*--task regression"),
    (twins, "have the same name"),
    (lonely_model, "b.safetensors has no samples beside it"),
    (ragged, "b.csv, line 3: 1 cells"),
    (hole, "b.csv, line 3: column 'p' is empty"),
    (words, "b.csv, line 3: column 'p' must be numbers, got 'red'"),
    (twice, "b.csv: the column 'p' is there more than once"),
    (no_bytes, "b.csv is empty"),
    (latin, "b.csv is not a CSV file in UTF-8"),
    (bad_parquet, "b.parquet is truncated or damaged"),
    (half_test, "b.npz: x_test and y_test go together"),
    (other_test, r"b.npz: x_test has inputs of shape \[5\]"),
]


@pytest.mark.parametrize(("spoil", "message"), REFUSED, ids=[spoil.__name__ for spoil, _ in REFUSED])
def test_bad_files_are_refused_by_name(spoil: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    spoil(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        read_agents(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_complaints(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        read_agents(tmp_path / "none")
    with pytest.raises(InputError, match="does not exist"):
        read_table(tmp_path / "none.npz")
    save(tmp_path / "a.npz")
    with pytest.raises(InputError, match="unknown task 'regresion'; did you mean 'regression'"):
        read_agents(tmp_path, DataFormat(task="regresion"))
    with pytest.raises(InputError, match=r"divide_by \(--divide-by\) must be a finite number above 0"):
        read_agents(tmp_path, DataFormat(divide_by=0))
    with pytest.raises(InputError, match="validation must be a share"):
        read_agents(tmp_path, validation=1)


def test_a_csv_may_have_blank_lines_and_one_long_text(tmp_path: Path) -> None:
    """A complaint still names the line of the file, and equal texts are kept once, however long."""
    rows = ["1,cat", "", f"2,{'x' * 100_000}", *["3, dog "] * 5000]
    (tmp_path / "a.csv").write_text("p,y\n" + "\n".join(rows))
    x, y = read_table(tmp_path / "a.csv").train
    assert x.shape == (5002, 1)
    assert y.nbytes == 8 * 5002
    assert read_agents(tmp_path).format.classes == ("cat", "dog", "x" * 100_000)
    (tmp_path / "a.csv").write_text("p,y\n" + "\n".join([*rows, "4"]))
    with pytest.raises(InputError, match=r"a.csv, line 5005: 1 cells"):
        read_agents(tmp_path)


def test_standardising_takes_all_agents_and_no_held_out_samples(tmp_path):
    rng = np.random.default_rng(0)
    sizes, x = (5, 20), rng.normal(3, 2, size=(25, 3))
    x[:, 2] = 7  # never changes
    first, second = x[:5], x[5:]
    save(tmp_path / "a.npz", x=first, y=np.zeros(5), x_test=np.full((2, 3), 1e6), y_test=np.zeros(2))
    save(tmp_path / "b.npz", x=second, y=np.zeros(20), x_test=np.full((2, 3), 1e6), y_test=np.zeros(2))
    found = read_agents(tmp_path, DataFormat(divide_by=2), standardise=True)
    np.testing.assert_allclose(found.format.mean, x.mean(0) / 2, rtol=1e-6)
    np.testing.assert_allclose(found.format.scale, [*x[:, :2].std(0) / 2, 1], rtol=1e-6)
    data = np.concatenate([found.agents.data.train.x[i, :n] for i, n in enumerate(sizes)])
    np.testing.assert_allclose(data.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(data.std(0), [1, 1, 0], atol=1e-5)
    np.testing.assert_allclose(read_inputs(tmp_path / "a.npz", found.format), data[:5], atol=1e-6)
    save(tmp_path / "b.npz", x=np.zeros((4, 2)), y=np.zeros(4))
    with pytest.raises(InputError, match=r"b.npz has inputs of shape \[2\], the model takes 3 columns"):
        read_inputs(tmp_path / "b.npz", found.format)


def test_images_are_not_standardised(tmp_path):
    save(tmp_path / "a.npz", x=np.zeros((5, 2, 2)), y=np.zeros(5))
    with pytest.raises(InputError, match=r"got inputs of shape \[2, 2\]; scale images by divide_by"):
        read_agents(tmp_path, standardise=True)


@pytest.mark.parametrize(
    "reading",
    [{"mean": [1.0]}, {"mean": [1.0], "scale": [0.0]}, {"mean": ["x"], "scale": [1]}, {"mean": 3, "scale": 3},
     {"mean": [float("nan")], "scale": [1.0]}, {"scale": [1.0]}, {"mean": [1e39], "scale": [1.0]}],
)  # fmt: skip
def test_a_card_with_other_numbers_than_inputs_is_refused(reading):
    with pytest.raises(InputError, match="must be one number for each input; write the model card again"):
        format_of_card({"reading": reading}, "regression")
