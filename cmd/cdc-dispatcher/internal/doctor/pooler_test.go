package doctor

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// throughPooler returns a DSN that leads through what looks like a pooler: like one, it gives
// its clients a process of its own to cancel, and refuses parameters that it could not keep apart.
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
				startup, ok := admitted(client)
				if !ok {
					return
				}
				backend, err := net.Dial("tcp", server)
				if err != nil {
					return
				}
				defer backend.Close()
				if _, err := backend.Write(startup); err != nil {
					return
				}
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

// admitted reads a client's first message and says whether the pooler goes on with it. As PgBouncer
// does by default, it knows few parameters and answers others with an error.
func admitted(client net.Conn) (message []byte, ok bool) {
	head := make([]byte, 8)
	if _, err := io.ReadFull(client, head); err != nil {
		return nil, false
	}
	body := make([]byte, binary.BigEndian.Uint32(head)-8)
	if _, err := io.ReadFull(client, body); err != nil {
		return nil, false
	}
	if binary.BigEndian.Uint16(head[4:]) == 3 { // the protocol; other first messages ask to cancel
		fields := strings.Split(string(body), "\x00")
		for i := 0; i+1 < len(fields) && fields[i] != ""; i += 2 {
			if !slices.Contains([]string{"user", "database", "application_name", "client_encoding"}, fields[i]) {
				refusal := "SFATAL\x00C08P01\x00Munsupported startup parameter: " + fields[i] + "\x00\x00"
				answer := binary.BigEndian.AppendUint32([]byte{'E'}, uint32(4+len(refusal)))
				_, _ = client.Write(append(answer, refusal...))
				return nil, false
			}
		}
	}
	return append(head, body...), true
}

// A pooler gives the session to the application next: what the doctor leaves in it stays.
func TestDoctor_LeavesNoSettingInItsSession(t *testing.T) {
	p := admit(t, hospital(t, 18), 1)
	cfg := p.cfg.withDefaults()
	s := &session{cfg: cfg}
	defer s.close()
	settings := func(conn *pgx.Conn) (all string) {
		if err := conn.QueryRow(t.Context(), `SELECT string_agg(name || ' = ' || current_setting(name), ', ' ORDER BY name) FROM pg_settings
			WHERE name IN ('statement_timeout', 'lock_timeout', 'search_path', 'default_transaction_read_only')`).Scan(&all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	if r := s.report(t.Context(), checks(cfg)); r.Worst() != OK {
		t.Fatal(text(r))
	}
	fresh, err := pgx.Connect(t.Context(), p.cfg.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close(context.Background())
	if got, want := settings(s.conn), settings(fresh); got != want {
		t.Errorf("the session is left with %s, want %s", got, want)
	}
}

func TestDoctor_WorksThroughAPooler(t *testing.T) {
	p := admit(t, hospital(t, 18), 1)
	p.cfg.ReplicationDSN, p.cfg.DSN = p.cfg.DSN, throughPooler(t, p.cfg.DSN)
	p.want(codePooler + " warn")
}
