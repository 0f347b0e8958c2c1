"""Both ends of a connection: credentials, limits that hold before memory is taken, and why a connection failed."""

from pathlib import Path

import grpc

from fewjoule.errors import InputError
from fewjoule.federation.carrier.frames import LARGEST_PIECE
from fewjoule.federation.carrier.log import Log
from fewjoule.federation.kits import Kit, read_kit
from fewjoule.federation.trust import clean

AGENT_METHOD, OPERATOR_METHOD = "/fewjoule/Agent", "/fewjoule/Operator"
HANDSHAKE_SECONDS = 5.0
KEEPALIVE_SECONDS = 10.0
IDLE_SECONDS = 60.0
MOST_CONNECTIONS = 4096
LARGEST_METADATA = 8 << 10
_ONLY_PLAIN = 1  # the bit of "identity", the encoding that compresses nothing

_BOTH = [
    ("grpc.max_receive_message_length", LARGEST_PIECE),
    ("grpc.max_send_message_length", LARGEST_PIECE),
    ("grpc.max_metadata_size", LARGEST_METADATA),
    ("grpc.absolute_max_metadata_size", LARGEST_METADATA),
    ("grpc.compression_enabled_algorithms_bitset", _ONLY_PLAIN),
    ("grpc.per_message_decompression", 0),
    ("grpc.keepalive_time_ms", int(1e3 * KEEPALIVE_SECONDS)),
    ("grpc.keepalive_timeout_ms", int(1e3 * KEEPALIVE_SECONDS)),
    ("grpc.http2.max_pings_without_data", 0),
]
SERVER_OPTIONS = [
    *_BOTH,
    ("grpc.so_reuseport", 0),  # a port in use is an error
    ("grpc.server_handshake_timeout_ms", int(1e3 * HANDSHAKE_SECONDS)),
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.max_connection_idle_ms", int(1e3 * IDLE_SECONDS)),
    ("grpc.http2.min_ping_interval_without_data_ms", int(500 * KEEPALIVE_SECONDS)),
]
CLIENT_OPTIONS = [
    *_BOTH,
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5000),
]


def server_credentials(kit: Kit, log: Log) -> grpc.ServerCredentials:
    """Only who shows a certificate of the federation's own root gets through the handshake.

    The kit is read again when its certificate changes, so a renewed one serves without a restart.
    """

    def configuration(now: Kit) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(now.key, now.certificate)], root_certificates=now.ca)

    used = [_stamp(kit.folder)]

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        """Before every handshake: None where nothing has changed."""
        if (stamp := _stamp(kit.folder)) == used[0]:
            return None
        used[0] = stamp
        try:
            now = read_kit(kit.folder, "server")
        except InputError as error:
            log.refused("the kit", "certificate.pem", str(error))
            return None
        log.say(f"the server's certificate was renewed; it ends on {now.ends:%Y-%m-%d}")
        return configuration(now)

    return grpc.dynamic_ssl_server_credentials(configuration(kit), renewed, require_client_authentication=True)


def _stamp(folder: Path) -> tuple[tuple[int, int], ...]:
    """What changes when a kit is renewed."""
    facts = [path.stat() for name in ("ca.pem", "certificate.pem", "key.pem") if (path := folder / name).exists()]
    return tuple((fact.st_mtime_ns, fact.st_ino) for fact in facts)


def channel_credentials(kit: Kit) -> grpc.ChannelCredentials:
    """The server must show a certificate of the federation's root, for serving, with the host name of the kit."""
    return grpc.ssl_channel_credentials(kit.ca, kit.key, kit.certificate)


def listening_address(kit: Kit) -> str:
    """A server named localhost is for this machine alone; any other listens on all interfaces."""
    return f"localhost:{kit.facts.port}" if kit.facts.host == "localhost" else f"[::]:{kit.facts.port}"


def explain(code: grpc.StatusCode, details: str, kit: Kit) -> str:
    """Why a connection failed, as one line with what to do."""
    place, told = kit.address, clean(details)
    if code == grpc.StatusCode.ALREADY_EXISTS:
        return f"the server knows this kit from elsewhere: {told}; stop one of the two, or ask for a kit of your own"
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return f"refused by the server: {told}"
    if code != grpc.StatusCode.UNAVAILABLE:
        return f"the server {place} ended the connection: {told or code.name}"
    if any(words in told for words in ("DNS", "resolv", "lookup")):
        return f"the name {kit.facts.host} cannot be resolved; check the network, and the name with the operator"
    if "not in peer certificate" in told or "Hostname" in told:
        return f"what answers at {place} has a certificate for another name; nothing was sent"
    if "CERTIFICATE_VERIFY_FAILED" in told:
        return (
            f"what answers at {place} is not this federation's server, or its certificate has expired; nothing was "
            "sent: ask the operator"
        )
    if any(words in told for words in ("handshake", "SSL_ERROR", "ALERT", "Socket closed", "Connection reset")):
        return (
            f"the server {place} closed the connection without a word: it does not accept this kit's certificate "
            "(another federation's, or expired there), or it is ending just now"
        )
    return f"the server {place} is away ({told.rsplit(': ', 1)[-1][:100]})"
