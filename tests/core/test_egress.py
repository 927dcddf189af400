"""Where URLs that come from data may lead."""

from __future__ import annotations

import ipaddress

import pytest

from deuz_workers.core.egress import egress_of, is_public
from deuz_workers.errors import ConfigurationError, EgressRefusedError

NOWHERE = egress_of(())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "198.18.0.1",
        "::",
        "::1",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a00:1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::",
        "::7f00:1",
        "2001:db8::1",
    ],
)
def test_an_inner_address_is_not_public(address: str) -> None:
    """Private, loopback, link-local, shared, metadata, multicast and reserved ones, and IPv6 spellings of these."""
    assert not is_public(ipaddress.ip_address(address))
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(EgressRefusedError):
        NOWHERE.target(f"https://{host}/x")


@pytest.mark.parametrize("address", ["93.184.215.14", "1.1.1.1", "2606:4700::1111", "64:ff9b::101:101"])
def test_an_address_of_the_world_is_public(address: str) -> None:
    """Also one that a translator reaches."""
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "https://",
        "https:///x",
        "https://ann:pw@example.com/",
        "https://ann@example.com/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://exa mple.com/",
        "https://example.com\\@127.0.0.1/",
        "https://example.com/\n",
        "https://[::1",
        "https://example.com:99999/",
        "https://exämple.com/",
        "//example.com/",
        "",
    ],
)
def test_a_url_that_is_no_plain_https_is_refused(url: str) -> None:
    """Other schemes, accounts, numbers that hide an address, what parsers read in different ways; nothing of it is repeated."""
    with pytest.raises(EgressRefusedError) as refused:
        NOWHERE.target(url)
    assert "pw" not in refused.value.message


def test_a_host_is_refused_for_any_of_its_addresses() -> None:
    """One that has a public and a private address, or none, is not connected to."""
    target = NOWHERE.target("https://both.example/hook?x=1")
    public, private = ipaddress.ip_address("1.1.1.1"), ipaddress.ip_address("10.0.0.1")
    assert NOWHERE.check(target, [public]) == (public,)
    for addresses in ([public, private], [private], []):
        with pytest.raises(EgressRefusedError):
            NOWHERE.check(target, addresses)
    assert target.at(public) == "https://1.1.1.1:443/hook?x=1"
    assert target.at(ipaddress.ip_address("2606:4700::1111")) == "https://[2606:4700::1111]:443/hook?x=1"
    assert target.authority == "both.example"
    assert NOWHERE.target("https://both.example:8443/").authority == "both.example:8443"


def test_what_is_allowed_is_reached() -> None:
    """A host by its name with any address, over http too; a network by its addresses, whatever name leads there."""
    inner = ipaddress.ip_address("10.1.2.3")
    named = egress_of(["hooks.internal"])
    assert named.check(named.target("http://Hooks.Internal./x"), [inner]) == (inner,)
    with pytest.raises(EgressRefusedError):
        named.check(named.target("https://other.internal/"), [inner])
    network = egress_of(["10.1.0.0/16", "127.0.0.1"])
    assert network.check(network.target("https://any.example/"), [inner])
    assert network.target("http://127.0.0.1:8080/x").port == 8080
    with pytest.raises(EgressRefusedError):
        network.target("http://any.example/")
    with pytest.raises(EgressRefusedError):
        network.target("https://10.2.0.1/")


@pytest.mark.parametrize("entry", ["", "10.0.0.1/8", "https://x", "a b", "host:80"])
def test_what_names_no_place_is_a_mistake(entry: str) -> None:
    """A setting that is misspelled allows nothing silently."""
    with pytest.raises(ConfigurationError):
        egress_of([entry])
