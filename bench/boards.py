"""The exported C on this machine, and on the instruction set of Cortex-M4 and M7 under QEMU.

Needs arm-none-eabi-gcc with newlib and qemu-system-arm (Debian: gcc-arm-none-eabi libnewlib-arm-none-eabi
qemu-system-arm). The programs around the model are in the folder `board`.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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


def run_on_chip(folder: Path, chip: str) -> dict[str, Any]:
    """Compile an exported folder with samples.h for a Cortex-M, and run it under QEMU."""
    return _results(_emulated(folder, chip))


def trace_of(folder: Path, chip: str) -> Path:
    """QEMU's log of every block of instructions that the same program runs: for short ones."""
    trace = folder / "trace.log"
    _emulated(folder, chip, "-d", "in_asm,exec,nochain", "-D", trace)
    return trace


def _emulated(folder: Path, chip: str, *flags: Any) -> str:
    program = cross_compile(folder, chip, "measure.c")
    quiet = ("-display", "none", "-serial", "none", "-monitor", "none")
    semihosting = ("-semihosting-config", "enable=on,target=native")
    machine = ("qemu-system-arm", "-M", CHIPS[chip].board, "-icount", "shift=0")
    return _call(*machine, *quiet, *semihosting, *flags, "-kernel", program)


class Memory(NamedTuple):
    """Bytes of a program for a Cortex-M: all of it, and the tables and static memory that are the model's own."""

    flash: int
    ram: int  # without the stack
    stack: int  # at most: that of all the model's functions together
    flash_tables: int
    ram_tables: int


def memory(folder: Path, chip: str, *uses: str) -> Memory:
    """What the linker makes of the least program that predicts, and that `uses` FINE_TUNE or ANSWER as well."""
    defines = [f"-DUSES_{name}={int(name in uses)}" for name in ("FINE_TUNE", "ANSWER")]
    program = cross_compile(folder, chip, "smallest.c", "-fstack-usage", *defines)
    sizes = dict(re.findall(r"^\.(\S+)\s+(\d+)", _call("arm-none-eabi-size", "-A", program), re.M))
    text, data, bss = (int(sizes[name]) for name in ("text", "data", "bss"))
    laid = Path(f"{program}.map").read_text().split("Linker script and memory map")[1]
    found = re.findall(r"^ \.(\w+)\.\w+\s+0x[0-9a-f]+\s+0x([0-9a-f]+)\s+\S*fewjoule_model\.o$", laid, re.M)
    of = {kind: sum(int(size, 16) for name, size in found if name == kind) for kind in ("rodata", "data", "bss")}
    stack = sum(int(line.split("\t")[1]) for line in (folder / "fewjoule_model.su").read_text().splitlines())
    return Memory(text + data, data + bss, stack, of["rodata"], of["data"] + of["bss"])


def cross_compile(folder: Path, chip: str, main: str, *flags: str) -> Path:
    machine = ("-mthumb", f"-mcpu={chip}", "-mfloat-abi=hard", f"-mfpu={CHIPS[chip].fpu}")
    compiler = ("arm-none-eabi-gcc", *WARNINGS, "-O2", *SECTIONS, *machine, *flags, f"-I{BOARD}", f"-I{folder}")
    objects = []
    for source in (BOARD / main, BOARD / "cortex_m.c", folder / "fewjoule_model.c"):
        objects.append(folder / f"{source.stem}.o")
        _call(*compiler, "-c", source, "-o", objects[-1])
    program = folder / f"{Path(main).stem}-{chip}.elf"
    linking = ("-nostartfiles", "-Wl,--gc-sections", f"-Wl,-Map={program}.map", "-T", BOARD / "board.ld")
    _call(*compiler, *objects, *linking, "-o", program)
    return program


def _results(text: str) -> dict[str, Any]:
    """Names and values of measure.c's lines; of several lines with one name the last."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        name, *words = line.split()
        if name in ("before", "after", "weights"):
            found[name] = np.asarray([int(word, 16) for word in words], np.uint32).view(np.float32)
        else:
            found[name] = bytes.fromhex("".join(words)) if name == "message" else int(words[0], 16)
    return found


def _call(*command: Any) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr  # QEMU's semihosting writes to the latter
