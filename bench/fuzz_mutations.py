"""Damage for the fuzzer: bytes, JSON and TOML trees, and CSV texts, each with something wrong in a few places.

Everything is drawn from the `random.Random` that is handed in, so that an input can be made again from its number.
"""

import csv
import datetime
import io
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import tomli_w

# Texts that stand for what no library writes; they are put in after writing.
DEEP, LONG, INFINITE = "@deep@", "@long@", "@infinite@"
NUMBERS = [0, 1, -1, 2.5, True, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**64, 2**70]
NUMBERS += [-(2**63), 10**300, 1e308, -1e308, 5e-324, 1e-30, LONG, INFINITE]
TEXTS = ["", " ", "a\nb", "a\rb", "\0", "\x1b[31m", "é", "\ud800", "x" * 3000, "nan", "inf", "1e999", "../.."]
TEXTS += ["[/red]", "-1", "mlp:1-1", "mlp:9999-9999-9999-9", "mlp:1-" + "9" * 400, "conv4:28x28x1-5-64", "a,b"]
TEXTS += ["None", "{}", "%s", "=1+1"]
TREES = [[], {}, [[]], [{}], {"a": 1}, {"": {}}, [0] * 300, ["a"], [1, "a", {}], DEEP]
DAYS = [datetime.date(1, 1, 1), datetime.time(1), datetime.datetime(9999, 12, 31)]


def damage(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """The bytes after one to three accidents or attacks; `others` are whole files to take pieces from."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(BYTE_DAMAGE)(rng, data, others)
    return data


def _flip(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _overwrite(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """An odd number of 1 to 8 bytes, where a length or a count may stand; starts are likelier than what follows."""
    at = rng.randrange(min(len(data), rng.choice((40, 300, 10**9))) or 1)
    width = rng.choice((1, 1, 2, 4, 8))
    value = rng.choice((0, 1, -1, 2 ** (8 * width - 1) - 1, 2 ** (8 * width - 1), rng.getrandbits(8 * width)))
    number = (value % 2 ** (8 * width)).to_bytes(width, rng.choice(("little", "big")))
    return data[:at] + number + data[at + width :]


def _cut(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _insert(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice((rng.randbytes(rng.randint(1, 16)), bytes(rng.randint(1, 64)))) + data[at:]


def _delete(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.randint(1, 16) :]


def _double(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.randint(1, 64)
    return data[: at + length] + data[at : at + length] * rng.choice((1, 1, 2, 100)) + data[at + length :]


def _splice(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _digit(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Another digit, or many, where a text has one."""
    digits = [i for i, byte in enumerate(data[:4000]) if 48 <= byte <= 57]
    if not digits:
        return data
    at = rng.choice(digits)
    return data[:at] + rng.choice((b"-", b"0", b"9", b"999999999", b"1e400", b".")) + data[at + 1 :]


BYTE_DAMAGE = (_flip, _flip, _overwrite, _overwrite, _cut, _insert, _delete, _double, _splice, _digit)


def damage_json(rng: Random, text: str | bytes) -> bytes:
    """JSON with wrong values, missing, new or renamed keys, deep nesting, endless numbers."""
    tree = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 4))):
        tree = _damage_tree(rng, tree, lambda: rng.choice((None, *NUMBERS, *TEXTS, *TREES)))
    written = json.dumps(tree).replace(json.dumps(DEEP), "[" * 20_000 + "]" * 20_000)
    return _endless(written).encode("utf-8", "surrogatepass")


def damage_toml(rng: Random, text: str, read: Callable[[str], Any]) -> bytes:
    """As `damage_json`, for TOML; where the tree cannot be written at all, another one."""
    while True:
        tree = read(text)
        for _ in range(rng.choice((1, 1, 2, 4))):
            tree = _damage_tree(rng, tree, lambda: rng.choice((*NUMBERS, *TEXTS, *TREES, *DAYS)))
        if isinstance(tree, dict):
            written = tomli_w.dumps(tree).replace(f'"{DEEP}"', "[" * 2000 + "]" * 2000)
            return _endless(written).encode("utf-8", "surrogatepass")


def _endless(text: str) -> str:
    return text.replace(f'"{LONG}"', "9" * 5000).replace(f'"{INFINITE}"', "1e999")


def _damage_tree(rng: Random, tree: Any, value: Callable[[], Any]) -> Any:
    if not isinstance(tree, dict | list) or not tree or rng.random() < 0.04:
        return value()
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key, what = rng.choice(keys), rng.random()
    if isinstance(tree, list):
        rest = [tree[:key], tree[key + 1 :]]
        middle = [] if what < 0.1 else [tree[key]] * 2 if what < 0.2 else [_damage_tree(rng, tree[key], value)]
        return [*rest[0], *middle, *rest[1]]
    if what < 0.1:
        return {k: v for k, v in tree.items() if k != key}
    if what < 0.2:
        return {**tree, rng.choice((*TEXTS[:9], *keys)): value()}
    if what < 0.25:
        return {(rng.choice(TEXTS) if k == key else k): v for k, v in tree.items()}
    return {**tree, key: _damage_tree(rng, tree[key], value)}


def damage_csv(rng: Random, text: str) -> bytes:
    """A table with odd cells, cells too many or too few, lines twice or gone, columns of one name, other separators."""
    rows = [list(row) for row in csv.reader(io.StringIO(text))]
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(rows)) if rows and rng.random() < 0.8 else 0
        row = rows[at] if rows else []
        column = rng.randrange(len(row) + 1)
        what = rng.randrange(10)
        if what < 6:
            row[column : column + 1] = [str(rng.choice((*NUMBERS, *TEXTS)))]
        elif what == 6:
            row[column : column + 1] = row[:1] * rng.randint(0, 3)
        elif what == 7:
            rows[at : at + 1] = [row] * rng.choice((0, 2, 5))
        elif what == 8:
            row[:] = row[:1] * len(row)
        else:
            rows[at : at + 1] = [row, []]
    out = io.StringIO()
    quoting = rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    separator = rng.choice((",", ",", ",", ",", ";", "\t"))
    csv.writer(out, delimiter=separator, quoting=quoting, lineterminator=rng.choice(("\n", "\r\n"))).writerows(rows)
    written = out.getvalue().replace(LONG, "9" * 5000).replace(INFINITE, "1e999")
    return written.encode("utf-8", "surrogatepass")
