"""Who may talk to a sampler: hosts that only this machine reaches, and the bearer token. No jax."""

from __future__ import annotations

import ipaddress
import os
import pathlib
import socket

TOKEN_VARIABLE = "JAXRL_SAMPLER_TOKEN"


def is_loopback(host: str) -> bool:
    """True for an address that other machines can't reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check(host: str, token: str | None) -> None:
    """Raises ValueError for a host that others reach without a token, and for an empty one."""
    if not token and token is not None:
        raise ValueError("sampler server: the token is empty; give a secret, or None for none")
    if token is None and not is_loopback(host):
        raise ValueError(
            f"sampler server: others can reach host {host!r}, so it needs a token; put a "
            f"secret into {TOKEN_VARIABLE} or a file, or listen on 127.0.0.1"
        )


def url(host: str, port: int) -> str:
    """Where a server is found; one that listens everywhere is called by the machine's name."""
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def read_token(path: str = "") -> str | None:
    """The bearer token: from the file at path, else from JAXRL_SAMPLER_TOKEN, else None.

    Raises:
      ValueError: the file is empty.
      OSError: it can't be read.
    """
    if not path:
        return os.environ.get(TOKEN_VARIABLE) or None
    token = pathlib.Path(path).read_text().strip()
    if not token:
        raise ValueError(f"the token file {path} is empty")
    return token
