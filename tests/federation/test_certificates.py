"""Certificates: who they name, what else is refused, and roots that follow each other. The oracle is OpenSSL's TLS."""

import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from fewjoule import InputError
from fewjoule.federation import certificates as c
from tests.federation.turned_clock import BEGIN

ID = "0123456789abcdef" * 2
DAY = timedelta(days=1)


def leaf(root: c.Root, role: str = "agent", name: str = "north", hosts: tuple[str, ...] = (), **more: object):
    key = c.make_key()
    settings = {"at": BEGIN, "lasts": 90 * DAY, **more}
    return c.issue(root, ID, role, name, c.public_key_of(key), hosts=hosts, **settings), key  # type: ignore[arg-type]


def test_a_certificate_names_its_holder_in_pem_and_der() -> None:
    root = c.make_root(ID, BEGIN)
    pem, _ = leaf(root)
    der = x509.load_pem_x509_certificate(pem)
    identity = c.identity_of(pem)
    assert identity == (ID, "agent", "north", der.serial_number)
    assert c.identity_of(der.public_bytes(serialization.Encoding.DER)) == identity
    assert c.ends(pem) == BEGIN + 90 * DAY
    assert c.begins(pem) == BEGIN - c.SKEW
    assert c.is_signed_by(pem, root.certificate)
    assert not c.is_signed_by(pem, c.make_root(ID, BEGIN).certificate)


def test_a_certificate_does_not_outlive_its_root() -> None:
    root = c.make_root(ID, BEGIN, lasts=10 * DAY)
    leaf(root, lasts=10 * DAY)
    with pytest.raises(ValueError, match="would outlive its root"):
        leaf(root, lasts=10 * DAY + timedelta(seconds=1))


def stranger(
    uris: tuple[str, ...], role: str = "agent", hosts: tuple[str, ...] = (), key=None, ca: bool = False, usages=None
) -> bytes:  # fmt: skip
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    names = [*map(x509.UniformResourceIdentifier, uris), *map(x509.DNSName, hosts)]
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(5).not_valid_before(BEGIN).not_valid_after(BEGIN + DAY)
    for extension in (
        x509.SubjectAlternativeName(names), x509.BasicConstraints(ca, None),
        x509.ExtendedKeyUsage(usages or [c.USAGE[role]]),
    ):  # fmt: skip
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


GOOD = f"fewjoule://{ID}/agent/north"
BOTH = [c.USAGE["agent"], c.USAGE["server"]]


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        (lambda: b"nonsense", "none of a fewjoule federation"),
        (lambda: b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "none of a fewjoule"),
        (lambda: c.make_root(ID, BEGIN).certificate, "none of a fewjoule federation"),
        (lambda: stranger((GOOD, GOOD)), "does not name one site"),
        (lambda: stranger((f"{GOOD}/x",)), "does not name one site"),
        (lambda: stranger((f"{GOOD}%2fx",)), "does not name one site"),
        (lambda: stranger((f"fewjoule://{ID}/authority/north",)), "does not name one site"),
        (lambda: stranger((f"fewjoule://{ID.upper()}/agent/north",)), "does not name one site"),
        (lambda: stranger((f"http://{ID}/agent/north",)), "does not name one site"),
        (lambda: stranger((GOOD,), role="server"), "does not name one site"),
        (lambda: stranger((GOOD,), usages=BOTH), "does not name one site"),
        (lambda: stranger((GOOD,), ca=True), "does not name one site"),
        (lambda: stranger((GOOD,), hosts=("fl.example.org",)), "names hosts, which only a server's may"),
        (lambda: stranger((GOOD,), key=rsa.generate_private_key(65537, 2048)), "another kind of key"),
        (lambda: stranger((GOOD,), key=ec.generate_private_key(ec.SECP384R1())), "another kind of key"),
    ],
)
def test_any_other_form_is_refused(certificate, words: str) -> None:
    assert c.identity_of(stranger((GOOD,))) == (ID, "agent", "north", 5)  # the form itself is fine
    with pytest.raises(InputError, match=words):
        c.identity_of(certificate())


def test_signatures_count_for_their_root_alone() -> None:
    one, other = c.make_root(ID, BEGIN), c.make_root(ID, BEGIN)
    signature = c.sign(b"text", one)
    assert c.is_signature(signature, b"text", one.certificate)
    assert c.is_signature(signature, b"text", other.certificate + one.certificate)
    assert not c.is_signature(signature, b"texts", one.certificate)
    assert not c.is_signature(signature, b"text", other.certificate)
    assert not c.is_signature(b"", b"text", one.certificate)


def handshake(folder: Path, server: tuple[bytes, bytes], client: tuple[bytes, bytes], trusted: tuple[bytes, bytes]):
    """A TLS handshake in memory, both sides strict; `trusted` are the roots of the server and of the client."""
    contexts = []
    for side, (certificate, key), roots in zip((True, False), (server, client), trusted, strict=True):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if side else ssl.PROTOCOL_TLS_CLIENT)
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_verify_locations(cadata=roots.decode())
        (folder / "c.pem").write_bytes(certificate)
        (folder / "k.pem").write_bytes(key)
        context.load_cert_chain(folder / "c.pem", folder / "k.pem")
        contexts.append(context)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        contexts[0].wrap_bio(to_server, to_client, server_side=True),
        contexts[1].wrap_bio(to_client, to_server, server_hostname="fl.example.org"),
    ]
    done = [False, False]
    for _ in range(10):
        for i, side in enumerate(sides):
            try:
                side.do_handshake()
                done[i] = True
            except ssl.SSLWantReadError:
                continue
    assert done == [True, True]
    return sides


HOSTS = ("fl.example.org", "127.0.0.2", "::1")


@pytest.fixture
def first() -> c.Root:
    # TLS looks at the real clock
    return c.make_root(ID, c.now(), lasts=100 * DAY)


def test_tls_accepts_each_for_its_role_alone(tmp_path: Path, first: c.Root) -> None:
    server, agent = (leaf(first, role, role, hosts, at=c.now()) for role, hosts in (("server", HOSTS), ("agent", ())))
    handshake(tmp_path, server, agent, (first.certificate, first.certificate))
    impostor = leaf(first, "server", "server", ("evil.example.org",), at=c.now())
    for wrong in ((agent, agent), (server, server), (impostor, agent)):
        with pytest.raises(ssl.SSLError):
            handshake(tmp_path, *wrong, (first.certificate, first.certificate))
    other = c.make_root(ID, c.now())
    with pytest.raises(ssl.SSLError):
        handshake(tmp_path, server, leaf(other, at=c.now()), (first.certificate, first.certificate))


def test_tls_refuses_what_has_ended(tmp_path: Path, first: c.Root) -> None:
    server, ended = leaf(first, "server", "server", HOSTS, at=c.now()), leaf(first, at=c.now() - 91 * DAY)
    with pytest.raises(ssl.SSLError, match="expired"):
        handshake(tmp_path, server, ended, (first.certificate, first.certificate))


def test_old_and_new_roots_understand_each_other(tmp_path: Path, first: c.Root) -> None:
    """The new root is signed by the old one: nobody has to be changed at the same moment as anybody else."""
    second = c.make_root(ID, c.now(), first)
    old, both, new = first.certificate, first.certificate + second.certificate, second.certificate
    for roots in ((old, old), (old, both), (both, old), (both, both)):
        # server and agent signed by either root, whoever trusts the old one at least
        for server_root in (first, second):
            for agent_root in (first, second):
                server = leaf(server_root, "server", "server", HOSTS, at=c.now())
                handshake(tmp_path, server, leaf(agent_root, at=c.now()), roots)
    handshake(
        tmp_path, leaf(second, "server", "server", HOSTS, at=c.now()), leaf(second, at=c.now()), (new, new)
    )  # what remains when the old one is forgotten
    with pytest.raises(ssl.SSLError):
        handshake(tmp_path, leaf(first, "server", "server", HOSTS, at=c.now()), leaf(second, at=c.now()), (new, new))


def test_a_cross_ends_with_the_root_that_signed_it(first: c.Root) -> None:
    second = c.make_root(ID, BEGIN + DAY, first)
    assert c.ends(second.cross) == first.ends < second.ends
    third = c.make_root(ID, BEGIN + 2 * DAY, second)
    names = [x509.load_pem_x509_certificate(r.certificate).subject.rfc4514_string() for r in (first, second, third)]
    assert names == [f"CN=fewjoule {ID} root {n}" for n in (1, 2, 3)]
