package webhook

import (
	"errors"
	"net/netip"
	"testing"
)

func TestGuard(t *testing.T) {
	must := func(cfg Config) guard {
		g, err := newGuard(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	standard := must(Config{})
	public := must(Config{PublicOnly: true})

	for _, c := range []struct {
		ip                string
		standard, public_ bool
	}{
		// Always.
		{"93.184.215.14", true, true},
		{"2606:2800:21f:cb07:6820:80da:af6b:8b2c", true, true},
		{"::ffff:93.184.215.14", true, true},
		// The operator's own network.
		{"127.0.0.1", true, false},
		{"::1", true, false},
		{"10.1.2.3", true, false},
		{"172.16.0.1", true, false},
		{"172.31.255.255", true, false},
		{"172.32.0.1", true, true},
		{"192.168.1.1", true, false},
		{"::ffff:10.1.2.3", true, false},
		{"100.64.0.1", true, false},
		{"198.18.0.1", true, false},
		{"203.0.113.9", true, false},
		{"240.0.0.1", true, false},
		{"fc00::1", true, false},
		{"fdff::1", true, false},
		{"2001:db8::1", true, false},
		{"100::1", true, false},
		{"5f00::1", true, false},
		// Never without being listed.
		{"169.254.169.254", false, false},
		{"169.254.170.2", false, false},
		{"::ffff:169.254.169.254", false, false},
		{"64:ff9b::a9fe:a9fe", false, false},
		{"2002:a9fe:a9fe::1", false, false},
		{"fe80::1", false, false},
		{"fe80::1%eth0", false, false},
		{"fd00:ec2::254", false, false},
		{"fd20:ce::254", false, false},
		{"100.100.100.200", false, false},
		{"168.63.129.16", false, false},
		{"0.0.0.0", false, false},
		{"0.1.2.3", false, false},
		{"::", false, false},
		{"224.0.0.1", false, false},
		{"255.255.255.255", false, false},
		{"ff02::1", false, false},
		// Through a translator into the private network.
		{"64:ff9b::a01:203", true, false},
		{"2002:a01:203::1", true, false},
		{"64:ff9b::5db8:d70e", true, true},
	} {
		ip := netip.MustParseAddr(c.ip)
		if err := standard.check(ip); (err == nil) != c.standard {
			t.Errorf("by default: %s: %v", c.ip, err)
		}
		if err := public.check(ip); (err == nil) != c.public_ {
			t.Errorf("public only: %s: %v", c.ip, err)
		}
	}
}

func TestGuard_ListsAndTheirOrder(t *testing.T) {
	g, err := newGuard(Config{
		PublicOnly:    true,
		AllowNetworks: []string{"10.0.0.0/8", "169.254.10.1", "fd00::/16", "::ffff:192.168.0.9"},
		DenyNetworks:  []string{"10.9.0.0/16", "93.184.0.0/16"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for ip, want := range map[string]bool{
		"10.1.1.1": true, "169.254.10.1": true, "fd00::7": true, "192.168.0.9": true, "64:ff9b::a01:101": true,
		"10.9.1.1": false, "169.254.10.2": false, "192.168.0.8": false, "93.184.215.14": false, "fd01::1": false,
		"2002:a09:101::1": false,
	} {
		err := g.check(netip.MustParseAddr(ip))
		if (err == nil) != want {
			t.Errorf("%s: %v", ip, err)
		}
		var refused *refusedAddressError
		if err != nil && !errors.As(err, &refused) {
			t.Errorf("%s: error of type %T", ip, err)
		}
	}
}

// A wide network opens none of the addresses that are refused unless they are listed themselves.
func TestGuard_WideNetworksOpenNoMetadata(t *testing.T) {
	metadata := []string{"100.100.100.200", "fd00:ec2::254", "169.254.169.254", "0.0.0.0", "fe80::1", "::"}
	for _, c := range []struct{ allow, opens string }{
		{"100.64.0.0/10", "100.64.0.1"},
		{"fd00::/8", "fd01::1"},
		{"0.0.0.0/0", "10.0.0.1"},
		{"::/0", "fd01::1"},
	} {
		g, err := newGuard(Config{PublicOnly: true, AllowNetworks: []string{c.allow}})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.check(netip.MustParseAddr(c.opens)); err != nil {
			t.Errorf("%s: %v", c.allow, err)
		}
		for _, ip := range metadata {
			if g.check(netip.MustParseAddr(ip)) == nil {
				t.Errorf("%s opens %s", c.allow, ip)
			}
		}
	}
	// Listed themselves, or as a part of such a network.
	g, err := newGuard(Config{AllowNetworks: []string{"100.64.0.0/10", "100.100.100.200", "169.254.0.0/16", "fd00:ec2::/64"}})
	if err != nil {
		t.Fatal(err)
	}
	for ip, want := range map[string]bool{"100.100.100.200": true, "169.254.169.254": true, "fd00:ec2::254": true, "fd00:ec2:1::1": false} {
		if err := g.check(netip.MustParseAddr(ip)); (err == nil) != want {
			t.Errorf("%s: %v", ip, err)
		}
	}
}

func TestGuard_ControlRefusesWhatItCannotRead(t *testing.T) {
	g, _ := newGuard(Config{})
	for address, want := range map[string]bool{
		"127.0.0.1:80": true, "[::1]:80": true, "[fe80::1%lo]:80": false, "169.254.169.254:80": false,
		"": false, "localhost:80": false, "127.0.0.1": false,
	} {
		if err := g.control("tcp", address, nil); (err == nil) != want {
			t.Errorf("control(%q) = %v", address, err)
		}
	}
}
