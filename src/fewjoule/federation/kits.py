"""A kit: the folder that makes a machine one site of a federation. It holds a private key, so others may not read it.

    fewjoule.json      who this is, and where the server is
    ca.pem             the federation's roots: what this site believes
    certificate.pem    this site's certificate
    key.pem            this site's private key
    members.json       on the server only: the signed list of members (`members`)
    README.md          the command that starts the site

Everything is checked before a site starts; each fault is one line with its cure.
"""

import os
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fewjoule.errors import InputError
from fewjoule.federation import certificates
from fewjoule.federation.certificates import Identity
from fewjoule.federation.federation_file import NAME

WARN = timedelta(days=30)
"""How long before a certificate ends its holder is warned."""
PORT = (1, 65535)
_LARGEST_FILE = 1_000_000  # bytes, of any file in a kit but the list of members

Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


class Facts(BaseModel):
    """What fewjoule.json says. `federation` is the name for people, `id` the one in certificates."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    role: Literal["server", "agent", "operator"]
    name: Name
    federation: Name
    id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    host: Annotated[str, Field(min_length=1, max_length=253)]
    port: Annotated[int, Field(ge=PORT[0], le=PORT[1])]
    operator: Name
    agents: tuple[Name, ...] = ()


@dataclass(frozen=True)
class Kit:
    """A kit that was read and found good. `warning` is a line for people, or None."""

    folder: Path
    facts: Facts
    identity: Identity
    ends: datetime
    warning: str | None
    ca: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)

    @property
    def address(self) -> str:
        """Host and port of the server, as one dials them."""
        host = f"[{self.facts.host}]" if ":" in self.facts.host else self.facts.host
        return f"{host}:{self.facts.port}"


def read_kit(folder: Path, role: str | None = None, *, at: datetime | None = None) -> Kit:
    """The kit in a folder, refused where it is none, not private, not for this role, or its certificate is no good."""
    at = at or certificates.now()
    if not (folder / "fewjoule.json").is_file():
        raise InputError(
            f"{folder} is not a kit: it has no fewjoule.json; make kits with: fewjoule federation provision."
        )
    _check_private(folder)
    facts = _read_facts(folder)
    if role is not None and facts.role != role:
        raise InputError(f"{folder} is the kit of {_a(facts.role)}, {_a(role)}'s kit is needed here.")
    ca, certificate, key = (_read(folder / name) for name in ("ca.pem", "certificate.pem", "key.pem"))
    identity = _check_certificate(folder, facts, ca, certificate, key)
    begins, ends = certificates.begins(certificate), certificates.ends(certificate)
    if at < begins:
        raise InputError(
            f"{folder}: the certificate is valid from {begins:%Y-%m-%d %H:%M} UTC, and this machine's clock says "
            f"{at:%Y-%m-%d %H:%M}; set the clock."
        )
    if at >= ends:
        raise InputError(
            f"{folder}: the certificate of {facts.name} ended on {ends:%Y-%m-%d %H:%M} UTC; renew it where the "
            f"federation's authority is (fewjoule federation renew {facts.name}), copy certificate.pem and ca.pem here."
        )
    return Kit(folder, facts, identity, ends, warning(facts.name, ends, at), ca, certificate, key)


def warning(name: str, ends: datetime, at: datetime) -> str | None:
    """A line for people where a certificate has ended or ends within 30 days."""
    if at < ends - WARN:
        return None
    when = f"ended on {ends:%Y-%m-%d}" if at >= ends else f"ends on {ends:%Y-%m-%d}, in {(ends - at).days} days"
    return f"the certificate of {name} {when}; renew it: fewjoule federation renew {name}"


def _check_private(folder: Path) -> None:
    if os.name != "posix":
        return
    for path in (folder, folder / "key.pem"):
        if path.exists() and path.stat().st_mode & 0o077:
            raise InputError(f"{path}: a private key that others may read or change; run: chmod -R go= {folder}")


def _read_facts(folder: Path) -> Facts:
    path = folder / "fewjoule.json"
    try:
        return Facts.model_validate_json(_read(path))
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the file"
        raise InputError(f"{path} is damaged ({where}: {fault['msg']}); provision the kit again.") from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except FileNotFoundError:
        raise InputError(f"{path.parent} has no {path.name}; copy the whole kit, or provision it again.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); run as the user who owns the kit.") from None
    if len(content) > _LARGEST_FILE:
        raise InputError(f"{path} has more than {_LARGEST_FILE} bytes; provision the kit again.")
    return content


def _check_certificate(folder: Path, facts: Facts, ca: bytes, certificate: bytes, key: bytes) -> Identity:
    try:
        identity = certificates.identity_of(certificate)
    except InputError as error:
        raise InputError(f"{folder / 'certificate.pem'}: {error}") from None
    if identity[:3] != (facts.id, facts.role, facts.name):
        raise InputError(
            f"{folder}: the certificate is of {identity.role} {identity.name}, fewjoule.json of {facts.role} "
            f"{facts.name}{'' if identity.federation == facts.id else ' in another federation'}; files of two kits "
            "were mixed, copy the kit again."
        )
    try:
        same_key = certificates.public_key_of(key) == certificates.public_key_of(certificate)
    except (ValueError, TypeError):
        raise InputError(f"{folder / 'key.pem'} is damaged; copy the kit again.") from None
    if not same_key:
        raise InputError(
            f"{folder}: key.pem does not belong to certificate.pem; copy both from one kit, or make a new pair with: "
            f"fewjoule federation renew {facts.name} --new-key"
        )
    try:
        signed = certificates.is_signed_by(certificate, ca)
    except ValueError:
        raise InputError(f"{folder / 'ca.pem'} is damaged; copy the kit again.") from None
    if not signed:
        raise InputError(f"{folder}: no root in ca.pem signed certificate.pem; copy both from one kit or renewal.")
    return identity


def _a(role: str) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"
