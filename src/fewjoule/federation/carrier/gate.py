"""Who may call what on the server. What is not allowed here is refused, logged with who and what, and counted.

Who calls is the certificate of the connection and nothing that a message says.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from fewjoule.errors import InputError
from fewjoule.federation.carrier.frames import peer_of
from fewjoule.federation.carrier.log import Log
from fewjoule.federation.carrier.tls import AGENT_METHOD, OPERATOR_METHOD
from fewjoule.federation.certificates import Identity, identity_of
from fewjoule.federation.kits import Kit
from fewjoule.federation.members import Members
from fewjoule.federation.trust import clean

Handler = Callable[[Identity, Any], Awaitable[None]]
DENIED = grpc.StatusCode.PERMISSION_DENIED


class Gate(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The server's only handler: two methods, each for one role."""

    def __init__(self, kit: Kit, members: Callable[[], Members], agent: Handler, operator: Handler, log: Log) -> None:
        self._kit, self._members, self._log = kit, members, log
        self._open = {AGENT_METHOD: ("agent", agent), OPERATOR_METHOD: ("operator", operator)}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = handler_call_details.method

        async def answer(_: Any, context: Any) -> None:
            await self._answer(method, context)

        return grpc.stream_stream_rpc_method_handler(answer)

    async def _answer(self, method: str, context: Any) -> None:
        peer = peer_of(context)
        role, handler = self._open.get(method, ("", None))
        try:
            identity = self._identity(context)
        except InputError as error:
            self._log.refused(peer, clean(method)[:100], str(error))
            await context.abort(DENIED, str(error))
        who = f"{identity.role} {identity.name} at {peer}"
        why = self.refuses(identity)
        if why is None and handler is None:
            why = "there is no such method"
        elif why is None and identity.role != role:
            why = f"the kit of {identity.role} {identity.name} may not do that"
        if why is not None or handler is None:
            self._log.refused(who, clean(method)[:100], str(why))
            await context.abort(DENIED, str(why))
        else:
            try:
                await handler(identity, context)
            except Refused as error:
                if error.code != grpc.StatusCode.UNAVAILABLE:  # the server ends, which is nobody's fault
                    self._log.refused(who, error.what, str(error))
                await context.abort(error.code, str(error))

    def _identity(self, context: Any) -> Identity:
        chain = context.auth_context().get("x509_pem_cert")
        if not chain:
            raise InputError("the connection shows no certificate.")
        return identity_of(chain[0])

    def refuses(self, identity: Identity) -> str | None:
        """Why this identity is not let in; None where it is."""
        if identity.federation != self._kit.facts.id:
            return "the certificate is of another federation"
        return self._members().refuses(identity)


class Refused(Exception):  # noqa: N818 - a decision, not a mistake
    """Something that a peer did is not accepted; its stream ends with the reason."""

    def __init__(self, what: str, why: str, code: grpc.StatusCode = DENIED) -> None:
        super().__init__(why)
        self.what, self.code = what, code


async def within(seconds: float, work: Awaitable[Any], what: str) -> Any:
    """What `work` gives, refused where it takes longer."""
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise Refused(what, f"nothing came within {seconds:g} s", grpc.StatusCode.DEADLINE_EXCEEDED) from None
