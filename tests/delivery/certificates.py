"""An authority and two certificates of its own, made by openssl when a test wants them."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Files:
    """Who signed, what is shown, and the key to it; all PEM."""

    authority: Path
    certificate: Path
    key: Path


@functools.cache
def make_files(name: str) -> Files:
    """A certificate of `name`, good for this machine, signed by the one authority of the tests."""
    authority = _authority()
    folder = authority.parent
    certificate, key, request = (folder / f"{name}.{end}" for end in ("crt", "key", "csr"))
    extensions = folder / f"{name}.ext"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    _openssl("req", *_CURVE, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
    _openssl(
        *("x509", "-req", "-days", "2", "-in", request, "-out", certificate),
        *("-CA", authority, "-CAkey", folder / "authority.key", "-CAcreateserial"),
        *("-extfile", extensions),
    )
    return Files(authority, certificate, key)


@functools.cache
def _authority() -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = Path(tempfile.mkdtemp(prefix="certificates-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "authority.crt"
    key = folder / "authority.key"
    _openssl(
        *("req", "-x509", "-days", "2", *_CURVE, "-subj", "/CN=authority"),
        *("-keyout", key, "-out", path),
    )
    return path


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)  # noqa: S603, S607
