"""Who the client is, when proxies stand between: only what a trusted one says about its own peer counts."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
Networks = Sequence[IPv4Network | IPv6Network]


def client_address(peer: str, forwarded_for: Sequence[str], trusted: Networks) -> str:
    """The right-most address of `peer` and the X-Forwarded-For lines that is not trusted.

    What stands left of it was written by the client itself. Where an entry is no address, the proxy that passed it on
    is the last that is known.
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
    """False for what is no address."""
    address = _address(host)
    return address is not None and any(address in network for network in networks)


def _address(text: str) -> Address | None:
    """Of `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` or `[2001:db8::1]:80`; `::ffff:192.0.2.1` is the IPv4 address."""
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
