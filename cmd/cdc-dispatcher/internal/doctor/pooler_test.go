package doctor

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// throughPooler returns a DSN that leads through what looks like a pooler: like one, it gives
// its clients a process of its own to cancel.
func throughPooler(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	server := u.Host
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer client.Close()
				backend, err := net.Dial("tcp", server)
				if err != nil {
					return
				}
				defer backend.Close()
				wg.Go(func() {
					_, _ = io.Copy(backend, client)
					_ = backend.Close()
				})
				_ = relay(client, backend)
			})
		}
	})
	u.Host = l.Addr().String()
	return u.String()
}

// relay passes the server's messages on and changes the process in BackendKeyData.
func relay(client io.Writer, backend io.Reader) error {
	for {
		head := make([]byte, 5)
		if _, err := io.ReadFull(backend, head); err != nil {
			return err
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(backend, body); err != nil {
			return err
		}
		if head[0] == 'K' {
			body[0], body[1], body[2], body[3] = 0x7f, 1, 2, 3
		}
		if _, err := client.Write(append(head, body...)); err != nil {
			return err
		}
	}
}
