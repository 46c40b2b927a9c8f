"""A self-signed certificate for 127.0.0.1 with its key, made from nothing but arithmetic: ECDSA on P-256
(FIPS 186-4, SEC 1) in the DER of X.509 (RFC 5280, RFC 5915). For tests alone."""

import base64
import hashlib
import secrets
from pathlib import Path

P = 2**256 - 2**224 + 2**192 + 2**96 - 1
A = P - 3
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
     0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5)
EC_KEY, P256 = bytes.fromhex("06072a8648ce3d0201"), bytes.fromhex("06082a8648ce3d030107")
ECDSA_SHA256 = bytes.fromhex("06082a8648ce3d040302")
COMMON_NAME, ALT_NAME = bytes.fromhex("0603550403"), bytes.fromhex("0603551d11")
Point = tuple[int, int] | None


def write_certificate(folder: Path, *, since: str = "200101", until: str = "491231") -> tuple[Path, Path]:
    """(certificate, key), both PEM. since, until: days, YYMMDD."""
    secret = 1 + secrets.randbelow(N - 1)
    point = _times(secret, G)
    assert point is not None
    public = b"\x04" + point[0].to_bytes(32, "big") + point[1].to_bytes(32, "big")
    name = _seq(_tlv(0x31, _seq(COMMON_NAME, _tlv(0x0C, b"ridgeline test"))))
    dates = _seq(*(_tlv(0x17, f"{day}000000Z".encode()) for day in (since, until)))
    alternatives = _seq(_tlv(0x82, b"localhost"), _tlv(0x87, bytes([127, 0, 0, 1])))
    told = _seq(
        _tlv(0xA0, _integer(2)), _integer(1 + secrets.randbelow(2**63)), _seq(ECDSA_SHA256), name, dates,
        name, _seq(_seq(EC_KEY, P256), _bits(public)),
        _tlv(0xA3, _seq(_seq(ALT_NAME, _tlv(0x04, alternatives)))),
    )  # fmt: skip
    whole = _seq(told, _seq(ECDSA_SHA256), _bits(_sign(secret, told)))
    key = _seq(_integer(1), _tlv(0x04, secret.to_bytes(32, "big")), _tlv(0xA0, P256),
               _tlv(0xA1, _bits(public)))
    paths = folder / "certificate.pem", folder / "key.pem"
    for path, kind, body in zip(paths, ("CERTIFICATE", "EC PRIVATE KEY"), (whole, key)):
        text = base64.encodebytes(body).decode()
        path.write_text(f"-----BEGIN {kind}-----\n{text}-----END {kind}-----\n")
    return paths


def _sign(secret: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    once = 1 + secrets.randbelow(N - 1)
    point = _times(once, G)
    assert point is not None
    r = point[0] % N
    return _seq(_integer(r), _integer(pow(once, -1, N) * (digest + r * secret) % N))


def _times(factor: int, point: Point) -> Point:
    total: Point = None
    while factor:
        if factor & 1:
            total = _plus(total, point)
        point, factor = _plus(point, point), factor >> 1
    return total


def _plus(one: Point, other: Point) -> Point:
    if one is None or other is None:
        return one or other
    if one[0] == other[0] and (one[1] + other[1]) % P == 0:
        return None
    if one == other:
        slope = (3 * one[0] ** 2 + A) * pow(2 * one[1], -1, P) % P
    else:
        slope = (other[1] - one[1]) * pow(other[0] - one[0], -1, P) % P
    x = (slope**2 - one[0] - other[0]) % P
    return x, (slope * (one[0] - x) - one[1]) % P


def _tlv(tag: int, body: bytes) -> bytes:
    size = len(body)
    long = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag]) + (bytes([size]) if size < 128 else bytes([0x80 | len(long)]) + long) + body


def _seq(*parts: bytes) -> bytes:
    return _tlv(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _tlv(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(body: bytes) -> bytes:
    return _tlv(0x03, b"\0" + body)
