"""Who may talk to a sampler: hosts that only this machine reaches, and the bearer token. No jax."""

from __future__ import annotations

import ipaddress
import os
import pathlib

TOKEN_VARIABLE = "JAXRL_SAMPLER_TOKEN"


def is_loopback(host: str) -> bool:
    """True for an address that other machines can't reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
