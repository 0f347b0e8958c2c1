"""The short file that a federation is made from.

name = "clinics"
agents = ["north", "south", "west"]

[server]
name = "fl.example.org"     # the host that agents and the operator dial; it is in the server's certificate
port = 8443
also = ["10.0.0.5"]         # further host names or addresses by which it may be dialled
"""

import re
import tomllib
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

from fewjoule.errors import InputError, is_whole, unknown

NAME = re.compile(r"[a-zA-Z](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")
"""Of a federation, a site or an operator."""
LARGEST_FEDERATION = 1000
_LABEL = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9_-]{0,61}[a-zA-Z0-9])?)"
_HOST = re.compile(rf"(?:{_LABEL}\.)*(?![0-9]+\Z){_LABEL}")  # numbers alone are an address, or a misspelt one
_OWN = ("server", "operator", "authority", "renewed", "all")  # folders beside the kits, and a word of the command line
_WORD = "letters, digits and '-', beginning with a letter, at most 63"


class Federation(NamedTuple):
    """Who takes part and where the server listens; `also` are further names of the server's host."""

    name: str
    host: str
    port: int
    agents: tuple[str, ...]
    also: tuple[str, ...] = ()


def read_federation(path: Path) -> Federation:
    """The federation that a TOML file describes; every mistake is named with its cure."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; write one with name, agents and [server] name and port.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a TOML file.") from None
    except (ValueError, RecursionError) as error:  # not TOML or UTF-8, an endless number, deep nesting
        raise InputError(f"{path}: not a TOML file: {error}.") from None
    server: Any = table.get("server")
    _check_keys(path, "", table, ("name", "agents", "server"))
    if not isinstance(server, dict):
        raise InputError(f"{path}: [server] with name and port is missing.")
    _check_keys(path, "in [server], ", server, ("name", "port", "also"))
    given: tuple[Any, ...] = (table.get("name"), table.get("agents"), server.get("name"), server.get("port"))
    name, agents, host, port = given
    also: Any = server.get("also", [])
    few = isinstance(agents, list) and 1 <= len(agents) <= LARGEST_FEDERATION
    checks = [
        ("name", _WORD, name, _matches(NAME, name)),
        ("server.name", "a host name or an address", host, _is_host(host)),
        ("server.port", "a whole number from 1 to 65535", port, is_whole(port) and 1 <= port <= 65535),
        ("server.also", "a list of host names or addresses", also, isinstance(also, list) and all(map(_is_host, also))),
        ("agents", f"a list of 1 to {LARGEST_FEDERATION} names", agents, few),
    ]
    for key, rule, value, holds in checks:
        if not holds:
            raise InputError(f"{path}: {key} must be {rule}, got {str(value)[:200]!r}.")
    try:
        check_new_agents(agents, ())
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return Federation(name, host, port, tuple(agents), tuple(also))


def check_new_agents(names: Sequence[Any], members: Sequence[str]) -> None:
    """Refuse names that cannot be an agent's, or that somebody has already (capitals make no difference)."""
    taken = {member.lower() for member in members}
    if len(names) + len(members) > LARGEST_FEDERATION:
        raise InputError(f"a federation has at most {LARGEST_FEDERATION} agents, got {len(names) + len(members)}.")
    for name in names:
        if not _matches(NAME, name) or name.lower() in _OWN:
            rule = f"{_WORD}, and none of {', '.join(_OWN)}"
            raise InputError(f"an agent's name must be {rule}; got {str(name)[:200]!r}.")
        if name.lower() in taken:
            raise InputError(f"agents' names must differ, also in small letters; {name!r} is there already.")
        taken.add(name.lower())


def check_host(host: str) -> str:
    """A host's name or address; refused where it cannot be one."""
    if not _is_host(host):
        raise InputError(f"a server's name must be a host name or an address, got {host!r}.")
    return host


def _check_keys(path: Path, where: str, table: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"{path}: {where}{unknown('key', key, known)}")


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_host(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        ip_address(value)
    except ValueError:
        return len(value) <= 253 and _HOST.fullmatch(value) is not None
    return "%" not in value
