"""Who belongs to a federation: the signed list, and adding, renewing and removing without making every kit again."""

import json
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from fewjoule import InputError
from fewjoule.federation import certificates
from fewjoule.federation.authority import Authority, provision
from fewjoule.federation.kits import Kit, read_kit
from fewjoule.federation.members import FILE, LARGEST, Members, accept, read_members
from tests.federation.test_kits import CLINICS
from tests.federation.turned_clock import BEGIN, TurnedClock


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def authority(tmp_path: Path, clock: TurnedClock) -> Authority:
    provision(CLINICS, tmp_path / "kits", clock=clock)
    return Authority(tmp_path / "kits", clock)


def kit(authority: Authority, name: str) -> Kit:
    return read_kit(authority.folder / name, at=authority.clock())


def refusal(authority: Authority, of: Kit) -> str | None:
    return read_members(kit(authority, "server")).refuses(of.identity, authority.clock())


def test_only_the_list_counts(authority: Authority, tmp_path: Path) -> None:
    for name in ("server", "operator", "north", "south"):
        assert refusal(authority, kit(authority, name)) is None
    members, north = read_members(kit(authority, "server")), kit(authority, "north").identity
    assert members.agents == ("north", "south")
    stranger = north._replace(serial=north.serial + 1)
    assert members.refuses(stranger, BEGIN) == "the certificate of agent north was replaced by a new one"
    assert members.refuses(north._replace(name="west"), BEGIN) == "agent west is not a member (any more)"
    assert members.refuses(north._replace(role="operator"), BEGIN) == "operator north is not a member (any more)"
    assert members.refuses(north._replace(federation="0" * 32), BEGIN) == "agent north is of another federation"
    end = BEGIN + timedelta(days=365)
    assert members.refuses(north, end - timedelta(seconds=1)) is None
    assert members.refuses(north, end) == "the certificate of agent north ended on 2028-01-01 00:00 UTC"


def test_added_agents_leave_the_others_as_they_are(authority: Authority) -> None:
    before = (authority.folder / "north" / "certificate.pem").read_bytes()
    assert authority.add(["west", "east"]) == [authority.folder / "west", authority.folder / "east"]
    assert read_members(kit(authority, "server")).agents == ("north", "south", "west", "east")
    assert kit(authority, "operator").facts.agents == ("north", "south", "west", "east")
    assert refusal(authority, kit(authority, "west")) is None
    assert (authority.folder / "north" / "certificate.pem").read_bytes() == before
    assert read_members(kit(authority, "server")).version == 2
    for name, words in [
        ("West", "'West' is there already"), ("all", "none of server, operator"), ("a b", "must be letters"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=words):
            authority.add(["fine", name])
    (authority.folder / "fine").mkdir()
    with pytest.raises(InputError, match="fine exists and is not overwritten"):
        authority.add(["fine"])
    assert read_members(kit(authority, "server")).version == 2


def test_trial_41_a_removed_agent_is_refused(authority: Authority) -> None:
    north = kit(authority, "north")
    authority.remove(["north"])
    assert refusal(authority, north) == "agent north is not a member (any more)"
    assert refusal(authority, kit(authority, "south")) is None
    with pytest.raises(InputError, match="'north' is not a member of federation clinics; there are operator, server"):
        authority.remove(["north"])
    with pytest.raises(InputError, match=r"operator cannot be removed.*renew operator --new-key"):
        authority.remove(["operator"])
    shutil.rmtree(authority.folder / "north")
    authority.add(["north"])  # the name may come back, the old kit may not
    assert refusal(authority, kit(authority, "north")) is None
    assert refusal(authority, north) == "the certificate of agent north was replaced by a new one"


def test_trial_41_a_renewal_keeps_key_and_root(authority: Authority, clock: TurnedClock) -> None:
    old = kit(authority, "north")
    clock.pass_days(340)
    assert authority.due() == ["server", "operator", "north", "south"]
    assert authority.renew(["north"]) == [authority.folder / "north"]
    assert authority.due() == ["server", "operator", "south"]
    new = kit(authority, "north")
    assert (new.key, new.ca) == (old.key, old.ca)
    assert new.ends == BEGIN + timedelta(days=340 + 365)
    assert refusal(authority, old) is None, "the old certificate counts until it ends: the new one may be on its way"
    assert refusal(authority, new) is None
    clock.pass_days(25)
    authority.renew(["server"])
    assert refusal(authority, old) == "the certificate of agent north was replaced by a new one"
    assert refusal(authority, new) is None


def test_a_kit_that_was_moved_gets_public_files_alone(authority: Authority, tmp_path: Path) -> None:
    moved = Path(shutil.move(authority.folder / "north", tmp_path / "elsewhere"))
    (folder,) = authority.renew(["north"])
    assert folder == authority.folder / "renewed" / "north"
    assert sorted(p.name for p in folder.iterdir()) == ["ca.pem", "certificate.pem"]
    for path in folder.iterdir():
        shutil.copy(path, moved)
    assert refusal(authority, read_kit(moved, "agent", at=BEGIN)) is None


def test_a_new_key_ends_the_old_certificate_at_once(authority: Authority) -> None:
    old = {name: kit(authority, name) for name in ("server", "operator", "north")}
    authority.renew(list(old), new_keys=True)
    for name, before in old.items():
        new = kit(authority, name)
        assert new.key != before.key
        assert refusal(authority, new) is None
        assert refusal(authority, before) == f"the certificate of {before.facts.role} {name} was replaced by a new one"


def test_an_ended_certificate_can_be_renewed(authority: Authority, clock: TurnedClock) -> None:
    clock.pass_days(400)
    authority.renew(["server"])
    authority.renew(["north"])
    assert refusal(authority, kit(authority, "north")) is None
    with pytest.raises(InputError, match="certificate of south ended"):
        kit(authority, "south")


def test_trial_41_ten_years_and_more_by_renewing_alone(
    authority: Authority, clock: TurnedClock, tmp_path: Path
) -> None:
    """The root ends too. Whoever is renewed once a year never notices."""
    away = tmp_path / "away"
    for _ in range(12):
        clock.pass_days(350)
        if away.exists():  # this agent gets everything half a month later than the others
            for path in (authority.folder / "renewed" / "north").iterdir():
                shutil.copy(path, away)
        else:
            shutil.move(authority.folder / "north", away)
        north = read_kit(away, "agent", at=clock())
        authority.renew(["server", "operator", "north", "south"])
        members = read_members(kit(authority, "server"))
        assert members.refuses(north.identity, clock()) is None
        assert len(list(authority.folder.glob("authority/root-??.pem"))) <= 1 + (clock() - BEGIN).days // 3000
        server = kit(authority, "server")
        chain = certificates.x509.load_pem_x509_certificates(server.certificate)
        known = certificates.x509.load_pem_x509_certificates(north.ca)
        links = [certificates._issued(one, root) for one in chain for root in known]
        assert any(links), "the agent no longer knows its server"
    assert len(list(authority.folder.glob("authority/root-??.pem"))) == 2


def test_a_server_elsewhere_takes_a_list_by_number_and_signature(authority: Authority, tmp_path: Path) -> None:
    folder = Path(shutil.move(authority.folder / "server", tmp_path / "elsewhere"))
    server, first = read_kit(folder, at=BEGIN), authority.list_file().read_bytes()
    authority.remove(["south"])
    assert read_members(server).agents == ("north", "south")
    second = authority.list_file().read_bytes()
    assert accept(server, second).agents == ("north",)
    assert read_members(server).version == 2
    for again in (first, second):
        with pytest.raises(InputError, match="only a newer one is taken"):
            accept(server, again)
    assert (folder / FILE).stat().st_mode & 0o777 == 0o600


def test_a_list_that_the_authority_did_not_sign_is_refused(authority: Authority, tmp_path: Path) -> None:
    server = kit(authority, "server")
    before = (authority.folder / "server" / FILE).read_bytes()
    table = json.loads(before)
    table["list"]["version"] = 7
    provision(CLINICS, tmp_path / "other", clock=authority.clock)
    other = Authority(tmp_path / "other", authority.clock)
    forged = other.members().model_copy(update={"federation": authority.id, "version": 7}).sign(other._roots())
    unsigned = json.dumps({**table, "signatures": []}).encode()
    for content in (json.dumps(table).encode(), forged, unsigned):
        with pytest.raises(InputError, match="was not signed by this federation's authority"):
            accept(server, content)
    damaged = (b"", b"{}", b"[]", b"5", before[:-9], b"[" * 100_000, b'{"list": {}, "signatures": []}', b"\xff")
    for content in damaged:
        with pytest.raises(InputError, match="is damaged"):
            accept(server, content)
    with pytest.raises(InputError, match=f"at most {LARGEST} bytes"):
        accept(server, b" " * (LARGEST + 1))
    foreign = authority.members().model_copy(update={"federation": "0" * 32, "version": 7}).sign(authority._roots())
    with pytest.raises(InputError, match="of another federation"):
        accept(server, foreign)
    assert (authority.folder / "server" / FILE).read_bytes() == before


def test_a_list_changed_on_disk_is_refused(authority: Authority) -> None:
    path = authority.folder / "server" / FILE
    path.write_text(path.read_text().replace("south", "north"))
    with pytest.raises(InputError, match=r"members\.json: the list of members was not signed"):
        read_members(kit(authority, "server"))
    path.unlink()
    with pytest.raises(InputError, match=r"has no members\.json"):
        read_members(kit(authority, "server"))


def test_an_authority_put_back_from_an_old_copy_forgets_no_removal(authority: Authority) -> None:
    old = authority.list_file().read_bytes()
    authority.remove(["south"])
    authority.list_file().write_bytes(old)
    with pytest.raises(InputError, match="has number 2, the authority's only 1: an older copy was put back; copy "):
        authority.add(["west"])
    shutil.copy(authority.folder / "server" / FILE, authority.list_file())
    authority.add(["west"])
    assert read_members(kit(authority, "server")).agents == ("north", "west")


def test_thousand_agents_fit_in_a_list(authority: Authority) -> None:
    (one, *_) = authority.members().members
    many = tuple(one.model_copy(update={"name": "a" * 63, "serial": "f" * 40}) for _ in range(4 * 1000))
    content = authority.members().model_copy(update={"members": many}).sign(authority._roots())
    assert len(Members.open(content, kit(authority, "server").ca).members) == 4000


def test_settings_of_lifetimes_are_checked(authority: Authority) -> None:
    for days in (0, -1, 1826):
        with pytest.raises(InputError, match="certificates last up to 1825 days, got"):
            authority.renew(["north"], lasts=timedelta(days=days))


@pytest.mark.parametrize("file", ["federation.json", FILE, "root-01-key.pem", "issued/north.pem"])
def test_a_missing_or_damaged_file_of_the_authority_is_named(authority: Authority, file: str) -> None:
    path = authority.folder / "authority" / file
    path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="damaged"):
        Authority(authority.folder, authority.clock).renew(["north"])
    path.unlink()
    with pytest.raises(InputError, match=f"{file} cannot be read .*; put back a copy of the authority"):
        Authority(authority.folder, authority.clock).renew(["north"])


def test_a_folder_without_authority_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no authority"):
        Authority(tmp_path)
