"""Where a signal goes, as the ``OTEL_EXPORTER_OTLP_*`` variables say.

Source: OpenTelemetry specification, *OTLP exporter configuration*.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

from otel_modtrack.otlp import variables
from otel_modtrack.usage import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["GRPC", "HTTP", "JSON", "SIGNALS", "Endpoint", "Tls", "read_endpoint"]

HTTP, GRPC, JSON = "http/protobuf", "grpc", "http/json"
SIGNALS: Final = ("traces", "metrics", "logs")
_ARGUMENT: Final = "endpoint="
_DEFAULT = {HTTP: "http://localhost:4318", JSON: "http://localhost:4318", GRPC: "localhost:4317"}
_TIMEOUT_S = 10.0
_GRPC_HEADER: Final = re.compile(r"[0-9a-z_.-]+(?<!-bin)")
# What each protocol needs beside the SDK.
_NEEDED = {
    HTTP: ("opentelemetry.exporter.otlp.proto.http", "otlp"),
    GRPC: ("opentelemetry.exporter.otlp.proto.grpc", "otlp"),
    JSON: ("opentelemetry.exporter.otlp.json.common", "demo"),
}


@dataclass(frozen=True, repr=False)
class Tls:
    """Files for TLS, as far as they are set.

    Attributes:
        certificate: authorities that the server's certificate is checked against.
        client_key, client_certificate: what this side shows.
    """

    certificate: str = ""
    client_key: str = ""
    client_certificate: str = ""


@dataclass(frozen=True, repr=False)
class Endpoint:
    """Where one signal goes. Its headers may hold a token: nothing of it prints them.

    Attributes:
        signal: ``traces``, ``metrics`` or ``logs``.
        protocol: `HTTP`, `GRPC` or `JSON`.
        url: with the path of the signal; for gRPC, host and port.
        shown: the same without credentials and query, fit to be printed.
        headers: that go with every request.
        timeout_s: for one request.
        compression: ``gzip`` or ``none``.
        tls: files for TLS.
        secure: whether gRPC uses TLS; HTTP tells it by its scheme.
    """

    signal: str
    protocol: str
    url: str
    shown: str
    headers: dict[str, str]
    timeout_s: float
    compression: str
    tls: Tls
    secure: bool

    def __repr__(self) -> str:
        return f"<Endpoint {self.signal} {self.protocol} {self.shown}>"


def read_endpoint(
    signal: str,
    protocol: str | None = None,
    address: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Endpoint:
    """The endpoint that the environment names for a signal, or the default one.

    Args:
        signal: one of `SIGNALS`.
        protocol: to use whatever the environment says.
        address: likewise, as a signal's own variable would have it.
        headers: likewise.

    Raises:
        ConfigurationError: if a variable or an argument cannot be used.
    """

    def names(setting: str) -> tuple[str, str]:
        return (
            f"OTEL_EXPORTER_OTLP_{signal.upper()}_{setting}",
            f"OTEL_EXPORTER_OTLP_{setting}",
        )

    if protocol is not None and protocol not in _NEEDED:
        raise ConfigurationError(
            f"protocol={variables.shown(protocol)!r} is not supported; use {', '.join(_NEEDED)}"
        )
    protocol = protocol or variables.choice(tuple(_NEEDED), *names("PROTOCOL")) or HTTP
    _check_installed(protocol, variables.text(*names("PROTOCOL"))[1])
    url, variable = variables.text(*names("ENDPOINT"))
    is_own = variable == names("ENDPOINT")[0] and bool(url)
    if address is not None:
        if not isinstance(address, str):
            raise ConfigurationError(f"{_ARGUMENT} wants an address, not {type(address).__name__}")
        url, variable, is_own = address.strip(), _ARGUMENT, True
    parts = _split(url or _DEFAULT[protocol], variable, protocol)
    shown = _shown(parts)
    if protocol == GRPC:
        address, secure = _grpc_address(parts, variable, names("INSECURE"))
        shown = address
    else:
        secure = parts.scheme == "https"
        if not is_own:
            parts = parts._replace(path=f"{parts.path.rstrip('/')}/v1/{signal}")
            shown = _shown(parts)
        address = parts.geturl()
    return Endpoint(
        signal=signal,
        protocol=protocol,
        url=address,
        shown=shown,
        headers=_headers(names("HEADERS"), protocol, headers),
        timeout_s=variables.number(_TIMEOUT_S, *names("TIMEOUT"), at_least=0.001),
        compression=variables.choice(("gzip", "none"), *names("COMPRESSION")) or "none",
        tls=_read_tls(names),
        secure=secure,
    )


def _check_installed(protocol: str, variable: str) -> None:
    package, extra = _NEEDED[protocol]
    try:
        found = find_spec(package) is not None
    except ModuleNotFoundError:  # a package around it is missing
        found = False
    if not found:
        raise ConfigurationError(
            f"{variable}: {protocol} needs a package that is not installed;"
            f" install it with pip install 'otel_modtrack[{extra}]'"
        )


def _headers(
    names: tuple[str, str], protocol: str, given: Mapping[str, str] | None
) -> dict[str, str]:
    if given is None:
        found, source = variables.pairs(*names, headers=True), variables.text(*names)[1]
    else:
        source = "headers="
        found = variables.headers(given, source)
    if protocol == GRPC and not all(_GRPC_HEADER.fullmatch(name) for name in found):
        raise ConfigurationError(  # names are not told: one may be a token without its name
            f"{source} has a name in it that gRPC does not take; use letters,"
            " digits, -, _ and ., without -bin at the end"
        )
    return found


def _split(url: str, variable: str, protocol: str) -> SplitResult:
    """The parts of an address; gRPC's needs no scheme."""
    is_bare = protocol == GRPC and "://" not in url
    try:
        parts = urlsplit(f"//{url}" if is_bare else url)
        fits = bool(parts.hostname) and (is_bare or parts.scheme in ("http", "https"))
        fits = fits and parts.port != 0  # asking for it checks it
        # A password with a bare / or ? in it would be taken for a path, and shown.
        fits = fits and "@" not in f"{parts.path}{parts.query}{parts.fragment}"
        fits = fits and not any(character.isspace() for character in url)
    except ValueError:
        fits = False
    if not fits:
        example = _DEFAULT[HTTP] if protocol != GRPC else "http://localhost:4317"
        if variable == _ARGUMENT and protocol != GRPC:
            example += "/v1/traces"  # it is used as it is
        raise ConfigurationError(f"{variable} is no address; set it to one such as {example}")
    return parts


def _grpc_address(parts: SplitResult, variable: str, insecure: tuple[str, str]) -> tuple[str, bool]:
    if "@" in parts.netloc:
        raise ConfigurationError(
            f"{variable} has credentials in it, which gRPC does not take;"
            " put them into OTEL_EXPORTER_OTLP_HEADERS"
        )
    default = "" if parts.port is not None else (":443" if parts.scheme == "https" else ":4317")
    if parts.scheme:
        return parts.netloc + default, parts.scheme == "https"
    plain = variables.flag(*insecure)
    if plain is None:  # nobody set an address: the default one is this machine
        plain = not variables.text(variable)[0]
    return parts.netloc + default, not plain


def _shown(parts: SplitResult) -> str:
    """An address without user, password and query."""
    scheme = f"{parts.scheme}://" if parts.scheme else ""
    return f"{scheme}{parts.netloc.rpartition('@')[2]}{parts.path}"


def _read_tls(names: Callable[[str], tuple[str, str]]) -> Tls:
    """The files, read once to see that they can be used.

    What is said of them names no path: it may be a key itself, put there in place of its file. For
    the same reason nothing is raised while another error is handled, which would be its context.
    """
    certificate, one = variables.text(*names("CERTIFICATE"))
    key, two = variables.text(*names("CLIENT_KEY"))
    chain, three = variables.text(*names("CLIENT_CERTIFICATE"))
    for path, name in ((certificate, one), (key, two), (chain, three)):
        why = _why_unreadable(path) if path else ""
        if why:
            raise ConfigurationError(f"{name}: cannot read its file ({why}); name a PEM file")
    if key and not chain:
        raise ConfigurationError(f"{two} is set without {three}; set both")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if certificate and not _works(lambda: context.load_verify_locations(certificate)):
        raise ConfigurationError(f"{one}: its file holds no certificate; name a PEM file")
    # Without a password, openssl would ask for one on the terminal.
    if chain and not _works(lambda: context.load_cert_chain(chain, key or None, lambda: "")):
        raise ConfigurationError(
            f"{three} and {two} do not fit each other; name PEM files of one certificate and"
            " its key, without a passphrase"
        )
    return Tls(certificate, key, chain)


def _why_unreadable(path: str) -> str:
    try:
        with open(path, "rb"):  # noqa: PTH123 - a path as the user wrote it
            return ""
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or "no path"


def _works(load: Callable[[], None]) -> bool:
    try:
        load()
    except (OSError, ValueError):  # ssl's errors are OSErrors
        return False
    return True
