"""A broadcast between machines: the whole model, or under `down_codec` the coded difference from the broadcast before.

    round     the model in float32, and the numbers beside it
    change    the codec's bytes of the difference, and the numbers; no bytes where both ends drew the model themselves

An agent holds the broadcast of the round before where it answered that round; before the first it holds the seed's
random start. Whoever does not, because it was away, is sent the whole model once. What is charged is what is sent
(`fewjoule.simulation.rules.broadcast_bytes`).
"""

import numpy as np

from fewjoule.errors import InputError
from fewjoule.federation import blocks
from fewjoule.federation.spec import Contract, leaves, rebuild, sent
from fewjoule.federation.wire import Message, MessageError
from fewjoule.methods.method import Broadcast


def arrays_of(agreed: Contract, broadcast: Broadcast, kind: int) -> tuple[np.ndarray, ...]:
    """What a round or a change holds."""
    whole = leaves(sent(broadcast))
    if kind != blocks.CHANGE:
        return whole
    assert agreed.down_codec is not None
    assert broadcast.size_bytes is not None
    known = int(broadcast.size_bytes) == 0  # a random start, which every site drew itself
    coded = b"" if known else agreed.down_codec.to_bytes(broadcast.packed, agreed.shared_size)
    return (np.frombuffer(coded, np.uint8), *whole[1:])


def heard(agreed: Contract, message: Message, held: np.ndarray) -> Broadcast:
    """The broadcast in a message, for an agent that holds the one before."""
    arrays = message.arrays
    if message.kind == blocks.CHANGE:
        assert agreed.down_codec is not None
        coded = arrays[0].tobytes()
        try:
            change = agreed.down_codec.decode(coded, agreed.shared_size) if coded else np.float32(0)
        except InputError as error:
            raise MessageError(f"message refused: {error}") from None
        arrays = (held + change, *arrays[1:])
    return rebuild(sent(agreed.shapes.broadcast), arrays)
