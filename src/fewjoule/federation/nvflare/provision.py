"""From a short file to one start-up kit per site: certificates, addresses, minimum rights, a README.

    name = "clinics"
    agents = ["north", "south", "west"]

    [server]
    name = "fl.example.org"     # the address that agents and the operator dial; it is in the server's certificate
    port = 8443

The certificates come from NVFlare's own provisioning. Rights are cut down afterwards: sites run installed code only
(jobs that bring code are refused), no shell commands, storage inside the kit with mode 0700.
"""

import json
import logging
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from fewjoule.errors import InputError, is_whole, unknown
from fewjoule.federation.nvflare.site import template
from fewjoule.tasks.samples import check_names

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]{0,61}[a-zA-Z0-9]")
_HOST = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]{0,251}[a-zA-Z0-9])?")
_OWN_FOLDERS = ("server", "operator", "authority")
CLASSES = ["fewjoule.federation.nvflare.app.", "nvflare.collab.runtime."]  # all that a job may name (dot: a package)
HEARTBEAT_SECONDS = 20
LARGEST_FEDERATION = 1000


class Federation(NamedTuple):
    """Who takes part and where the server listens."""

    name: str
    host: str
    port: int
    agents: tuple[str, ...]

    @property
    def operator(self) -> str:
        return f"operator@{self.name}.fewjoule"


def read_federation(path: Path) -> Federation:
    """The federation that a TOML file describes; every mistake is named with its cure."""
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; write one with name, agents and [server] name and port.") from None
    except (ValueError, RecursionError) as error:  # not TOML or UTF-8, an endless number, deep nesting
        raise InputError(f"{path}: not a TOML file: {error}.") from None
    server: Any = table.get("server")
    _check_keys(path, "", table, ("name", "agents", "server"))
    if not isinstance(server, dict):
        raise InputError(f"{path}: [server] with name and port is missing.")
    _check_keys(path, "in [server], ", server, ("name", "port"))
    given: tuple[Any, ...] = (table.get("name"), server.get("name"), server.get("port"), table.get("agents"))
    name, host, port, agents = given
    word, names = "letters, digits and '-', beginning with a letter", agents if isinstance(agents, list) else []
    own = f"{word}, and none of {', '.join(_OWN_FOLDERS)} nor the server's name"
    checks = [
        ("name", word, name, _matches(_NAME, name)),
        ("server.name", "a host name or 'localhost'", host, _matches(_HOST, host)),
        ("server.port", "a whole number from 1 to 65535", port, is_whole(port) and 1 <= port <= 65535),
        ("agents", f"a list of 1 to {LARGEST_FEDERATION} names", agents, 1 <= len(names) <= LARGEST_FEDERATION),
        *(("an agent's name", own, a, _matches(_NAME, a) and a not in (*_OWN_FOLDERS, host)) for a in names),
    ]
    for key, rule, value, holds in checks:
        if not holds:
            raise InputError(f"{path}: {key} must be {rule}, got {value!r}.")
    if len({agent.lower() for agent in names}) != len(names):
        raise InputError(f"{path}: agents' names must differ, got {', '.join(names)}.")
    check_names(names)
    return Federation(name, host, port, tuple(names))


def _check_keys(path: Path, where: str, table: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"{path}: {where}{unknown('key', key, known)}")


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def provision(federation: Federation, folder: Path) -> list[Path]:
    """Write a kit for every site that has none in `folder` yet; the kits written, the server's and operator's first.

    The authority that signs certificates stays in `folder/authority`: with it agents can be added later, by naming
    them in the file and provisioning again. Whoever holds it can make a kit for anyone: keep it off the network.
    """
    sites = {"server": federation.host, "operator": federation.operator, **{a: a for a in federation.agents}}
    missing = [site for site in sites if not (folder / site).exists()]
    if not missing:
        raise InputError(f"{folder}: every site of the federation has its kit already; remove a kit to renew it.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = folder / "authority"
    authority.mkdir(mode=0o700, exist_ok=True)
    _check_same(authority, federation)
    _forget(authority, federation, [sites[site] for site in missing])
    produced = _build(federation, authority)
    written = []
    for site in missing:
        kit = folder / site
        shutil.move(produced / sites[site], kit)
        role = site if site in ("server", "operator") else "agent"
        facts = {"role": role, **federation._asdict(), "name": sites[site], "federation": federation.name}
        (kit / "fewjoule.json").write_text(json.dumps(facts))
        for unused in ("startup/*.sh", "startup/*.ipynb", "**/readme.txt", "local/*.sample", "local/log_config*"):
            for path in kit.glob(unused):
                path.unlink()
        _restrict(kit, role)
        readme = template("kit.md") + template(f"kit-{role}.md")
        words = {"site": site, "federation": federation.name, "host": federation.host, "port": federation.port}
        (kit / "README.md").write_text(readme.format_map(words))
        _private(kit)
        written.append(kit)
    shutil.rmtree(produced)
    _private(authority)
    return written


def _build(federation: Federation, authority: Path) -> Path:
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = Project(name=federation.name, description="fewjoule federation")
    props: dict[str, Any] = {"fed_learn_port": federation.port, "admin_port": federation.port}
    project.set_server(federation.host, "fewjoule", props)
    for agent in federation.agents:
        project.add_client(agent, "fewjoule", {})
    project.add_admin(federation.operator, "fewjoule", {"role": "lead"})
    builders = [
        WorkspaceBuilder(template_file="master_template.yml"),
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        CertBuilder(),
        SignatureBuilder(),
    ]
    log = logging.getLogger("fewjoule.federation.nvflare.provision")
    context = Provisioner(str(authority), builders).provision(project, logger=log)
    if context.get(CtxKey.BUILD_ERROR):
        raise RuntimeError("provisioning failed; the reason stands above.")
    return Path(context[CtxKey.CURRENT_PROD_DIR])


def _check_same(authority: Path, federation: Federation) -> None:
    """Adding agents keeps the server: another name, host or port would leave the old kits useless."""
    path = authority / "federation.json"
    if path.exists():
        before = json.loads(path.read_text())
        for key in ("name", "host", "port"):
            if before[key] != getattr(federation, key):
                raise InputError(
                    f"{authority.parent} holds a federation with {key} {before[key]!r}, the file says "
                    f"{getattr(federation, key)!r}; choose a new folder."
                )
    path.write_text(json.dumps(federation._asdict()))


def _forget(authority: Path, federation: Federation, subjects: list[str]) -> None:
    """Drop remembered certificates of sites whose kit is to be written, so that they get new keys."""
    path = authority / federation.name / "state" / "cert.json"
    if path.exists():
        remembered = json.loads(path.read_text())
        for subject in subjects:
            remembered.pop(subject, None)
        path.write_text(json.dumps(remembered))


def _restrict(kit: Path, role: str) -> None:
    local = kit / "local"
    if role == "operator":
        return
    (local / "authorization.json").write_text(template("rights.json"))
    # one handler to standard output, which `process` writes to the kit's log.txt; NVFlare's own default is five files
    (local / "log_config.json").write_text(template("logging.json"))
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_allow_list"] = CLASSES
    if role == "server":
        storage = (kit / "storage").resolve()
        storage.mkdir(mode=0o700)
        resources["servers"][0] |= {"max_num_clients": LARGEST_FEDERATION, "heart_beat_timeout": HEARTBEAT_SECONDS}
    else:
        resources["client"]["heart_beat_interval"] = HEARTBEAT_SECONDS / 4
        resources["allow_log_streaming"] = False
        resources["components"] = [c for c in resources["components"] if c["id"] != "site_log_streamer"]
    (local / "resources.json").write_text(json.dumps(resources, indent=2))


def place_storage(kit: Path) -> None:
    """Point the server's job storage into the kit where it stands now; kits are moved between machines."""
    path = kit / "local" / "resources.json"
    resources = json.loads(path.read_text())
    storage = kit.resolve() / "storage"
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(storage / "jobs")
    storage.mkdir(mode=0o700, exist_ok=True)
    path.write_text(json.dumps(resources, indent=2))


def _private(folder: Path) -> None:
    """Mode 0700 and 0600 throughout: keys, data and state are the site's own."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() or path.suffix == ".sh" else 0o600)
