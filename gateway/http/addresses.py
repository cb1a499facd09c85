"""Which addresses we may connect to when somebody else supplies the host: public ones, and those that the operator
allows."""

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
Networks = Sequence[IPv4Network | IPv6Network]
_NAT64 = IPv6Network("64:ff9b::/96")
_V4_COMPATIBLE = IPv6Network("::/96")


def is_allowed(address: Address, allowed_private: Networks) -> bool:
    """Whether the address is in `allowed_private` or is public: not private, loopback, link-local (where the metadata
    services of clouds are), shared, reserved or multicast.

    An IPv4 address inside an IPv6 one (mapped, compatible, 6to4, Teredo, NAT64) must be allowed, too.
    """
    return all(_is_public(each) or _is_within(each, allowed_private) for each in _faces(address))


def parse_address(host: str) -> Address | None:
    """None if `host` is a name."""
    try:
        # A zone (`fe80::1%eth0`) names one of our own interfaces.
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _faces(address: Address) -> Iterator[Address]:
    """All addresses that a packet to this one may end up at."""
    if isinstance(address, IPv4Address):
        yield address
        return
    inner = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.ipv4_mapped is not None or address in _NAT64:
        # Only another notation of the IPv4 address.
        yield inner
        return
    yield address
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if address in _V4_COMPATIBLE and int(address) > 0xFFFF:
        yield inner


def _is_public(address: Address) -> bool:
    return address.is_global and not address.is_multicast and not address.is_reserved


def _is_within(address: Address, networks: Networks) -> bool:
    return any(address.version == network.version and address in network for network in networks)
