"""`fewjoule federation provision, add, remove, renew, members`: who belongs to a federation.

What needs the extra is imported where it is used, so that all other commands work without it.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewjoule.errors import InputError, positive_int

if TYPE_CHECKING:
    from fewjoule.federation.authority import Authority

Kits = Annotated[Path, typer.Option("--kits", help="The folder that provision made, with its authority.")]
Agents = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of agents.", show_default=False)]
HERE = Path("kits")


def provision(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Name, agents, [server] name and port.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the kits.")] = HERE,
    days: Annotated[int, typer.Option(help="How many days certificates are valid, also later ones.")] = 365,
) -> None:
    """Make a federation: one kit per site, with its certificate and a README that says how to start it."""
    from fewjoule.federation.authority import provision as write_kits
    from fewjoule.federation.federation_file import read_federation

    positive_int("--days", days)
    for kit in write_kits(read_federation(file), out, lasts=timedelta(days=days)):
        print(f"wrote {kit}")
    print(f"keep {out / 'authority'} off the network, whoever has it can make kits; and keep a copy of it")


def add(names: Agents, kits: Kits = HERE) -> None:
    """Add agents: a kit for each; all others stay as they are."""
    with _opened(kits) as authority:
        for kit in authority.add(names):
            print(f"wrote {kit}")


def remove(names: Agents, kits: Kits = HERE) -> None:
    """Remove agents: their certificates stop working as soon as the server has the new list."""
    with _opened(kits) as authority:
        authority.remove(names)
        print(f"removed {', '.join(names)}; a run that they take part in goes on by its absence policy")


def renew(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Members; by default those that expire within 30 days."),
    ] = None,
    kits: Kits = HERE,
    everybody: Annotated[
        bool, typer.Option("--all", help="Renew every member, the server and the operator too.")
    ] = False,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Also new keys, in whole kits; the old certificates stop working at once.")
    ] = False,
) -> None:
    """Give members new certificates. The old ones work until they expire, so there is no rush."""
    with _opened(kits) as authority:
        if names and everybody:
            raise InputError("give names or --all, not both.")
        chosen = names or (list(authority.members().ends()) if everybody else authority.due())
        if not chosen:
            first = min(authority.members().ends().values())
            print(f"nothing to renew: the first certificate ends on {first:%Y-%m-%d}; --all renews in spite of that")
            raise typer.Exit
        if new_key and not names:
            raise InputError("--new-key makes new kits, which have to be carried to their machines; name those.")
        for folder in authority.renew(chosen, new_keys=new_key):
            print(f"wrote {folder}")
        if not new_key:
            print("copy ca.pem and certificate.pem into the kits that are elsewhere; neither is secret")


def members(
    kits: Kits = HERE,
    push: Annotated[bool, typer.Option("--push", help="Send the list to the server, with the operator's kit.")] = False,
    kit: Annotated[Path | None, typer.Option(help="For --push: the operator's kit, if not KITS/operator.")] = None,
) -> None:
    """Show the members and when their certificates expire; --push sends the list to the server."""
    from fewjoule.federation.authority import Authority

    authority = Authority(kits)
    listed, federation = authority.members(), authority.federation
    print(f"federation {federation.name}, server {federation.host}:{federation.port}, list number {listed.version}")
    for name, ends in listed.ends().items():
        print(f"{name:<16}  ends on {ends:%Y-%m-%d}")
    for line in listed.warnings():
        print(f"warning: {line}")
    if push:
        _push(authority, kit or kits / "operator")


@contextmanager
def _opened(kits: Path) -> Iterator["Authority"]:
    """The authority, while nobody else changes it; afterwards, what is left to do."""
    from fewjoule.federation.authority import SERVER, Authority

    authority = Authority(kits)
    with authority.lock():
        yield authority
    number = authority.members().version
    if (kits / SERVER / "key.pem").exists():
        print(f"{kits / SERVER} has list number {number}; a server that runs with this folder takes it within seconds")
    print(f"a server elsewhere needs it from you: fewjoule federation members --push --kits {kits}")


def _push(authority: "Authority", kit: Path) -> None:
    from fewjoule.federation.carrier.operator import Operator

    with closing(Operator(kit)) as operator:
        operator.await_server(lambda line: None, 0.0)
        there, here = operator.status(), authority.members()
        ends = {name: end.timestamp() for name, end in here.ends().items()}
        if (there["members"], there["certificates"]) == (here.version, ends):
            print(f"the server has list number {here.version} already")
            return
        number = operator.send_members(authority.list_file().read_bytes())
    print(f"the server has list number {number}")
