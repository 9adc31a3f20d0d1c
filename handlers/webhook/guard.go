package webhook

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
)

// guard decides which addresses may be dialled. It looks at the address that is about
// to be connected to, after the name was resolved: a check of the name alone
// would be void as soon as the name points elsewhere.
type guard struct {
	allow, deny []netip.Prefix
	publicOnly  bool
}

// refusedAddressError is a guard's no.
type refusedAddressError struct {
	addr netip.Addr
	why  string
}

func (e *refusedAddressError) Error() string {
	return fmt.Sprintf("address %s is refused: %s", e.addr, e.why)
}

func newGuard(cfg Config) (guard, error) {
	allow, err := parseNetworks(cfg.AllowNetworks)
	if err != nil {
		return guard{}, fmt.Errorf("allowed networks: %w", err)
	}
	deny, err := parseNetworks(cfg.DenyNetworks)
	if err != nil {
		return guard{}, fmt.Errorf("denied networks: %w", err)
	}
	return guard{allow: allow, deny: deny, publicOnly: cfg.PublicOnly}, nil
}

// parseNetworks reads networks and single addresses.
func parseNetworks(list []string) ([]netip.Prefix, error) {
	prefixes := make([]netip.Prefix, 0, len(list))
	for _, s := range list {
		if ip, err := netip.ParseAddr(s); err == nil && ip.Zone() == "" {
			ip = ip.Unmap()
			prefixes = append(prefixes, netip.PrefixFrom(ip, ip.BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is neither an address nor a network such as 10.0.0.0/8", s)
		}
		prefixes = append(prefixes, p.Masked())
	}
	return prefixes, nil
}

// control has the form of net.Dialer.Control.
func (g guard) control(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("address guard cannot read %q: %w", address, err)
	}
	return g.check(ap.Addr())
}

// check refuses ip if any address that it stands for is refused.
func (g guard) check(ip netip.Addr) error {
	ip = ip.WithZone("").Unmap()
	for _, a := range append(embedded(ip), ip) {
		if why := g.refusal(a); why != "" {
			return &refusedAddressError{addr: ip, why: why}
		}
	}
	return nil
}

func (g guard) refusal(ip netip.Addr) string {
	switch {
	case contains(g.deny, ip):
		return "it is in the denied networks"
	case contains(neverAllowed, ip) && !g.meant(ip):
		return "link-local, multicast, unspecified and cloud metadata addresses must be allowed one by one"
	case contains(g.allow, ip):
		return ""
	case g.publicOnly && contains(notPublic, ip):
		return "it is not a public address"
	}
	return ""
}

// meant says that an address that is never allowed was listed for its own sake: by a network that holds nothing but such
// addresses. One that is wider, such as 100.64.0.0/10, was listed for what else is in it.
func (g guard) meant(ip netip.Addr) bool {
	for _, p := range g.allow {
		if p.Contains(ip) && slices.ContainsFunc(neverAllowed, func(never netip.Prefix) bool {
			return never.Bits() <= p.Bits() && never.Contains(p.Addr())
		}) {
			return true
		}
	}
	return false
}

func contains(prefixes []netip.Prefix, ip netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// embedded returns the IPv4 address inside an IPv6 address of a translation
// scheme (NAT64, 6to4): a gateway on the way would connect to that one.
func embedded(ip netip.Addr) []netip.Addr {
	b := ip.As16()
	switch {
	case contains(nat64, ip):
		return []netip.Addr{netip.AddrFrom4([4]byte(b[12:16]))}
	case contains(sixToFour, ip):
		return []netip.Addr{netip.AddrFrom4([4]byte(b[2:6]))}
	}
	return nil
}

// The lists are fixed facts of the address space and of cloud providers.
var (
	nat64     = networks("64:ff9b::/96")
	sixToFour = networks("2002::/16")

	// neverAllowed: no webhook lives there, and whoever answers there gives away
	// credentials of the machine.
	neverAllowed = networks(
		"0.0.0.0/8 169.254.0.0/16 224.0.0.0/4 255.255.255.255/32",
		"::/128 fe80::/10 ff00::/8",
		// Metadata outside link-local: Amazon, Google, Alibaba, Azure, Oracle.
		"fd00:ec2::/32 fd20:ce::254/128 100.100.100.200/32 168.63.129.16/32 192.0.0.192/32",
	)

	// notPublic: what the registries of special-purpose addresses do not call global.
	notPublic = networks(
		"10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24",
		"192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4",
		"::1/128 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 3fff::/20 5f00::/16 fc00::/7 fec0::/10",
	)
)

func networks(lists ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, list := range lists {
		for s := range strings.FieldsSeq(list) {
			out = append(out, netip.MustParsePrefix(s))
		}
	}
	return out
}
