"""Any method with its messages through codecs: a method in, a method out.

    up      the difference of an agent's message from what both ends know, the last broadcast (a method that sends
            gradients sends them as they are)
    first   the difference of what an agent shares of its own model from the common random start, before the first
            round (numbers beside the vector, such as FedExP's norm, go as float32)
    down    the difference of the server's model from the broadcast before

With error feedback (Seide et al. 2014, "1-Bit Stochastic Gradient Descent"; Karimireddy et al. 2019, "Error Feedback
Fixes SignSGD") an agent adds what the codec lost of its last message to the next one:

    sent_t = decode(encode(u_t + e_t)),   e_{t+1} = u_t + e_t - sent_t

The way down needs none: a difference from what the agents hold already contains what was lost before.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fewjoule.codecs import Codec, TopK, codec
from fewjoule.errors import InputError
from fewjoule.methods.method import Broadcast, Method, Start, Turn, Upload, made_by
from fewjoule.tasks.samples import AgentData
from fewjoule.training.descent import Loss

CODED_SETTINGS = {"codec": "up", "first_codec": "first", "down_codec": "down", "feedback": "feedback"}
"""Settings that every method takes beside its own, as `fewjoule.method(name, codec="quantise:3")`, and the arguments
of `with_codec` that they are."""
CODEC_STREAM = 0xC0DEC  # apart from the keys that an agent draws its mini-batches with


def with_codec(
    method: Method,
    up: str | Codec | None = None,
    *,
    first: str | Codec | None = None,
    down: str | Codec | None = None,
    feedback: bool = True,
) -> Method:
    """The method with coded messages. `first` is `up` where not given; None sends float32 without a frame.

    Error feedback is for the codecs that are biased, `float16` among them since it always rounds the same way; an
    unbiased one (`quantise`, `float32`) never uses it.
    """
    if not isinstance(feedback, bool):
        raise InputError(f"feedback must be true or false, got {feedback!r}.")
    sent, opening, heard = (None if c is None else codec(c) for c in (up, up if first is None else first, down))
    if sent is None and opening is None and heard is None:
        return method
    if method.combine != "mean" and TopK in (type(sent), type(opening)):
        raise InputError(
            f"combine={method.combine!r} goes weight by weight, and top-k sends most weights of most agents as 0: "
            "nothing would move; choose another codec, such as quantise:4, or combine='mean'."
        )
    return _coded(method, sent, opening, heard, first is not None, feedback)


@cache  # equal settings give one object, so that programs compiled for it are found again
def _coded(
    method: Method, sent: Codec | None, opening: Codec | None, heard: Codec | None, own_opening: bool, feedback: bool
) -> Method:
    remembers, own = feedback and sent is not None and not sent.unbiased, method.personal

    def upload(local: Array, common: Array, key: Array) -> Upload:
        change, packed, size_bytes = opening.apply(local - common, key)  # type: ignore[union-attr]
        return Upload(common + change, packed, size_bytes)

    def agent_init(local: Array, uploaded: Array | None = None) -> Any:
        inner = method.agent_init(local)
        if not remembers:
            return inner, ()
        shared = local if uploaded is None else local[: len(uploaded)]
        return inner, jnp.zeros_like(shared) if uploaded is None or method.sends != "model" else shared - uploaded

    def agent(loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        inner, lost = state
        inner, message, info = method.agent(loss, inner, broadcast, data, key)
        if sent is None:
            return (inner, lost), message, info
        if method.sends == "model":
            message = message - broadcast.model
        leaves, tree = jax.tree.flatten(message)
        if remembers:
            leaves[0] = leaves[0] + lost
        keys = jax.random.split(jax.random.fold_in(key, CODEC_STREAM), len(leaves))
        coded = [sent.apply(x, k) if x.ndim else (x, x, 4) for x, k in zip(leaves, keys, strict=True)]
        if remembers:
            lost = leaves[0] - coded[0][0]
        info = info._replace(packed=[c[1] for c in coded], size_bytes=jnp.asarray(sum(c[2] for c in coded)))
        return (inner, lost), jax.tree.unflatten(tree, [c[0] for c in coded]), info

    def tell(inner: Any, broadcast: Broadcast, known: Array, told: Array) -> tuple[Any, Broadcast]:
        """The server's state (inner, what the agents hold, its own model, broadcasts so far) and the broadcast."""
        if heard is None:
            return (inner, broadcast.model, (), told), broadcast
        key = jax.random.fold_in(jax.random.key(CODEC_STREAM), told)
        change, packed, size_bytes = heard.apply(broadcast.model - known, key)
        known = known + change
        return (inner, known, broadcast.model, told + 1), Broadcast(known, broadcast.scalars, packed, size_bytes)

    def init(start: Start, probes: Any) -> tuple[Any, Broadcast]:
        inner, broadcast = method.init(start, probes)
        none = jnp.zeros((), jnp.int32)
        if heard is None or method.start != "random":
            known = broadcast.model if start.common is None else start.common
            return tell(inner, broadcast, known, none)
        model = broadcast.model  # both ends drew it: no bytes, but the shapes of the broadcasts that follow
        packed = heard.pack(jnp.zeros_like(model), jax.random.key(0))
        return (inner, model, model, none), Broadcast(model, broadcast.scalars, packed, none)

    def server(state: Any, mean: Any) -> tuple[Any, Broadcast]:
        inner, known, _, told = state
        if sent is not None and method.sends == "model":
            mean = known + mean
        inner, broadcast = method.server(inner, mean)
        return tell(inner, broadcast, known, told)

    specs = (("codec", sent), ("first_codec", opening if own_opening else None), ("down_codec", heard))
    settings = tuple((name, c.spec) for name, c in specs if c is not None)
    coded = replace(
        method,
        settings=(*method.settings, *settings, ("feedback", feedback)),
        init=init,
        agent=agent,
        server=server,
        agent_init=agent_init,
        upload=None if opening is None else upload,
        final=None if heard is None else lambda state: state[2],
        personal=None if own is None else lambda state, broadcast: own(state[0], broadcast),
        codecs=(sent, opening, heard),
    )
    return made_by(_coded, (method, sent, opening, heard, own_opening, feedback), coded)
