//! Which addresses may be reached (security rule 16).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// What the chart or the developer allows beyond the public internet.
#[derive(Debug, Clone, Default)]
pub struct EgressPolicy {
    /// Allows loopback and private addresses; for `cadre dev` and tests. Link-local and metadata stay closed.
    pub allow_private: bool,
    /// Ranges that are allowed although they are private. A metadata or link-local address needs a range of its own.
    pub allowed_cidrs: Vec<IpNet>,
    /// Ranges of the cluster (pods, services, nodes) that may lie in public space. Closed unless allowed above.
    pub cluster_cidrs: Vec<IpNet>,
}

/// Why an address is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Loopback,
    Private,
    LinkLocal,
    Metadata,
    Multicast,
    Reserved,
    Cluster,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
            Self::Cluster => "cluster",
        }
    }
}

impl EgressPolicy {
    /// The address to connect to, or why it is closed. IPv4 in IPv6 clothes (mapped, NAT64) is judged as IPv4.
    pub(crate) fn judge(&self, address: IpAddr) -> Result<(), Kind> {
        let address = undressed(address);
        let kind = self.kind(address);
        let Some(kind) = kind else { return Ok(()) };
        let narrow = |net: &&IpNet| match kind {
            Kind::Metadata => net.prefix_len() == net.max_prefix_len(),
            Kind::LinkLocal => net.prefix_len() >= 10 && classify(net.network()).is_some(),
            _ => true,
        };
        let listed = self.allowed_cidrs.iter().filter(narrow).any(|net| net.contains(&address));
        let private = self.allow_private && matches!(kind, Kind::Loopback | Kind::Private);
        if listed || private { Ok(()) } else { Err(kind) }
    }

    fn kind(&self, address: IpAddr) -> Option<Kind> {
        let cluster = self.cluster_cidrs.iter().any(|net| net.contains(&address));
        classify(address).or(cluster.then_some(Kind::Cluster))
    }
}

/// IPv4 that travels in an IPv6 address: `::ffff:a.b.c.d`, and `64:ff9b::a.b.c.d` which a NAT64 gateway unpacks.
fn undressed(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => {
            let [g, h] = [g.to_be_bytes(), h.to_be_bytes()];
            IpAddr::V4(Ipv4Addr::new(g[0], g[1], h[0], h[1]))
        }
        _ => address,
    }
}

/// The special kind of an address, `None` for the public internet.
fn classify(address: IpAddr) -> Option<Kind> {
    match address {
        IpAddr::V4(v4) => metadata_v4(v4).or_else(|| special_v4(v4)),
        IpAddr::V6(v6) => metadata_v6(v6).or_else(|| special_v6(v6)),
    }
}

/// Instance metadata of AWS, GCP, Azure (also in public space), Alibaba and Oracle.
fn metadata_v4(address: Ipv4Addr) -> Option<Kind> {
    let known = [[169, 254, 169, 254], [169, 254, 170, 2], [168, 63, 129, 16], [100, 100, 100, 200], [192, 0, 0, 192]];
    known.contains(&address.octets()).then_some(Kind::Metadata)
}

fn metadata_v6(address: Ipv6Addr) -> Option<Kind> {
    let known = [[0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]];
    known.contains(&address.segments()).then_some(Kind::Metadata)
}

/// After the IANA IPv4 special-purpose registry.
fn special_v4(address: Ipv4Addr) -> Option<Kind> {
    Some(match address.octets() {
        [127, ..] => Kind::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Kind::Private,
        [169, 254, ..] => Kind::LinkLocal,
        [224..=239, ..] => Kind::Multicast,
        [0 | 240..=255, ..]
        | [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _] => Kind::Reserved,
        _ => return None,
    })
}

/// After the IANA IPv6 special-purpose registry. Outside 2000::/3 nothing is public; inside it, Teredo, 6to4 and
/// documentation are closed, because what they lead to can't be judged.
fn special_v6(address: Ipv6Addr) -> Option<Kind> {
    Some(match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Kind::Loopback,
        [0xfc00..=0xfdff, ..] => Kind::Private,
        [0xfe80..=0xfebf, ..] => Kind::LinkLocal,
        [0xff00..=0xffff, ..] => Kind::Multicast,
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x2002, ..] | [0x3fff, 0..=0xfff, ..] => Kind::Reserved,
        [0x2000..=0x3fff, ..] => return None,
        _ => Kind::Reserved,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(policy: &EgressPolicy, address: &str) -> Result<(), Kind> {
        policy.judge(address.parse().unwrap())
    }

    #[test]
    fn only_the_public_internet_is_open() {
        let policy = EgressPolicy { cluster_cidrs: vec!["44.0.0.0/8".parse().unwrap()], ..EgressPolicy::default() };
        let cases = [
            ("1.1.1.1", None),
            ("172.32.0.1", None),
            ("100.128.0.1", None),
            ("2606:4700::1111", None),
            ("::ffff:1.1.1.1", None),
            ("64:ff9b::1.1.1.1", None),
            ("0.0.0.0", Some(Kind::Reserved)),
            ("127.0.0.1", Some(Kind::Loopback)),
            ("127.255.255.254", Some(Kind::Loopback)),
            ("10.1.2.3", Some(Kind::Private)),
            ("172.16.0.1", Some(Kind::Private)),
            ("192.168.1.1", Some(Kind::Private)),
            ("100.64.0.1", Some(Kind::Private)),
            ("169.254.0.1", Some(Kind::LinkLocal)),
            ("169.254.169.254", Some(Kind::Metadata)),
            ("168.63.129.16", Some(Kind::Metadata)),
            ("100.100.100.200", Some(Kind::Metadata)),
            ("192.0.0.192", Some(Kind::Metadata)),
            ("224.0.0.1", Some(Kind::Multicast)),
            ("255.255.255.255", Some(Kind::Reserved)),
            ("198.18.0.1", Some(Kind::Reserved)),
            ("203.0.113.9", Some(Kind::Reserved)),
            ("44.1.2.3", Some(Kind::Cluster)),
            ("::", Some(Kind::Reserved)),
            ("::1", Some(Kind::Loopback)),
            ("::ffff:127.0.0.1", Some(Kind::Loopback)),
            ("::ffff:169.254.169.254", Some(Kind::Metadata)),
            ("::ffff:44.1.2.3", Some(Kind::Cluster)),
            ("::127.0.0.1", Some(Kind::Reserved)),
            ("64:ff9b::10.0.0.1", Some(Kind::Private)),
            ("64:ff9b:1::1", Some(Kind::Reserved)),
            ("2002:7f00:1::", Some(Kind::Reserved)),
            ("2001:0:1::1", Some(Kind::Reserved)),
            ("2001:db8::1", Some(Kind::Reserved)),
            ("fd00:ec2::254", Some(Kind::Metadata)),
            ("fd12::1", Some(Kind::Private)),
            ("fe80::1", Some(Kind::LinkLocal)),
            ("fec0::1", Some(Kind::Reserved)),
            ("ff02::1", Some(Kind::Multicast)),
            ("100::1", Some(Kind::Reserved)),
        ];
        for (address, expected) in cases {
            assert_eq!(judged(&policy, address).err(), expected, "{address}");
        }
    }

    #[test]
    fn what_is_allowed_opens_no_more_than_it_says() {
        let dev = EgressPolicy { allow_private: true, ..EgressPolicy::default() };
        for open in ["127.0.0.1", "::1", "10.0.0.1", "fd12::1", "::ffff:127.0.0.1"] {
            assert_eq!(judged(&dev, open), Ok(()), "{open}");
        }
        for closed in ["169.254.169.254", "169.254.1.1", "fe80::1", "224.0.0.1", "0.0.0.0", "100.100.100.200"] {
            assert!(judged(&dev, closed).is_err(), "{closed}");
        }
        let all = EgressPolicy { allowed_cidrs: vec!["0.0.0.0/0".parse().unwrap()], ..EgressPolicy::default() };
        assert_eq!(judged(&all, "10.0.0.1"), Ok(()));
        assert!(judged(&all, "169.254.169.254").is_err() && judged(&all, "169.254.1.1").is_err());
        let exact =
            EgressPolicy { allowed_cidrs: vec!["169.254.169.254/32".parse().unwrap()], ..EgressPolicy::default() };
        assert_eq!(judged(&exact, "169.254.169.254"), Ok(()));
    }
}
