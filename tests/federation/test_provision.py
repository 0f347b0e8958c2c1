"""Kits: what a mistake in the file says, and what a kit may do."""

import json
import stat
from pathlib import Path

import pytest

from fewjoule import InputError
from fewjoule.federation.nvflare.process import plain_line
from fewjoule.federation.nvflare.provision import Federation, read_federation
from fewjoule.federation.nvflare.site import MARK, read_kit

GOOD = 'name = "clinics"\nagents = ["north", "south"]\n[server]\nname = "localhost"\nport = 8443\n'


def read(tmp_path: Path, text: str) -> Federation:
    path = tmp_path / "federation.toml"
    path.write_text(text)
    return read_federation(path)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD) == Federation("clinics", "localhost", 8443, ("north", "south"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "clinics"', 'nane = "clinics"', "unknown key 'nane'; did you mean 'name'"),
        ('name = "clinics"', 'name = "a b"', "name must be letters, digits"),
        ('["north", "south"]', "[]", "agents must be a list of 1 to 1000 names"),
        ('["north", "south"]', '["north", "north"]', "agents' names must differ"),
        ('["north", "south"]', '["north", "../x"]', "an agent's name must be letters"),
        ('["north", "south"]', '["north", "all"]', "no agent may be called 'all'"),
        ('["north", "south"]', '["north", "so\\ruth"]', "an agent's name must be letters"),
        ('["north", "south"]', '["north", "server"]', "none of server, operator, authority"),
        ("port = 8443", "port = 99999", "port must be a whole number from 1 to 65535, got 99999"),
        ("port = 8443", "prot = 8443", "in \\[server\\], unknown key 'prot'; did you mean 'port'"),
        ("[server]", "[serve]", "unknown key 'serve'"),
        ('name = "localhost"', 'name = "a/b"', "server.name must be a host name"),
        ("[server]", "[server", "not a TOML file"),
    ],
)
def test_a_mistake_is_named_with_its_cure(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(tmp_path, GOOD.replace(old, new))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_federation(tmp_path / "none.toml")


@pytest.mark.slow  # those run with the extra installed
def test_kits_are_private_and_cut_down(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="needs the extra: pip install 'fewjoule[federation]'")
    from fewjoule.federation.nvflare.provision import provision

    federation = Federation("clinics", "localhost", 8443, ("north", "south"))
    kits = provision(federation, tmp_path / "kits")
    assert [kit.name for kit in kits] == ["server", "operator", "north", "south"]
    for path in (tmp_path / "kits").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    for site in ("server", "north"):
        local = tmp_path / "kits" / site / "local"
        rights = json.loads((local / "authorization.json").read_text())["permissions"]
        assert list(rights) == ["lead"]
        assert rights["lead"]["byoc"] == rights["lead"]["shell_commands"] == rights["lead"]["operate"] == "none"
        allowed = json.loads((local / "resources.json").read_text())["class_allow_list"]
        assert allowed == ["fewjoule.federation.nvflare.app.", "nvflare.collab.runtime."]
    assert "fewjoule federation agent ." in (tmp_path / "kits" / "north" / "README.md").read_text()
    with pytest.raises(InputError, match="has its kit already"):
        provision(federation, tmp_path / "kits")
    with pytest.raises(InputError, match="with port 8443, the file says 1"):
        provision(federation._replace(port=1, agents=("north", "south", "west")), tmp_path / "kits")
    # one more agent: the others keep their kits, the authority is the same
    before = (tmp_path / "kits" / "north" / "startup" / "client.crt").read_bytes()
    added = provision(federation._replace(agents=("north", "south", "west")), tmp_path / "kits")
    assert [kit.name for kit in added] == ["west"]
    assert (tmp_path / "kits" / "north" / "startup" / "client.crt").read_bytes() == before
    root = [(tmp_path / "kits" / name / "startup" / "rootCA.pem").read_bytes() for name in ("west", "server")]
    assert root[0] == root[1]
    with pytest.raises(InputError, match="is the kit of an agent, a server's kit is needed"):
        read_kit(tmp_path / "kits" / "north", "server")
    (tmp_path / "kits" / "north").chmod(0o755)
    with pytest.raises(InputError, match="others may read it; run: chmod"):
        read_kit(tmp_path / "kits" / "north")


def test_what_is_no_kit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a kit"):
        read_kit(tmp_path)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (f"2026 - x - INFO - {MARK}round 3", "round 3"),
        (
            "2026 - ClientManager - INFO - Client: New client north@10.0.0.1 joined. Sent token.",
            "agent north connected",
        ),
        ("2026 - Whatever - INFO - certificate loaded", None),
        ("2026 - JobRunner - ERROR - Failed to deploy app 'app': BYOC not permitted", "refused: Failed to deploy app"),
        (
            "I1115 x.cc:1] Handshake failed with error: PEER_DID_NOT_RETURN_A_CERTIFICATE",
            "refused: a connection without",
        ),
        ("I1115 x.cc:1] Handshake failed with error: CERTIFICATE_VERIFY_FAILED: self signed", "did not sign"),
        ("some noise", None),
    ],
)
def test_lines_for_people(raw: str, shown: str | None) -> None:
    line = plain_line(raw)
    assert (line is None) == (shown is None)
    assert shown is None or (line is not None and shown in line)
