"""Cycles of a program on a Cortex-M4, from QEMU's trace of it and the timings that Arm publishes.

Timings: Arm, Cortex-M4 Technical Reference Manual (DDI 0439), tables 3-1 and 7-1, memory without wait states. A branch
that is taken refills the pipeline in 1 to 3 cycles; here 2. A division of whole numbers takes 2 to 12; here 7. The
result of floating-point arithmetic is there one cycle later where the next instruction wants it. For the Cortex-M7,
which starts up to two instructions a cycle, Arm publishes no such table.
"""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

REFILL = 2
DIVIDE = 7
BOARD = re.compile(r"main|put.*|predict_all|instructions|on_.*|ask_host")  # functions that are not the model's


class Instruction(NamedTuple):
    address: int
    length: int  # bytes
    name: str
    operands: str


class Mix(NamedTuple):
    """What the model's own functions executed."""

    instructions: int
    cycles: int


def mix_of(trace: Path) -> Mix:
    """Count a trace of `qemu-system-arm -d in_asm,exec,nochain`: every block of code once, then each of its runs."""
    blocks: dict[int, list[Instruction]] = {}
    block: list[Instruction] = []
    runs: Counter[tuple[int, int]] = Counter()  # of a block, and where it went on
    last: int | None = None
    with trace.open() as lines:
        for line in lines:
            if line.startswith("IN:"):
                block = []
            elif line.startswith("0x"):
                address, code, name, *rest = re.split(r":  |\s{2,}", line.strip(), maxsplit=3)
                block.append(Instruction(int(address, 16), len(code.replace(" ", "")) // 2, name, " ".join(rest)))
                blocks[block[0].address] = block
            elif line.startswith("Trace"):
                at, where = int(line.split("/")[1], 16), line.split("]")[1].strip()
                if last is not None:
                    runs[last, at] += 1
                last = None if BOARD.fullmatch(where) else at
    instructions = cycles = 0
    for (at, after), times in runs.items():
        code = blocks[at]
        instructions += times * len(code)
        cycles += times * _cycles(code, after)
    return Mix(instructions, cycles)


def _cycles(code: list[Instruction], after: int) -> int:
    total = 0
    for place, one in enumerate(code):
        following = code[place + 1] if place + 1 < len(code) else None
        total += _alone(one) + _wait(one, following)
    end = code[-1].address + code[-1].length
    return total + (REFILL if after != end else 0)


def _alone(one: Instruction) -> int:
    base = one.name.split(".")[0]
    if re.match(r"v(ldm|stm|push|pop)|push|pop|ldm|stm", base):
        return 1 + _registers(one.operands)
    if re.match(r"v(div|sqrt)", base):
        return 14
    if re.match(r"v(mla|mls|nmla|nmls|fma|fms|fnma|fnms)", base):
        return 3
    if re.match(r"v(ldr|str)|ldr", base):
        return 3 if base == "ldrd" else 2
    return DIVIDE if base in ("udiv", "sdiv") else 1


def _wait(one: Instruction, following: Instruction | None) -> int:
    arithmetic = re.match(r"v(add|sub|mul|div|sqrt|mla|mls|nm|fma|fms|fn|cvt)", one.name)
    if arithmetic is None or following is None:
        return 0
    result = one.operands.split(",")[0]
    wanted = following.operands if following.name.startswith("vstr") else following.operands.partition(",")[2]
    return int(re.search(rf"\b{result}\b", wanted) is not None)


def _registers(operands: str) -> int:
    """How many words a list such as {r4, r5-r7, d8} holds."""
    count = 0
    for part in operands.partition("{")[2].rstrip("}").split(","):
        first, _, last = part.strip().partition("-")
        each = 2 if first.startswith("d") else 1
        count += each * (int(last[1:]) - int(first[1:]) + 1 if last and last[1:].isdigit() else 1)
    return count
