"""Kits: every fault is one line with its cure, before a site starts."""

import json
import shutil
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from fewjoule import InputError
from fewjoule.federation.authority import provision
from fewjoule.federation.federation_file import Federation, read_federation
from fewjoule.federation.kits import read_kit
from tests.federation.turned_clock import BEGIN, TurnedClock

CLINICS = Federation("clinics", "fl.example.org", 8443, ("north", "south"))
GOOD = 'name = "clinics"\nagents = ["north", "south"]\n[server]\nname = "localhost"\nport = 8443\n'


def read(tmp_path: Path, text: str) -> Federation:
    path = tmp_path / "federation.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return read_federation(path)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD) == Federation("clinics", "localhost", 8443, ("north", "south"))
    assert read(tmp_path, f'{GOOD}also = ["10.0.0.5", "::1", "fl.internal"]').also == ("10.0.0.5", "::1", "fl.internal")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "clinics"', 'nane = "clinics"', "unknown key 'nane'; did you mean 'name'"),
        ('name = "clinics"', 'name = "a b"', "name must be letters, digits"),
        ('name = "clinics"', "", "name must be letters, digits.* got 'None'"),
        ('["north", "south"]', "[]", "agents must be a list of 1 to 1000 names"),
        ('["north", "south"]', '"north"', "agents must be a list of 1 to 1000 names"),
        ('["north", "south"]', '["north", "north"]', "names must differ, also in small letters; 'north'"),
        ('["north", "south"]', '["north", "North"]', "names must differ, also in small letters; 'North'"),
        ('["north", "south"]', '["north", "../x"]', "an agent's name must be letters"),
        ('["north", "south"]', '["north", 5]', "an agent's name must be letters"),
        ('["north", "south"]', '["north", "a\\nb"]', r"an agent's name must be .* got 'a\\nb'"),
        ('["north", "south"]', '["north", "a\\u001b[2J"]', r"an agent's name must be .* got 'a\\x1b"),
        (
            '["north", "south"]',
            '["north", "Server"]',
            "none of server, operator, authority, renewed, all; got 'Server'",
        ),
        ('["north", "south"]', '["all"]', "none of server, operator, authority, renewed, all; got 'all'"),
        ("port = 8443", "port = 99999", "port must be a whole number from 1 to 65535, got '99999'"),
        ("port = 8443", "port = 0", "port must be a whole number from 1 to 65535"),
        ("port = 8443", "port = true", "port must be a whole number from 1 to 65535"),
        ("port = 8443", "prot = 8443", "in \\[server\\], unknown key 'prot'; did you mean 'port'"),
        ("[server]", "[serve]", "unknown key 'serve'"),
        ("[server]", "server = 5\n[x]", "unknown key 'x'"),
        ('name = "localhost"', 'name = "a/b"', "server.name must be a host name"),
        ('name = "localhost"', 'name = "10.0.0.256"', "server.name must be a host name or an address"),
        ('name = "localhost"', 'name = "fe80::1%eth0"', "server.name must be a host name or an address"),
        ("port = 8443", 'port = 8443\nalso = "x"', "server.also must be a list of host names"),
        ("port = 8443", 'port = 8443\nalso = ["x y"]', "server.also must be a list of host names"),
        ("[server]", "[server", "not a TOML file"),
        ("clinics", "clin\udcff", "not a TOML file"),
    ],
)
def test_a_mistake_is_named_with_its_cure(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read(tmp_path, GOOD.replace(old, new))
    assert str(caught.value).isprintable()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_federation(tmp_path / "none.toml")
    with pytest.raises(InputError, match="cannot be read"):
        read_federation(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of which nobody changes anything."""
    folder = tmp_path_factory.mktemp("made") / "kits"
    provision(CLINICS, folder, clock=TurnedClock())
    return folder


@pytest.fixture
def kits(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "kits")


def test_kits_are_private_and_whole(kits: Path) -> None:
    assert sorted(p.name for p in kits.iterdir()) == ["authority", "north", "operator", "server", "south"]
    for path in (kits, *kits.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    for role in ("server", "operator", "agent"):
        folder = kits / ("north" if role == "agent" else role)
        kit = read_kit(folder, role, at=BEGIN)
        assert kit.identity[:3] == (kit.facts.id, role, folder.name)
        assert kit.facts.agents == (() if role == "agent" else ("north", "south"))
        assert kit.address == "fl.example.org:8443"
        assert kit.warning is None
        assert (folder / "members.json").exists() == (role == "server")
        assert "PRIVATE" not in repr(kit)
    assert "fewjoule federation agent ." in (kits / "north" / "README.md").read_text()
    assert not list(kits.parent.glob(".*")), "something half-written was left"


def test_a_folder_in_use_is_not_touched(kits: Path) -> None:
    before = {p: p.read_bytes() for p in kits.rglob("*") if p.is_file()}
    with pytest.raises(InputError, match=r"exists and is not empty.*fewjoule federation add"):
        provision(CLINICS, kits)
    assert before == {p: p.read_bytes() for p in kits.rglob("*") if p.is_file()}


def test_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise InputError("disk full")

    monkeypatch.setattr("fewjoule.federation.authority.certificates.issue", full)
    with pytest.raises(InputError, match="disk full"):
        provision(CLINICS, tmp_path / "kits")
    assert not list(tmp_path.iterdir())


def test_an_address_with_colons_is_dialled_in_brackets(tmp_path: Path) -> None:
    provision(CLINICS._replace(host="::1"), tmp_path / "kits")
    assert read_kit(tmp_path / "kits" / "north").address == "[::1]:8443"


def test_a_kit_of_another_role_is_refused(kits: Path) -> None:
    with pytest.raises(InputError, match="is the kit of an agent, a server's kit is needed"):
        read_kit(kits / "north", "server", at=BEGIN)
    with pytest.raises(InputError, match=r"is not a kit: it has no fewjoule\.json"):
        read_kit(kits, at=BEGIN)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_trial_45_a_key_that_others_may_read_is_refused(kits: Path, mode: int) -> None:
    (kits / "north" / "key.pem").chmod(mode)
    with pytest.raises(InputError, match=r"key\.pem: a private key that others may read or change; run: chmod -R go= "):
        read_kit(kits / "north", at=BEGIN)


def test_a_folder_that_others_may_enter_is_refused(kits: Path) -> None:
    (kits / "north").chmod(0o750)
    with pytest.raises(InputError, match="others may read or change; run: chmod"):
        read_kit(kits / "north", at=BEGIN)


def test_trial_41_the_end_is_announced_and_then_said(kits: Path) -> None:
    north, end = kits / "north", BEGIN + timedelta(days=365)
    assert read_kit(north, at=end - timedelta(days=30, seconds=1)).warning is None
    warning = read_kit(north, at=end - timedelta(days=30)).warning
    assert (
        warning == "the certificate of north ends on 2028-01-01, in 30 days; renew it: fewjoule federation renew north"
    )
    assert read_kit(north, at=end - timedelta(seconds=1)).warning is not None
    with pytest.raises(InputError, match=r"certificate of north ended on 2028-01-01 00:00 UTC; renew it .*, copy cert"):
        read_kit(north, at=end)


def test_a_clock_that_is_behind_is_named(kits: Path) -> None:
    read_kit(kits / "north", at=BEGIN - timedelta(minutes=59))  # a little is allowed for
    with pytest.raises(InputError, match=r"valid from 2026-12-31 23:00 UTC, and .* clock says 2026.*set the"):
        read_kit(kits / "north", at=BEGIN - timedelta(minutes=61))


@pytest.mark.parametrize("file", ["fewjoule.json", "ca.pem", "certificate.pem", "key.pem"])
def test_a_damaged_or_missing_file_is_named(kits: Path, file: str) -> None:
    path = kits / "north" / file
    good = path.read_bytes()
    for bad in (b"", b"\0\xff" * 50, good[: len(good) // 2], b"[" * 100_000, b"x" * 2_000_000):
        path.write_bytes(bad)
        with pytest.raises(InputError, match=f"{file}|files of two kits") as caught:
            read_kit(kits / "north", at=BEGIN)
        assert len(str(caught.value)) < 500
    path.unlink()
    with pytest.raises(InputError, match=f"no {file}"):
        read_kit(kits / "north", at=BEGIN)


@pytest.mark.parametrize(
    ("key", "value"),
    [("role", "root"), ("name", "../x"), ("id", "x"), ("port", 70000), ("port", "8443"), ("host", ""), ("more", 1)],
)
def test_facts_are_checked(kits: Path, key: str, value: object) -> None:
    path = kits / "north" / "fewjoule.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(InputError, match=f"is damaged \\({key}: "):
        read_kit(kits / "north", at=BEGIN)


def test_mixed_kits_are_refused(kits: Path, tmp_path: Path) -> None:
    provision(CLINICS, tmp_path / "other", clock=TurnedClock())

    def mixed(source: Path, *files: str) -> str:
        folder = shutil.copytree(kits / "north", tmp_path / "mixed")
        for file in files:
            shutil.copy(source / file, folder)
        with pytest.raises(InputError) as caught:
            read_kit(folder, at=BEGIN)
        shutil.rmtree(folder)
        return str(caught.value)

    assert "certificate is of agent south, fewjoule.json of agent north" in mixed(kits / "south", "certificate.pem")
    assert "key.pem does not belong to certificate.pem" in mixed(kits / "south", "key.pem")
    other = tmp_path / "other" / "north"
    assert "no root in ca.pem signed certificate.pem" in mixed(other, "ca.pem")
    assert "in another federation" in mixed(other, "certificate.pem", "key.pem")
