//! Which addresses the open network is behind: a plan may be written by somebody who must
//! not reach what the worker's machine can reach. Judged is the address that a connection is
//! made to, never a name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// What an address is for, if it is not for everybody (the special-purpose registries of
/// RFC 6890 with the ranges added since).
const SPECIAL_V4: [(Ipv4Addr, u32, &str); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "an unspecified"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "a private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "a carrier-grade NAT"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "a loopback"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "a link-local"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "a private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "a reserved"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "a documentation"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "a reserved"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "a private"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "a benchmark"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "a documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "a documentation"),
    (Ipv4Addr::new(168, 63, 129, 16), 32, "a cloud platform's own"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "a multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "a reserved"),
];

/// The same for IPv6. Outside of 2000::/3 nothing is for everybody, so only the reasons of
/// that part need names of their own; within it the ranges that lead elsewhere count.
const SPECIAL_V6: [(Ipv6Addr, u32, &str); 13] = [
    (Ipv6Addr::UNSPECIFIED, 128, "an unspecified"),
    (Ipv6Addr::LOCALHOST, 128, "a loopback"),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 96, "an IPv4-compatible"),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 32, "a NAT64"),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, "a unique-local"),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, "a link-local"),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, "a site-local"),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, "a multicast"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "a protocol's own"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "a documentation"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "a 6to4"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "a documentation"),
    (Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48, "a reserved"),
];

/// Says why an address is not for everybody; `None` if it is.
pub(super) fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            // The kernel connects to what is mapped.
            Some(_) => Some("an IPv4-mapped"),
            None => special_v6(address),
        },
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let within =
        |base: Ipv4Addr, bits: u32| (address.to_bits() ^ base.to_bits()) >> (32 - bits) == 0;
    SPECIAL_V4.iter().find(|(base, bits, _)| within(*base, *bits)).map(|(_, _, what)| *what)
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let within =
        |base: Ipv6Addr, bits: u32| (address.to_bits() ^ base.to_bits()) >> (128 - bits) == 0;
    let found = SPECIAL_V6.iter().find(|(base, bits, _)| within(*base, *bits));
    let global = within(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
    found.map(|(_, _, what)| *what).or((!global).then_some("a reserved"))
}

/// A refused address, with the words for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{host}` is or leads to {address}, {what} address; only the worker's operator can allow \
     it, with `allow_private_addresses`"
)]
pub(super) struct Refused {
    host: String,
    address: IpAddr,
    what: &'static str,
}

/// Judges one address on behalf of a host.
pub(super) fn judge(host: &str, address: IpAddr) -> Result<(), Refused> {
    match special(address) {
        Some(what) => Err(Refused { host: host.to_owned(), address, what }),
        None => Ok(()),
    }
}

/// Resolves names for connections. One refused address refuses the name: a name that leads
/// both outside and inside is made for no good purpose.
pub(super) struct Guard {
    /// Whether every address is allowed.
    pub allow_private: bool,
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let allow_private = self.allow_private;
        Box::pin(async move {
            let host = name.as_str();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            if !allow_private {
                found.iter().try_for_each(|one| judge(host, one.ip()))?;
            }
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(address: &str) -> Option<&'static str> {
        special(address.parse().unwrap())
    }

    #[test]
    fn special_addresses_are_known() {
        let cases = [
            ("0.0.0.0", "an unspecified"),
            ("0.1.2.3", "an unspecified"),
            ("10.0.0.1", "a private"),
            ("100.64.0.1", "a carrier-grade NAT"),
            ("100.127.255.255", "a carrier-grade NAT"),
            ("127.0.0.1", "a loopback"),
            ("127.255.255.254", "a loopback"),
            ("169.254.169.254", "a link-local"),
            ("172.16.0.1", "a private"),
            ("172.31.255.255", "a private"),
            ("192.0.0.8", "a reserved"),
            ("192.0.2.1", "a documentation"),
            ("192.88.99.1", "a reserved"),
            ("192.168.1.1", "a private"),
            ("198.18.0.1", "a benchmark"),
            ("198.19.255.255", "a benchmark"),
            ("198.51.100.7", "a documentation"),
            ("203.0.113.9", "a documentation"),
            ("168.63.129.16", "a cloud platform's own"),
            ("224.0.0.1", "a multicast"),
            ("239.255.255.250", "a multicast"),
            ("240.0.0.1", "a reserved"),
            ("255.255.255.255", "a reserved"),
            ("::", "an unspecified"),
            ("::1", "a loopback"),
            ("::127.0.0.1", "an IPv4-compatible"),
            ("::ffff:127.0.0.1", "an IPv4-mapped"),
            ("::ffff:8.8.8.8", "an IPv4-mapped"),
            ("::ffff:0:10.0.0.1", "a reserved"),
            ("64:ff9b::7f00:1", "a NAT64"),
            ("64:ff9b:1::1", "a NAT64"),
            ("100::1", "a reserved"),
            ("2001::1", "a protocol's own"),
            ("2001:20::1", "a protocol's own"),
            ("2001:db8::1", "a documentation"),
            ("2002:7f00:1::", "a 6to4"),
            ("3fff::1", "a documentation"),
            ("fc00::1", "a unique-local"),
            ("fd12:3456::1", "a unique-local"),
            ("fe80::1", "a link-local"),
            ("fec0::1", "a site-local"),
            ("ff02::1", "a multicast"),
        ];
        for (address, expected) in cases {
            assert_eq!(what(address), Some(expected), "{address}");
        }
    }

    #[test]
    fn addresses_for_everybody_pass() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.1.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.167.1.1",
            "198.17.1.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700:4700::1111",
            "2a00:1450::1",
            "2001:200::1",
            "2001:4860:4860::8888",
        ] {
            assert_eq!(what(address), None, "{address}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_inside_is_not_resolved() {
        let name: Name = "localhost".parse().unwrap();
        let fault = Guard { allow_private: false }.resolve(name).await.err().unwrap();
        assert!(fault.downcast_ref::<Refused>().is_some(), "{fault}");
        assert!(fault.to_string().contains("a loopback address; only the worker's operator"));
        let name: Name = "localhost".parse().unwrap();
        assert!(Guard { allow_private: true }.resolve(name).await.is_ok());
    }
}
