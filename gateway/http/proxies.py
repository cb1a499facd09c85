"""The client's address behind proxies: only the statement of a trusted proxy about its own peer counts."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
Networks = Sequence[IPv4Network | IPv6Network]


def client_address(peer: str, forwarded_for: Sequence[str], trusted: Networks) -> str:
    """The right-most address of `peer` and the X-Forwarded-For lines that is not trusted.

    Entries to its left were written by the client itself. If an entry is not an address, the result is the proxy that
    passed it on, the last known address.
    """
    client = peer
    hops = [hop.strip() for line in forwarded_for for hop in line.split(",")]
    while hops and is_within(client, trusted):
        address = _address(hops.pop())
        if address is None:
            break
        client = str(address)
    return client


def is_within(host: str, networks: Networks) -> bool:
    """False if `host` is not an address."""
    address = _address(host)
    return address is not None and any(address in network for network in networks)


def _address(text: str) -> Address | None:
    """Parses `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` and `[2001:db8::1]:80`; `::ffff:192.0.2.1` becomes IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
