"""The exported C on the instruction set of Cortex-M4 and M7: results, flash, RAM, instructions, joules.

    python bench/microcontrollers.py [--out docs/microcontrollers.json]

Needs arm-none-eabi-gcc with newlib and qemu-system-arm (Debian: gcc-arm-none-eabi libnewlib-arm-none-eabi
qemu-system-arm). The numbers go to one JSON file; the tables of docs/microcontrollers.md are made from it.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewjoule.models.model import Model
from fewjoule.models.c_source import write_c

BOARD = Path(__file__).parent / "board"
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
SECTIONS = ("-ffunction-sections", "-fdata-sections")


class Chip(NamedTuple):
    """A processor, the QEMU board that has it and its floating-point unit."""

    board: str
    fpu: str


CHIPS = {"cortex-m4": Chip("mps2-an386", "fpv4-sp-d16"), "cortex-m7": Chip("mps2-an500", "fpv5-sp-d16")}


def missing_tools() -> str:
    """Which of the programs for this are not installed; empty where all are."""
    wanted = ("arm-none-eabi-gcc", "qemu-system-arm")
    return ", ".join(name for name in wanted if shutil.which(name) is None)


class Samples(NamedTuple):
    """What measure.c is compiled with."""

    x: Any  # [samples, ...]
    y: Any  # [samples] classes or [samples, outputs]
    query: Any  # [queries, ...]
    steps: int = 10
    learning_rate: float = 0.01
    allowed: Any = None  # [classes]


def write_samples(folder: Path, samples: Samples) -> None:
    kind = "uint32_t" if np.asarray(samples.y).dtype.kind in "iu" else "float"
    lines = [
        f"#define SAMPLES {len(samples.x)}U", f"#define QUERIES {len(samples.query)}U",
        f"#define STEPS {samples.steps}U", f"#define LEARNING_RATE {samples.learning_rate!r}F",
        f"#define ALLOWED {'NULL' if samples.allowed is None else 'allowed'}",
        _table("float", "sample_x", samples.x), _table(kind, "sample_y", samples.y),
        _table("float", "query_x", samples.query),
    ]  # fmt: skip
    if samples.allowed is not None:
        lines.append(_table("uint8_t", "allowed", np.asarray(samples.allowed).astype(np.uint8)))
    (folder / "samples.h").write_text("\n".join(lines) + "\n")


def _table(kind: str, name: str, values: Any) -> str:
    flat = np.asarray(values).reshape(-1)
    cells = [f"{np.float32(v):.9e}F" if kind == "float" else f"{int(v)}U" for v in flat]
    return f"static const {kind} {name}[{flat.size}] = {{{', '.join(cells)}}};"


def run_on_host(folder: Path, compiler: str = "gcc", *flags: str) -> dict[str, Any]:
    """Compile an exported folder with samples.h for this machine, and run it."""
    program = folder / f"measure-{compiler}"
    sources = [BOARD / "measure.c", BOARD / "host.c", folder / "fewjoule_model.c"]
    _call(compiler, *WARNINGS, "-O2", *flags, f"-I{BOARD}", f"-I{folder}", *sources, "-o", program)
    return _results(_call(program))


def run_on_chip(folder: Path, chip: str, *flags: str) -> dict[str, Any]:
    """Compile an exported folder with samples.h for a Cortex-M, and run it under QEMU."""
    program = folder / f"measure-{chip}.elf"
    cross_compile(folder, chip, "measure.c", program, "-O2", *flags)
    text = _call(
        "qemu-system-arm", "-M", CHIPS[chip].board, "-display", "none", "-serial", "none", "-monitor", "none", "-icount", "shift=0",
        "-semihosting-config", "enable=on,target=native", "-kernel", program, timeout=600,
    )  # fmt: skip
    return _results(text)


def cross_compile(folder: Path, chip: str, main: str, program: Path, *flags: str) -> None:
    machine = ("-mthumb", f"-mcpu={chip}", "-mfloat-abi=hard", f"-mfpu={CHIPS[chip].fpu}")
    sources = [BOARD / main, BOARD / "cortex_m.c", folder / "fewjoule_model.c"]
    linking = ("-nostartfiles", "-Wl,--gc-sections", f"-Wl,-Map={program}.map", "-T", BOARD / "board.ld")
    _call(
        "arm-none-eabi-gcc", *WARNINGS, *SECTIONS, *machine, *flags, f"-I{BOARD}", f"-I{folder}", *sources, *linking,
        "-o", program,
    )  # fmt: skip


def _results(text: str) -> dict[str, Any]:
    """Names and values of measure.c's lines; of several lines with one name the last."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        name, *words = line.split()
        if name.startswith("instructions") or name == "status":
            found[name] = int(words[0], 16)
        elif name == "message":
            found[name] = bytes(int(word, 16) for word in words)
        else:
            found[name] = np.asarray([int(word, 16) for word in words], np.uint32).view(np.float32)
    return found


def _call(*command: Any, timeout: float = 120) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr  # QEMU's semihosting writes to the latter
