"""Certificates of a federation: who somebody is, by which key, until when. Nothing here reads or writes a file.

A federation has its own root. A certificate names its holder once, as the URI `fewjoule://ID/ROLE/NAME`; a server's
also holds the host names that others dial. Servers may only serve with theirs, agents and operators only dial.

A root signs nothing that outlives it. The next root takes over before: it is also signed by the root before it
(`cross`), so whoever trusts only the old root accepts what the new one signs.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fewjoule.errors import InputError
from fewjoule.federation.federation_file import NAME

ROOT_LASTS = timedelta(days=3650)
LASTS = timedelta(days=365)
LONGEST = timedelta(days=1825)
"""Of one certificate: half a root, so that never more than two roots live at a time."""
SKEW = timedelta(hours=1)
"""A new certificate is valid from this long ago, for machines whose clock is behind."""
USAGE = {
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "agent": ExtendedKeyUsageOID.CLIENT_AUTH,
    "operator": ExtendedKeyUsageOID.CLIENT_AUTH,
}
_URI = re.compile(rf"fewjoule://(?P<federation>[0-9a-f]{{32}})/(?P<role>{'|'.join(USAGE)})/(?P<name>{NAME.pattern})")
_PEM = serialization.Encoding.PEM
Clock = Callable[[], datetime]


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)  # certificates count in seconds


class Identity(NamedTuple):
    """Whom a certificate names: `federation` is the federation's id, `serial` the certificate's number."""

    federation: str
    role: str
    name: str
    serial: int


class Root(NamedTuple):
    """A root with its key. `cross` is the same root signed by the one before it; empty for the first."""

    certificate: bytes
    key: bytes
    cross: bytes = b""

    @property
    def ends(self) -> datetime:
        return ends(self.certificate)


def make_root(federation: str, at: datetime, before: Root | None = None, lasts: timedelta = ROOT_LASTS) -> Root:
    """A federation's root from now on; after `before`, also signed by that."""
    key = ec.generate_private_key(ec.SECP256R1())
    number = 1 if before is None else int(_common_name(before.certificate).split()[-1]) + 1
    subject = _subject(f"fewjoule {federation} root {number}")
    own = _root_builder(subject, key.public_key(), at, at + lasts, depth=1).issuer_name(subject)
    cross = b""
    if before is not None:
        above = x509.load_pem_x509_certificate(before.certificate)
        signed = _root_builder(subject, key.public_key(), at, before.ends, depth=0).issuer_name(above.subject)
        signed = signed.add_extension(_issuer_key(above), critical=False)
        cross = signed.sign(_private(before.key), hashes.SHA256()).public_bytes(_PEM)
    return Root(own.sign(key, hashes.SHA256()).public_bytes(_PEM), _pem(key), cross)


def make_key() -> bytes:
    """A new private key, as PEM without a password."""
    return _pem(ec.generate_private_key(ec.SECP256R1()))


def issue(
    root: Root, federation: str, role: str, name: str, public_key: bytes, at: datetime, lasts: timedelta,
    hosts: Sequence[str] = (),
) -> bytes:  # fmt: skip
    """A certificate for the holder of a key, as PEM; then the root's `cross`, for peers that know only the old root."""
    above = x509.load_pem_x509_certificate(root.certificate)
    end = at + lasts
    if end > root.ends:
        raise ValueError(f"a certificate until {end} would outlive its root, which ends at {root.ends}.")
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(f"fewjoule://{federation}/{role}/{name}")]
    key = serialization.load_pem_public_key(public_key)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    builder = (
        _builder(_subject(name), key, at, end)
        .issuer_name(above.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([USAGE[role]]), critical=True)
        .add_extension(x509.SubjectAlternativeName(names + [_host(host) for host in hosts]), critical=False)
        .add_extension(_issuer_key(above), critical=False)
    )
    is_needed = root.cross and ends(root.cross) > at
    return builder.sign(_private(root.key), hashes.SHA256()).public_bytes(_PEM) + (root.cross if is_needed else b"")


def identity_of(certificate: bytes) -> Identity:
    """Whom a certificate (PEM or DER) names; refused unless it is exactly of the form that `issue` makes.

    Of a chain the first is read, as TLS does. That a root of the federation signed it is the connection's to check.
    """
    try:
        found = _load(certificate)
        extensions = found.extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        usages = list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        is_root = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        addresses = names.get_values_for_type(x509.UniformResourceIdentifier)
        key = found.public_key()
    except (ValueError, TypeError, x509.ExtensionNotFound, x509.DuplicateExtension):
        raise InputError("the certificate is none of a fewjoule federation; use a kit made by provision.") from None
    match = _URI.fullmatch(addresses[0]) if len(addresses) == 1 else None
    if match is None or is_root or usages != [USAGE[match["role"]]]:
        raise InputError("the certificate does not name one site of a federation; use a kit made by provision.")
    if match["role"] != "server" and len(list(names)) != 1:
        raise InputError(f"the certificate of {match['name']} names hosts, which only a server's may.")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError(f"the certificate of {match['name']} has another kind of key than P-256.")
    return Identity(match["federation"], match["role"], match["name"], found.serial_number)


def ends(certificate: bytes) -> datetime:
    """Until when a certificate is valid."""
    return _load(certificate).not_valid_after_utc


def begins(certificate: bytes) -> datetime:
    """From when a certificate is valid."""
    return _load(certificate).not_valid_before_utc


def public_key_of(pem: bytes) -> bytes:
    """The public key of a certificate or of a private key, as PEM: equal texts are equal keys."""
    key = _private(pem).public_key() if b"PRIVATE KEY" in pem else _load(pem).public_key()
    return key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def is_signed_by(certificate: bytes, roots: bytes) -> bool:
    """Whether one of the roots (PEM, one after the other) signed this certificate itself."""
    return any(_issued(_load(certificate), root) for root in x509.load_pem_x509_certificates(roots))


def sign(content: bytes, root: Root) -> bytes:
    return _private(root.key).sign(content, ec.ECDSA(hashes.SHA256()))


def is_signature(signature: bytes, content: bytes, roots: bytes) -> bool:
    """Whether the key of one of the roots made this signature."""
    for root in x509.load_pem_x509_certificates(roots):
        key = root.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        try:
            key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            continue
        return True
    return False


def _issued(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _load(certificate: bytes) -> x509.Certificate:
    if certificate.lstrip().startswith(b"-----BEGIN"):
        return x509.load_pem_x509_certificate(certificate)
    return x509.load_der_x509_certificate(certificate)


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not a P-256 key")
    return key


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, at: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _root_builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, at: datetime, end: datetime, depth: int
) -> x509.CertificateBuilder:
    builder = _builder(subject, key, at, end)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=depth), critical=True)
    return builder.add_extension(_key_usage(signs_certificates=True), critical=True)


def _issuer_key(above: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = above.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign")
    others = dict.fromkeys((*unused, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=True, key_cert_sign=signs_certificates, **others)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _common_name(certificate: bytes) -> str:
    (attribute,) = _load(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(attribute.value)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
