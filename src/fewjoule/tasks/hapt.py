"""Thirty people's phones: six activities from windows of a phone's motion sensors, one person an agent.

Data: J. Reyes-Ortiz, L. Oneto, A. Sama, X. Parra, D. Anguita, "Smartphone-Based Recognition of Human Activities and
Postural Transitions" (UCI Machine Learning Repository, data set 341), the raw recordings: acceleration in g and, where
its files are there, angular velocity in rad/s, three axes each, 50 Hz. A window is 128 samples (2.56 s), the next one
begins 64 samples later, and no window leaves the segment of one activity. Inputs are [128 x channels] flat, channels
last; the acceleration as it is (gravity tells how the phone is held), the angular velocity too.

Neighbouring windows share half of their samples, so samples to be tested on are never neighbours of those to learn
from. Users 1..21 are the agents, users 22..30 the new devices.
"""

import hashlib
import lzma
import re
import tarfile
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fewjoule.errors import InputError, positive_int
from fewjoule.tasks.originals import read_checked
from fewjoule.tasks.samples import Agents, Pair, Samples, Tasks, generator_of_tasks, make_agents, make_tasks, stack

ARCHIVE = "hapt_acc_txt.tar.xz"  # the 61 accelerometer files, repacked
ARCHIVE_DIGEST = "076b242d8db704301d2f6792b8afb99224bf5795189e9843dbd8c9b98e87d101"
LABELS_DIGEST = "1949f448935cf0b5f914405b7111c65e7cdc0427ab517710a04ece7d7dec934e"
ACCELERATION_DIGEST = "5586da26619d2fa5551b121abd2c32a9feeeda027777816cfa3168c1dfb6bb42"
"""SHA-256 of the 61 accelerometer files one after the other, in the order of their names."""
RECORDING = re.compile(r"(?:.*/)?(acc|gyro)_exp(\d\d)_user(\d\d)\.txt")
RECORDINGS = 61
LARGEST_RECORDING_BYTES = 8 * 2**20
MOST_ROWS = 100_000  # of a recording: more than half an hour
ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")
WINDOW, STEP = 128, 64
LAST_AGENT = 21
LOUDNESS = 20.0  # g^-1: amplitudes well above a twentieth of gravity count by their logarithm
CURE = (
    "get the data set from archive.ics.uci.edu/dataset/341, unpack it, and give the folder that has RawData in it to "
    "load(folder) (--data-dir)."
)

Values = np.ndarray[Any, np.dtype[np.float32]]
Rows = np.ndarray[Any, Any]


class Hapt(NamedTuple):
    """All windows, in the order of time: inputs [n, 128 x channels], activity 0..5, user, and where each begins.

    `begins` counts samples over all recordings, so that windows overlap where it differs by less than 128.
    """

    x: Values
    y: Rows
    user: Rows
    begins: Rows
    source: str


def load(folder: str | Path | None = None, *, gyroscope: bool | None = None) -> Hapt:
    """The recordings in a folder: RawData of the original, or the archive of its accelerometer files and labels.txt.

    The gyroscope is used where its files are there (None), always, or never.
    """
    if folder is None:
        raise InputError(f"the phones' recordings are not downloaded by themselves; {CURE}")
    folder = Path(folder)
    places = [p for p in (folder, folder / "RawData", folder / "hapt", folder / "hapt/RawData") if p.is_dir()]
    place = next((p for p in places if (p / "labels.txt").is_file()), None)
    if place is None:
        raise InputError(f"{folder} has no labels.txt; {CURE}")
    labels = np.array(read_checked(place / "labels.txt", LABELS_DIGEST).split(), np.int64).reshape(-1, 5)
    texts = _archived(place / ARCHIVE) if (place / ARCHIVE).is_file() else _unpacked(place)
    acceleration = {key[1:]: text for key, text in sorted(texts.items()) if key[0] == "acc"}
    if len(acceleration) != RECORDINGS:
        raise InputError(f"{place} has {len(acceleration)} accelerometer files, the original {RECORDINGS}; {CURE}")
    digest = hashlib.sha256()
    for text in acceleration.values():
        digest.update(text)
    if digest.hexdigest() != ACCELERATION_DIGEST:
        raise InputError(f"{place}: the accelerometer files are not the originals: their SHA-256 sum differs; {CURE}")
    rotation = {key[1:]: text for key, text in texts.items() if key[0] == "gyro"}
    if gyroscope and not rotation:
        raise InputError(f"{place} has no gyroscope files (gyro_exp01_user01.txt, ...); {CURE}")
    return cut(labels, acceleration, {} if gyroscope is False else rotation)


def cut(labels: Rows, acceleration: dict[Any, bytes], rotation: dict[Any, bytes]) -> Hapt:
    """Windows out of recordings by (experiment, user). `labels` are rows of experiment, user, activity, first, last."""
    if rotation and rotation.keys() != acceleration.keys():
        raise InputError(
            f"{len(rotation)} gyroscope files do not match {len(acceleration)} of the accelerometer; {CURE}"
        )
    x, y, user, begins, before = [], [], [], [], 0
    for (experiment, person), text in sorted(acceleration.items()):
        signal = _numbers(text, f"acc_exp{experiment:02d}")
        if rotation:
            turning = _numbers(rotation[experiment, person], f"gyro_exp{experiment:02d}")
            if len(turning) != len(signal):
                raise InputError(f"gyro_exp{experiment:02d} has {len(turning)} rows, its acceleration {len(signal)}.")
            signal = np.concatenate([signal, turning], 1)
        mine = labels[(labels[:, 0] == experiment) & (labels[:, 1] == person) & (labels[:, 2] <= len(ACTIVITIES))]
        for activity, first, last in mine[:, 2:].tolist():
            for start in range(first - 1, min(last, len(signal)) - WINDOW + 1, STEP):
                x.append(signal[start : start + WINDOW].ravel())
                y.append(activity - 1)
                user.append(person)
                begins.append(before + start)
        before += len(signal) + WINDOW
    sensors = "accelerometer and gyroscope" if rotation else "accelerometer only"
    source = f"{len(x)} windows of {len(set(user))} people's phones (HAPT), {sensors}"
    return Hapt(np.array(x, np.float32), np.array(y), np.array(user), np.array(begins), source)


def spectrum(data: Hapt, bins: int = 16) -> Hapt:
    """The same windows as, for each channel, its mean and the logarithm of its `bins` lowest frequencies' amplitudes.

    Where in a step a window begins no longer matters: [channels x (1 + bins)], the means first.
    """
    positive_int("bins", bins)
    if bins > WINDOW // 2:
        raise InputError(f"bins must be at most {WINDOW // 2}, half a window, got {bins}.")
    signal = data.x.reshape(len(data.x), WINDOW, -1)
    mean = signal.mean(1)
    amplitudes = np.abs(np.fft.rfft(signal - mean[:, None], axis=1))[:, 1 : bins + 1] / WINDOW
    x = np.concatenate([mean, np.log1p(LOUDNESS * amplitudes).reshape(len(mean), -1)], 1)
    return data._replace(x=x.astype(np.float32))


def agents(data: Hapt, *, held_out: float = 0.0, validation: float = 0.0) -> tuple[Agents, Samples | None]:
    """One agent per user up to 21, named `user 01`, ..., and its held-out windows (None where there are none).

    Of each activity the last share `held_out` in time is held out, and of the others the last share `validation` are
    validation samples. Windows that share samples with a later part are left out.
    """
    users = _users(data, new=False)
    names = [f"user {user:02d}" for user in users]
    ends = [(1 - held_out) * (1 - validation), 1 - held_out, 1.0]
    train, kept, held = zip(*(_in_time(data, user, ends) for user in users), strict=True)
    tests = stack(held, names=names) if held_out else None
    return make_agents(train, kept, names=names), tests


def new_tasks(count: int, data: Hapt, *, shots: int = 5, seed: int = 0) -> Tasks:
    """`count` draws of people nobody knows, in turn: `shots` windows of each activity to adapt on, the rest to judge.

    Windows that share samples with those to adapt on are left out.
    """
    rng = generator_of_tasks(seed, count=count, shots=shots)
    users, support, query = _users(data, new=True), [], []
    for i in range(count):
        rows = np.flatnonzero(data.user == users[i % len(users)])
        chosen = []
        for activity in range(len(ACTIVITIES)):
            own = rows[data.y[rows] == activity]
            if shots >= len(own):
                raise InputError(f"shots must be below {len(own)}, the windows that a person has, got {shots}.")
            chosen.append(rng.permutation(own)[:shots])
        picked = np.concatenate(chosen)
        apart = np.abs(data.begins[rows][:, None] - data.begins[picked]).min(1) >= WINDOW
        support.append(_pair(data, picked))
        query.append(_pair(data, rows[apart]))
    return make_tasks(support, query)


def _users(data: Hapt, new: bool) -> list[int]:
    users = [int(user) for user in np.unique(data.user) if (user > LAST_AGENT) == new]
    if not users:
        raise InputError(f"the recordings have no user {'above' if new else 'up to'} {LAST_AGENT}; {CURE}")
    return users


def _in_time(data: Hapt, user: int, ends: list[float]) -> list[Pair]:
    """A user's windows in as many parts as there are `ends`, which are shares of each activity's windows."""
    parts: list[list[Rows]] = [[] for _ in ends]
    for activity in range(len(ACTIVITIES)):
        rows = np.flatnonzero((data.user == user) & (data.y == activity))
        cuts = [round(end * len(rows)) for end in ends[:-1]]
        for part, piece, cut in zip(parts, np.split(rows, cuts), [*cuts, len(rows)], strict=True):
            later = data.begins[rows[cut:]].min(initial=2**62)
            part.append(piece[data.begins[piece] + WINDOW <= later])
    return [_pair(data, np.concatenate(part)) for part in parts]


def _pair(data: Hapt, rows: Rows) -> Pair:
    return data.x[rows], data.y[rows].astype(np.int32)


def _archived(path: Path) -> dict[Any, bytes]:
    """The recordings in a tar archive, read by name and never unpacked."""
    try:
        with tarfile.open(fileobj=BytesIO(read_checked(path, ARCHIVE_DIGEST)), mode="r:xz") as archive:
            found = {}
            for member in archive:
                if member.isfile() and (key := _key(member.name)):
                    found[key] = _limited(archive.extractfile(member), member.name, member.size)
            return found
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}); {CURE}") from error


def _unpacked(place: Path) -> dict[Any, bytes]:
    found = {}
    for path in sorted(place.iterdir()):
        if path.is_file() and (key := _key(path.name)):
            with path.open("rb") as file:
                found[key] = _limited(file, str(path), path.stat().st_size)
    return found


def _key(name: str) -> tuple[str, int, int] | None:
    match = RECORDING.fullmatch(name)
    return (match[1], int(match[2]), int(match[3])) if match else None


def _limited(file: IO[bytes] | None, name: str, size: int) -> bytes:
    if file is None or size > LARGEST_RECORDING_BYTES:
        raise InputError(f"{name} has {size} bytes, far more than a recording; {CURE}")
    return file.read()


def _numbers(text: bytes, name: str) -> Values:
    try:
        values = np.array(text.split(), np.float32).reshape(-1, 3)
    except ValueError as error:
        raise InputError(f"{name} is not a recording of three numbers a line ({error}); {CURE}") from error
    if len(values) > MOST_ROWS or not np.isfinite(values).all():
        raise InputError(f"{name} is not a recording: it has {len(values)} rows or a number that is none; {CURE}")
    return values
