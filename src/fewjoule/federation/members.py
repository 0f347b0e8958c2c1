"""The list of a federation's members: whose certificates count. Whoever is not on it is refused.

The federation's authority signs the list and numbers it; a server takes a list only with a good signature and a higher
number than the one it has. Removing a member takes its certificates off the list. A renewed member has two on it until
the older one ends.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from fewjoule.errors import InputError
from fewjoule.federation import certificates
from fewjoule.federation.certificates import Identity, Root
from fewjoule.federation.kits import Kit, Name, warning
from fewjoule.files import write_atomically

FILE = "members.json"
LARGEST = 2_000_000
"""Bytes of a list: several times what a thousand agents need."""
_PURPOSE = b"fewjoule members\n"  # so that no signature over anything else counts for a list
_MODEL = ConfigDict(frozen=True, extra="forbid")


class Member(BaseModel):
    """One certificate that counts: its holder, its serial number in hexadecimal digits, and when it ends."""

    model_config = _MODEL

    role: Literal["server", "agent", "operator"]
    name: Name
    serial: Annotated[str, Field(pattern="^[0-9a-f]{1,40}$")]
    ends: AwareDatetime


class Members(BaseModel):
    """A version of the list; `federation` is the federation's id."""

    model_config = _MODEL

    federation: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    version: Annotated[int, Field(ge=1, le=2**53, strict=True)]
    members: tuple[Member, ...]

    def refuses(self, identity: Identity, at: datetime | None = None) -> str | None:
        """Why this certificate does not count, or None where it does."""
        who = f"{identity.role} {identity.name}"
        if identity.federation != self.federation:
            return f"{who} is of another federation"
        for member in self.members:
            if member.serial == f"{identity.serial:x}" and (member.role, member.name) == (identity.role, identity.name):
                if (at or certificates.now()) < member.ends:
                    return None
                return f"the certificate of {who} ended on {member.ends:%Y-%m-%d %H:%M} UTC"
        if any((member.role, member.name) == (identity.role, identity.name) for member in self.members):
            return f"the certificate of {who} was replaced by a new one"
        return f"{who} is not a member (any more)"

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents' names, each once, in the order in which they joined."""
        return tuple(dict.fromkeys(member.name for member in self.members if member.role == "agent"))

    def ends(self) -> dict[str, datetime]:
        """When the newest certificate of every member ends."""
        newest: dict[str, datetime] = {}
        for member in self.members:
            newest[member.name] = max(member.ends, newest.get(member.name, member.ends))
        return newest

    def warnings(self, at: datetime | None = None) -> list[str]:
        """A line for every member whose newest certificate has ended or ends within 30 days."""
        lines = (warning(name, ends, at or certificates.now()) for name, ends in self.ends().items())
        return [line for line in lines if line is not None]

    def sign(self, roots: Sequence[Root]) -> bytes:
        """The list as a file, signed by every living root, so that a server that knows one of them takes it."""
        signatures = [certificates.sign(self._signed_bytes(), root).hex() for root in roots]
        return json.dumps({"list": self.model_dump(mode="json"), "signatures": signatures}, indent=1).encode()

    @classmethod
    def open(cls, content: bytes, ca: bytes) -> Self:
        """The list that a file holds; refused unless one of the roots in `ca` signed it."""
        if len(content) > LARGEST:
            raise InputError(f"a list of members has at most {LARGEST} bytes, got {len(content)}.")
        try:
            table = json.loads(content)
            members = cls.model_validate(table["list"])
            signatures = [bytes.fromhex(signature) for signature in table["signatures"]]
        except (ValidationError, ValueError, KeyError, TypeError, RecursionError):
            raise InputError("the list of members is damaged; send or copy it again.") from None
        if not any(certificates.is_signature(s, members._signed_bytes(), ca) for s in signatures[:4]):
            raise InputError("the list of members was not signed by this federation's authority; it is not taken.")
        return members

    def _signed_bytes(self) -> bytes:
        return _PURPOSE + json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()


def read_members(kit: Kit) -> Members:
    """The list in the server's kit, its signature checked."""
    return _read(kit.folder / FILE, kit)


def accept(kit: Kit, content: bytes) -> Members:
    """Put a newer list into the server's kit: only with a good signature and a higher number than the one there."""
    new, old = _of(kit, Members.open(content, kit.ca)), read_members(kit)
    if new.version <= old.version:
        raise InputError(
            f"the list of members has number {new.version}, the server's has {old.version}; only a newer one is taken. "
            "Where the authority was put back from an older copy, give it the server's members.json first."
        )
    write_atomically(kit.folder / FILE, content, force=True, mode=0o600)
    return new


def _read(path: Path, kit: Kit) -> Members:
    try:
        with path.open("rb") as file:
            return _of(kit, Members.open(file.read(LARGEST + 1), kit.ca))
    except FileNotFoundError:
        raise InputError(f"{kit.folder} has no {FILE}; copy it from the federation's authority folder.") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _of(kit: Kit, members: Members) -> Members:
    if members.federation != kit.facts.id:
        raise InputError("the list of members is of another federation; it is not taken.")
    return members
