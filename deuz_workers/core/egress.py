"""Where URLs that come from data may lead (decision 35): one rule for webhooks, tool servers, files and documents.

Names of hosts say nothing, addresses do: a name is looked up, each of its addresses is judged, and the connection is made to
one that was judged (`providers.guarded`). What an operator's own networks hold is reachable where the setting `egress_allow`
names it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from deuz_workers.errors import ConfigurationError, EgressRefusedError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_PORTS = {"http": 80, "https": 443}
_METADATA = frozenset(map(ipaddress.ip_address, ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254")))
"""Of clouds, beside 169.254.0.0/16 (Azure, Alibaba, Oracle, AWS over IPv6); the first is no private address."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")


@dataclass(frozen=True, slots=True)
class Target:
    """A URL in parts. `host` is lower case and without brackets."""

    scheme: str
    host: str
    port: int
    path: str
    """With its query."""

    @property
    def authority(self) -> str:
        """As the header `Host` says it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def at(self, address: Address) -> str:
        """The same URL with the address instead of the name."""
        host = f"[{address}]" if address.version == 6 else str(address)
        return f"{self.scheme}://{host}:{self.port}{self.path}"


@dataclass(frozen=True, slots=True)
class Egress:
    """`allowed`: networks and hosts that are reached although they are private."""

    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    def target(self, url: str) -> Target:
        """The URL in parts. Raises `EgressRefusedError`, naming what is wrong and nothing else of the URL."""
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            raise EgressRefusedError("the URL cannot be read", code="egress_url") from None
        if any(ord(char) <= 32 or ord(char) > 126 or char == "\\" for char in url):
            raise EgressRefusedError("the URL has characters that no URL has; encode them", code="egress_url")
        if parts.scheme not in _PORTS or not host:
            raise EgressRefusedError("the URL is no https URL with a host", code="egress_scheme")
        if parts.username is not None or parts.password is not None:
            raise EgressRefusedError("the URL has an account in it; nothing secret belongs there", code="egress_account")
        target = Target(
            parts.scheme,
            host.lower(),
            port or _PORTS[parts.scheme],
            (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        )
        literal = _literal(target.host)
        is_named = target.host in self.hosts or (literal is not None and self._is_allowed(literal))
        if target.scheme == "http" and not is_named:
            raise EgressRefusedError("the URL is not https; egress_allow names hosts that may do without", code="egress_scheme")
        if literal is not None:
            self.check(target, [literal])
        elif _is_odd_number(target.host) and not is_named:
            raise EgressRefusedError("the host of the URL is a number in a spelling that hides an address", code="egress_url")
        return target

    def check(self, target: Target, addresses: Iterable[Address]) -> tuple[Address, ...]:
        """All addresses of the host, if data may lead to each of them. Raises `EgressRefusedError`."""
        found = tuple(addresses)
        if not found:
            raise EgressRefusedError(f"{target.host} has no address", code="egress_unknown_host")
        if target.host in self.hosts:
            return found
        for address in found:
            if not (is_public(address) or self._is_allowed(address)):
                raise EgressRefusedError(
                    f"{target.host} is inside a network that data must not lead to; if it is meant, name it in the setting "
                    "egress_allow (DEUZ_EGRESS_ALLOW)",
                    code="egress_private",
                )
        return found

    def _is_allowed(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self.networks)


def egress_of(allow: Iterable[str]) -> Egress:
    """Of the setting: networks, addresses and names of hosts. Raises `ConfigurationError` for what is none of them."""
    networks: list[Network] = []
    hosts: set[str] = set()
    for entry in allow:
        try:
            networks.append(ipaddress.ip_network(entry))
        except ValueError:
            host = entry.rstrip(".").lower()
            if not host or "/" in host or ":" in host or not host.isascii() or any(char.isspace() for char in host):
                raise ConfigurationError(
                    f"egress_allow takes hosts, addresses and networks such as 10.1.0.0/16, not {entry!r}"
                ) from None
            hosts.add(host)
    return Egress(tuple(networks), frozenset(hosts))


def is_public(address: Address) -> bool:
    """Reachable by everybody: not private, loopback, link-local, multicast, reserved, or of a cloud's metadata service; nor an
    IPv6 address that stands for such a one."""
    if address in _NAT64:  # reserved itself, and as public as what it stands for
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address in _METADATA or not address.is_global or address.is_multicast or address.is_reserved:
        return False
    return all(map(is_public, _inner(address))) if address.version == 6 else True


def _inner(address: ipaddress.IPv6Address) -> list[Address]:
    """IPv4 addresses that gateways would reach in its place (RFC 4291, 6052, 3056, 4380)."""
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _COMPATIBLE:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [found for found in inner if found is not None]


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_odd_number(host: str) -> bool:
    """`2130706433`, `0x7f.1`, `0177.0.0.1`: resolvers take them for addresses."""
    last = host.rpartition(".")[2]
    return last.isdigit() or last.startswith("0x")
