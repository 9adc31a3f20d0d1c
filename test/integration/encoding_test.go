package integration

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// A database of another encoding: handlers get UTF-8, whether the log brought the event or the poller did, and from
// the stored row as well as from a claim, which the first attempt of each event here makes necessary.
func TestPayloadsOfALatin1DatabaseAreUTF8(t *testing.T) {
	const payload = `{"name":"Zoë Müller"}`
	path := testbed.Build(t)
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, mode := range []string{"log", "poll"} {
			t.Run(mode, func(t *testing.T) {
				db := testdb.PostgresEncoded(t, major, "LATIN1")
				w := newWorld(t, &postgres{Server: db.Server(), URL: db.DSN(), Pool: db.Pool()})
				w.subscribers = func(string) []string { return []string{"reader"} }
				bodies := make(chan string, 10)
				attempts := 0
				receiver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					if err != nil {
						t.Error(err)
					}
					bodies <- string(body)
					if attempts++; attempts == 1 {
						rw.WriteHeader(http.StatusServiceUnavailable)
					}
				}))
				t.Cleanup(receiver.Close)
				p := w.runIn(path, mode, `  - {name: reader, on: ["*"], concurrency: 1, retry: {base: 50ms}, webhook: {url: "`+receiver.URL+`"}}`, ``)
				if mode == "log" {
					w.streaming()
				}
				w.emit(1, "order.placed", payload)
				w.settle()
				p.stop()
				close(bodies)
				var got []string
				for body := range bodies {
					got = append(got, strings.ReplaceAll(body, `": "`, `":"`)) // jsonb has a space
				}
				if len(got) != 2 || !strings.Contains(got[0], payload) || !strings.Contains(got[1], payload) {
					t.Errorf("handlers received %q, want twice something with %q", got, payload)
				}
			})
		}
	})
}
