"""The services of deploy/compose/compose.yaml without a container engine, on a network of their own.

Run in new user, mount and network namespaces: names are those of the compose file, and nothing outside is reachable.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose" / "compose.yaml"
IFF_UP, SIOCSIFFLAGS = 0x1, 0x8914


def begin_network(names: dict[str, str], folder: Path) -> None:
    """Loopback up, and these names for these addresses on it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    hosts = folder / "hosts"
    hosts.write_text("".join(f"{address} {name}\n" for name, address in names.items()))
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)


def command_of(name: str, service: dict[str, Any], volumes: Path) -> list[str]:
    """A service's command, with the places of its volumes."""
    places = {}
    for mount in service["volumes"]:
        if isinstance(mount, str):
            source, target = mount.split(":")
            places[target] = volumes / source
        else:
            places[mount["target"]] = volumes / mount["source"] / mount["volume"]["subpath"]
    words = []
    for word in service["command"]:
        for target, place in places.items():
            if word == target or word.startswith(f"{target}/"):
                word = f"{place}{word.removeprefix(target)}"
        words.append(word)
    return [sys.executable, "-m", "fewjoule", "federation", *words]


def main(folder: Path) -> int:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    (alias,) = services["server"]["networks"]["federation"]["aliases"]
    begin_network({"localhost": "127.0.0.1", alias: "127.0.0.77"}, folder)
    volumes = folder / "volumes"
    for volume in ("demo", "results"):
        (volumes / volume).mkdir(parents=True)
    commands = {name: command_of(name, service, volumes) for name, service in services.items()}
    subprocess.run(commands.pop("prepare"), check=True)
    operator = commands.pop("operator")
    lasting = []
    for name, command in commands.items():
        with (folder / f"{name}.log").open("wb") as log:
            lasting.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    try:
        return subprocess.run(operator, check=False).returncode
    finally:
        for process in lasting:
            process.terminate()
        codes = [process.wait(40) for process in lasting]
        print("ended with", codes, flush=True)


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(Path(sys.argv[1])))
