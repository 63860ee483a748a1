"""HTTP connections to samplers: any number, for any time, and a dead end is noticed."""

from __future__ import annotations

import socket

import aiohttp

_CONNECT_S = 10.0
_KEEPALIVE = {  # of TCP: a machine that has vanished is noticed within two minutes
    "TCP_KEEPIDLE": 60,  # seconds of silence before the first probe
    "TCP_KEEPINTVL": 15,  # seconds between probes
    "TCP_KEEPCNT": 4,  # unanswered probes
}


def open_session(token: str | None) -> aiohttp.ClientSession:
    """A session whose answers may take any time, with a bearer token or without."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, socket_factory=_socket),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        headers=headers,
    )


def _socket(address: tuple) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not all of them on every system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
