"""What a message is on the air. `codec("quantise:3")` reads the names that study files and the command line use."""

from typing import Any

import numpy as np

from fewjoule.codecs.codec import Codec, Float16, Float32
from fewjoule.codecs.frame import read_frame
from fewjoule.codecs.levels import LloydMax, TopK
from fewjoule.codecs.quantise import Quantise
from fewjoule.codecs.uniform import Uniform
from fewjoule.errors import InputError, unknown

CODECS: dict[str, type[Codec]] = {kind.name: kind for kind in (Float32, Float16, Quantise, LloydMax, TopK, Uniform)}


def codec(spec: str | Codec) -> Codec:
    """The codec that a spec names: `float32`, `float16`, `quantise:3`, `lloyd-max:2`, `top-k:0.1:2`, `uniform:6`."""
    if isinstance(spec, Codec):
        return spec
    if not isinstance(spec, str):
        raise InputError(f"a codec must be a name such as 'quantise:3', got {spec!r}.")
    name = spec.split(":")[0]
    if name not in CODECS:
        raise unknown("codec", name, CODECS)
    return CODECS[name].from_spec(spec)


def decode(data: bytes, size: int) -> np.ndarray[Any, Any]:
    """The vector of any codec's message: its frame says which. `size` is the number of weights to expect.

    A sparse message of a few bytes may claim any size, so memory is taken for the expected one only.
    """
    kind, body = read_frame(data, size)
    for known in CODECS.values():
        if known.kind == kind:
            return known.received(body, size)
    raise InputError(f"coded message has unknown kind {kind}; upgrade this package.")


__all__ = ["CODECS", "Codec", "Float16", "Float32", "LloydMax", "Quantise", "TopK", "Uniform", "codec", "decode"]
