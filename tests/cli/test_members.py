"""The commands about members: what they print, and that a mistake is one line and exit code 2."""

import shutil
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from fewjoule import cli
from fewjoule.federation import certificates

FILE = 'name = "clinics"\nagents = ["north", "south"]\n[server]\nname = "fl.example.org"\nport = 8443\n'


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clinics.toml").write_text(FILE)

    def run(*words: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["fewjoule", "federation", *words])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        told = capsys.readouterr()
        assert (caught.value.code or 0) == code, told.err
        if code == 2:
            assert told.err.count("\n") == 1
        return told.err if code else told.out

    return run


def test_a_year_of_commands(call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("provision", "clinics.toml", "--days", "90").splitlines() == [
        "wrote kits/server", "wrote kits/operator", "wrote kits/north", "wrote kits/south",
        "keep kits/authority off the network, whoever has it can make kits; and keep a copy of it",
    ]  # fmt: skip
    assert "nothing to renew: the first certificate ends on" in call("renew")
    added = call("add", "west")
    assert added.startswith("wrote kits/west\n")
    assert "kits/server has list number 2" in added
    assert "removed south; a run that they take part in goes on by its absence policy" in call("remove", "south")
    listed = call("members")
    assert listed.startswith("federation clinics, server fl.example.org:8443, list number 3\n")
    assert "west" in listed
    assert "south" not in listed
    assert "warning" not in listed
    end = certificates.now() + timedelta(days=61)
    monkeypatch.setattr("fewjoule.federation.authority.Authority.__init__.__defaults__", (lambda: end,))
    monkeypatch.setattr("fewjoule.federation.certificates.now", lambda: end)
    assert call("members").count("warning: the certificate of") == 4
    shutil.move("kits/north", "moved")
    renewed = call("renew")
    assert renewed.splitlines()[:5] == [
        "wrote kits/server", "wrote kits/operator", "wrote kits/renewed/north", "wrote kits/west",
        "copy ca.pem and certificate.pem into the kits that are elsewhere; neither is secret",
    ]  # fmt: skip
    assert "warning" not in call("members")
    assert f"ends on {end + timedelta(days=90):%Y-%m-%d}" in call("members")


def test_mistakes_are_one_line(call) -> None:
    assert "no such file" in call("provision", "none.toml", code=2)
    assert "--days must be at least 1, got 0" in call("provision", "clinics.toml", "--days", "0", code=2)
    assert "certificates last up to 1825 days, got 5000" in call("provision", "clinics.toml", "--days", "5000", code=2)
    assert not Path("kits").exists()
    assert "kits holds no authority" in call("add", "west", code=2)
    assert "kits holds no authority" in call("members", code=2)
    call("provision", "clinics.toml")
    for words, told in {
        ("provision", "clinics.toml"): "kits exists and is not empty",
        ("add", "north"): "'north' is there already",
        ("add", "all"): "none of server, operator, authority, renewed, all; got 'all'",
        ("add", "a\nb"): "an agent's name must be letters",
        ("remove", "nobody"): "'nobody' is not a member of federation clinics; there are north, operator, server",
        ("remove", "server"): "server cannot be removed",
        ("renew", "nobody"): "'nobody' is not a member",
        ("renew", "north", "--all"): "give names or --all, not both",
        ("renew", "--all", "--new-key"): "name those",
        ("members", "--push", "--kit", "kits/north"): "kits/north is the kit of an agent, an operator's kit is needed",
    }.items():
        assert told in call(*words, code=2), words
    assert "list number 1\n" in call("members"), "a refused command changes nothing"
