"""TLS handshakes that failed: gRPC tells of them on standard error only, and not from where.

`listening` reads what the process writes there. Lines of gRPC go into the log, where failed handshakes
count as refusals; everything else goes on to the screen.
"""

import contextlib
import os
import re
import threading
from collections.abc import Iterator

from fewjoule.federation.carrier.log import Log
from fewjoule.federation.trust import clean

VERBOSITY = {"GRPC_VERBOSITY": "INFO"}
"""For the environment, before gRPC is imported: at other levels it does not tell of handshakes at all."""
_NATIVE = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w.]+:\d+\] (.*)")
_FAILED = re.compile(r"Handshake failed with error .*OPENSSL_internal:([A-Z0-9_]+)(?:: (.*))?")
_WORDS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "UNSUPPORTED_PROTOCOL": "its TLS is older than 1.2",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not of this federation, or has ended",
    "BAD_SIGNATURE": "its certificate is not of this federation",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "HTTP_REQUEST": "it does not speak TLS",
}


def told(line: str, log: Log) -> bool:
    """Note a line of gRPC; False where it is not one."""
    match = _NATIVE.match(line)
    if match is None:
        return False
    failed = _FAILED.search(match[1])
    if failed is None:
        log.note("gRPC", line=clean(match[1]))
    else:
        reason = failed[1] if failed[1] != "CERTIFICATE_VERIFY_FAILED" else f"{failed[1]}, {clean(failed[2] or '')}"
        log.refused("somebody", "a connection", f"{_WORDS.get(failed[1], 'its TLS handshake failed')} ({reason})")
    return True


@contextlib.contextmanager
def listening(log: Log) -> Iterator[None]:
    """Read standard error while the block runs."""
    screen, (source, sink) = os.dup(2), os.pipe()
    os.dup2(sink, 2)
    os.close(sink)

    def pump() -> None:
        with os.fdopen(source, "rb") as lines:
            for raw in lines:
                if not told(raw.decode(errors="replace").rstrip(), log):
                    os.write(screen, raw)

    thread = threading.Thread(target=pump, name="standard error", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.dup2(screen, 2)  # closes the last end of the pipe, which ends the thread
        thread.join(1.0)
        os.close(screen)
