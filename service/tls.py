"""Certificates: what the service shows, and whom its callers believe."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from service.settings import Settings, SettingsError

_FIRST_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def check_certificate(settings: Settings) -> None:
    """Raise SettingsError unless certificate and key, where they are set, can be read and belong together."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None or key is None:
        return
    for name, file in (("tls_certificate", certificate), ("tls_key", key)):
        try:
            file.read_bytes()
        except OSError as error:
            raise SettingsError(
                f"{name}={file} cannot be read ({error.strerror}); name a PEM file that this user may read"
            ) from None
    try:
        # Without a password of its own here, OpenSSL would ask for one at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: b"")
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(
            f"tls_certificate={certificate} and tls_key={key} cannot be used together ({_why(error)}); give the PEM "
            "file of a certificate, followed by its chain, and that of its own key, without a password"
        ) from None


def own_trust(settings: Settings) -> ssl.SSLContext | None:
    """For callers on this machine: belief in exactly the certificate that the service shows, under any name.

    A certificate is made for the name that others call, and maybe by nobody whom this machine knows. None without
    TLS. Raises SettingsError when the file cannot be read any more.
    """
    if settings.tls_certificate is None:
        return None
    try:
        found = _FIRST_CERTIFICATE.search(settings.tls_certificate.read_text())
        if found is None:
            raise ValueError("it holds no certificate")
        context = _of_authority(cadata=found[0])
    except (OSError, ValueError) as error:
        raise SettingsError(f"tls_certificate={settings.tls_certificate} cannot be read: {_why(error)}") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


def authority_trust(file: Path) -> ssl.SSLContext:
    """Belief in what the authorities of a PEM file have signed. Raises SettingsError."""
    try:
        return _of_authority(cadata=file.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"CONCERTINA_CA_FILE={file} cannot be used ({_why(error)}); name a PEM file of the authority's certificate"
        ) from None


def _of_authority(*, cadata: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=cadata)
    return context


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
