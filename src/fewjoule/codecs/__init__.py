"""What a message is on the air. `codec("quantise:3")` reads the names that study files and the command line use."""

from typing import Any

import numpy as np

from fewjoule.codecs.frame import read_frame
from fewjoule.codecs.interface import Codec
from fewjoule.codecs.levels import MOST_BITS, LloydMax, TopK
from fewjoule.codecs.plain import Float16, Float32
from fewjoule.codecs.quantise import Quantise
from fewjoule.errors import InputError, unknown

CODECS: dict[str, str] = {
    "float32": "float32",
    "float16": "float16",
    "quantise": "quantise:BITS with 1 to 8 bits",
    "lloyd-max": f"lloyd-max:BITS with 1 to {MOST_BITS} bits",
    "top-k": f"top-k:SHARE:BITS with a share above 0 and at most 1, and 1 to {MOST_BITS} bits",
}
"""How each codec is written."""


def codec(spec: str | Codec) -> Codec:
    """The codec that a spec names: `float32`, `float16`, `quantise:3`, `lloyd-max:2`, `top-k:0.1:2`."""
    if isinstance(spec, Codec):
        return spec
    if not isinstance(spec, str):
        raise InputError(f"a codec must be a name such as 'quantise:3', got {spec!r}.")
    name, *parts = spec.split(":")
    if name not in CODECS:
        raise unknown("codec", name, CODECS)
    wrong = InputError(f"codec {spec!r} cannot be read; write {CODECS[name]}.")
    try:
        if name in ("float32", "float16"):
            if parts:
                raise wrong
            return Float32() if name == "float32" else Float16()
        if name == "top-k":
            share, bits = float(parts[0]), int(parts[1]) if len(parts) > 1 else 1
            if len(parts) > 2 or not 0 < share <= 1 or not 1 <= bits <= MOST_BITS:
                raise wrong
            return TopK(share, bits)
        (bits,) = (int(part) for part in parts)
    except (ValueError, IndexError) as error:
        raise wrong from error
    if not 1 <= bits <= (8 if name == "quantise" else MOST_BITS):
        raise wrong
    return Quantise(bits) if name == "quantise" else LloydMax(bits)


def decode(data: bytes, size: int | None = None) -> np.ndarray[Any, Any]:
    """The vector of any codec's message: its frame says which. `size` is the number of weights to expect."""
    kind, count, body = read_frame(data)
    kinds: dict[int, type[Codec]] = {c.kind: c for c in (Float32, Float16, Quantise, LloydMax, TopK)}
    if kind not in kinds:
        raise InputError(f"coded message has unknown kind {kind}; upgrade this package.")
    if size is not None and count != size:
        raise InputError(f"coded message must have {size} weights, got {count}; both ends must agree on the model.")
    return kinds[kind].read(body, count)


__all__ = ["CODECS", "Codec", "Float16", "Float32", "LloydMax", "Quantise", "TopK", "codec", "decode"]
