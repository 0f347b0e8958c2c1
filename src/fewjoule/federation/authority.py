"""The authority of a federation: makes kits, adds, renews and removes members. Sites never need this module.

    KITS/authority/    federation.json, the roots with their keys, every member's newest certificate, the signed list
    KITS/NAME/         a kit, as long as it was not moved to its machine
    KITS/renewed/NAME/ certificate.pem and ca.pem for a kit that was; neither is secret

Whoever holds `authority` can make a kit for anyone: keep it off the network, and keep a copy. Private keys of sites are
not in it. A renewal keeps the site's key, so only public files travel.
"""

import json
import secrets
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from importlib import resources
from pathlib import Path

from fewjoule.errors import InputError
from fewjoule.federation import certificates
from fewjoule.federation.certificates import Clock, Root, now
from fewjoule.federation.federation_file import Federation, check_new_agents
from fewjoule.federation.kits import WARN, Facts
from fewjoule.federation.members import FILE, Member, Members
from fewjoule.files import LEFTOVER, locked, write_atomically

OPERATOR = "operator"
SERVER = "server"
PUBLIC = ("ca.pem", "certificate.pem")


def provision(
    federation: Federation, out: Path, *, lasts: timedelta = certificates.LASTS, clock: Clock = now
) -> list[Path]:
    """Make a federation: its authority and a kit for every site, in a new folder. The kits, the server's first.

    Certificates last `lasts`, these and all that follow.
    """
    _check_lasts(lasts)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(
            f"{out} exists and is not empty; choose a new folder, or add an agent to the federation there with: "
            "fewjoule federation add NAME."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.{secrets.token_hex(4)}{LEFTOVER}")
    try:
        (part / "authority" / "issued").mkdir(mode=0o700, parents=True)
        for folder in (part, part / "authority"):
            folder.chmod(0o700)
        facts = {**federation._asdict(), "id": secrets.token_hex(16), "seconds": lasts.total_seconds()}
        _write(part / "authority" / "federation.json", json.dumps(facts, indent=1).encode())
        names = [SERVER, OPERATOR, *federation.agents]
        Authority(part, clock).issue(names, new_keys=True)
        if out.exists():
            out.rmdir()
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return [out / name for name in names]


class Authority:
    """The authority in a folder of kits."""

    def __init__(self, folder: Path, clock: Clock = now) -> None:
        self.folder, self.clock = folder, clock
        self._own = folder / "authority"
        if not self._own.exists():
            raise InputError(f"{folder} holds no authority; give the folder that fewjoule federation provision made.")
        try:
            facts = json.loads(_read(self._own / "federation.json"))
            self.id, self.lasts = str(facts.pop("id")), timedelta(seconds=facts.pop("seconds"))
            self.federation = Federation(**{**facts, **{k: tuple(facts[k]) for k in ("also", "agents")}})
        except InputError:
            raise
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{self._own / 'federation.json'} is damaged; put back a copy of it.") from None

    def lock(self) -> AbstractContextManager[None]:
        return locked(self._own / "lock", f"{self.folder} is in use by another fewjoule command; wait for its end.")

    def members(self) -> Members:
        """The newest list; refused where the server's is newer, since then this authority has forgotten something."""
        roots = _bundle(self._roots(ended=True))
        own, at_server = Members.open(_read(self.list_file()), roots), self.folder / SERVER / FILE
        if at_server.exists() and (newer := Members.open(_read(at_server), roots)).version > own.version:
            raise InputError(
                f"{at_server} has number {newer.version}, the authority's only {own.version}: an older copy was put "
                f"back; copy {at_server} to {self.list_file()}."
            )
        return own

    def list_file(self) -> Path:
        return self._own / FILE

    def add(self, names: Sequence[str], lasts: timedelta | None = None) -> list[Path]:
        """Kits for new agents; the others' stay as they are."""
        check_new_agents(names, self.members().agents)
        for name in names:
            if (self.folder / name).exists():
                raise InputError(f"{self.folder / name} exists and is not overwritten; move it away first.")
        self.issue(names, lasts=lasts, new_keys=True)
        return [self.folder / name for name in names]

    def remove(self, names: Sequence[str]) -> None:
        """Take agents off the list: none of their certificates counts any more."""
        members = self.members()
        self._check_members(names, members)
        for name in names:
            if name in (SERVER, OPERATOR):
                raise InputError(
                    f"{name} cannot be removed; where its kit was lost or stolen, replace it with: "
                    f"fewjoule federation renew {name} --new-key"
                )
        self._publish([member for member in members.members if member.name not in names])
        for name in names:
            (self._own / "issued" / f"{name}.pem").unlink(missing_ok=True)

    def due(self) -> list[str]:
        """Who has to be renewed: whose newest certificate ends within 30 days."""
        return [name for name, ends in self.members().ends().items() if ends - WARN <= self.clock()]

    def renew(self, names: Sequence[str], *, new_keys: bool = False, lasts: timedelta | None = None) -> list[Path]:
        """New certificates for members. The old ones count until they end; with new keys they stop at once.

        The folder of each that changed: its kit where that is here, else one under `renewed`.
        """
        self._check_members(names, self.members())
        return self.issue(names, lasts=lasts, new_keys=new_keys)

    def issue(self, names: Sequence[str], *, new_keys: bool, lasts: timedelta | None = None) -> list[Path]:
        """Certificates for these names, their files where they belong, and a new list with them.

        They last as long as the federation was made with, or `lasts`.
        """
        lasts = _check_lasts(self.lasts if lasts is None else lasts)
        at, root = self.clock(), self._root(lasts)
        kept = list(self.members().members) if self.list_file().exists() else []
        if new_keys:
            kept = [member for member in kept if member.name not in names]
        changed = []
        for name in names:
            role = name if name in (SERVER, OPERATOR) else "agent"
            key = certificates.make_key() if new_keys else None
            own = self._own / "issued" / f"{name}.pem"
            public = certificates.public_key_of(key) if key else _public_key(own)
            hosts = (self.federation.host, *self.federation.also) if role == SERVER else ()
            certificate = certificates.issue(root, self.id, role, name, public, at, lasts, hosts)
            changed.append(self._deliver(role, name, certificate, key))
            _write(own, certificate)
            identity = certificates.identity_of(certificate)
            ends = certificates.ends(certificate)
            kept.append(Member(role=role, name=name, serial=f"{identity.serial:x}", ends=ends))  # type: ignore[arg-type]
        self._publish(kept)
        return changed

    def _deliver(self, role: str, name: str, certificate: bytes, key: bytes | None) -> Path:
        """Put the files into the kit: a new kit where it has a new key, else the public ones alone."""
        kit = self.folder / name
        public = {"ca.pem": _bundle(self._roots()), "certificate.pem": certificate}
        if key is None:
            kit = kit if (kit / "key.pem").exists() else self.folder / "renewed" / name
            kit.mkdir(mode=0o700, parents=True, exist_ok=True)
            files = public
        else:
            own = {"key.pem": key, "README.md": self._readme(role, name), "fewjoule.json": self._facts(role, name)}
            files = {**public, **own}
            kit.mkdir(mode=0o700, exist_ok=True)
            kit.chmod(0o700)
        for file, content in files.items():
            _write(kit / file, content)
        return kit

    def _facts(self, role: str, name: str) -> bytes:
        facts = Facts(
            role=role,  # type: ignore[arg-type]
            name=name,
            federation=self.federation.name,
            id=self.id,
            host=self.federation.host,
            port=self.federation.port,
            operator=OPERATOR,
        )
        return facts.model_dump_json(indent=1).encode()

    def _readme(self, role: str, name: str) -> bytes:
        templates = resources.files("fewjoule.federation").joinpath("templates")
        text = "".join(templates.joinpath(file).read_text("utf-8") for file in ("kit.md", f"kit-{role}.md"))
        federation = self.federation
        words = {"site": name, "federation": federation.name, "host": federation.host, "port": federation.port}
        return text.format_map(words).encode()

    def _publish(self, members: Sequence[Member]) -> None:
        """A new version of the list, without what was renewed and has ended; to the kits that need it, if here."""
        version = self.members().version + 1 if self.list_file().exists() else 1
        newest = {member.name: member for member in members}
        kept = tuple(m for m in members if m.ends > self.clock() or m is newest[m.name])
        new = Members(federation=self.id, version=version, members=kept)
        content = new.sign(self._roots())
        _write(self.list_file(), content)
        for role in (SERVER, OPERATOR):
            path = self.folder / role / "fewjoule.json"
            if path.exists():
                facts = Facts.model_validate_json(path.read_bytes()).model_copy(update={"agents": new.agents})
                _write(path, facts.model_dump_json(indent=1).encode())
        if (self.folder / SERVER / "key.pem").exists():
            _write(self.folder / SERVER / FILE, content)

    def _check_members(self, names: Sequence[str], members: Members) -> None:
        known = {member.name for member in members.members}
        for name in names:
            if name not in known:
                listed = ", ".join(sorted(known))
                raise InputError(f"{name!r} is not a member of federation {self.federation.name}; there are {listed}.")

    def _roots(self, ended: bool = False) -> list[Root]:
        """The roots that still count (or all, where `ended`), the newest last."""
        roots = []
        for path in sorted(self._own.glob("root-[0-9][0-9].pem")):
            cross = path.with_name(f"{path.stem}-cross.pem")
            key = path.with_name(f"{path.stem}-key.pem")
            if _public_key(key) != _public_key(path):
                raise InputError(f"{key} does not belong to {path}; put back a copy of the authority.")
            roots.append(Root(_read(path), _read(key), _read(cross) if cross.exists() else b""))
        return [root for root in roots if ended or root.ends > self.clock()]

    def _root(self, lasts: timedelta) -> Root:
        """The root that signs now: the newest, or a new one where that would not outlive what it signs."""
        roots = self._roots()
        if roots and roots[-1].ends >= self.clock() + lasts:
            return roots[-1]
        stem = f"root-{len(self._roots(ended=True)) + 1:02}"
        new = certificates.make_root(self.id, self.clock(), roots[-1] if roots else None)
        _write(self._own / f"{stem}-key.pem", new.key)
        if new.cross:
            _write(self._own / f"{stem}-cross.pem", new.cross)
        _write(self._own / f"{stem}.pem", new.certificate)
        return new


def _check_lasts(lasts: timedelta) -> timedelta:
    if not timedelta(0) < lasts <= certificates.LONGEST:
        days = lasts.total_seconds() / 86400
        raise InputError(f"certificates last up to {certificates.LONGEST.days} days, got {days:g}; give fewer days.")
    return lasts


def _bundle(roots: Sequence[Root]) -> bytes:
    return b"".join(root.certificate for root in roots)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); put back a copy of the authority.") from None


def _public_key(path: Path) -> bytes:
    content = _read(path)
    try:
        return certificates.public_key_of(content)
    except (ValueError, TypeError):
        raise InputError(f"{path} is damaged; put back a copy of the authority.") from None


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, content, force=True, mode=0o600)
