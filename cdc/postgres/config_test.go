package postgres

import (
	"strings"
	"testing"
)

func TestConfigReportsEveryProblemAtOnce(t *testing.T) {
	_, err := New(Config{
		Slot: "Not-Allowed", Publication: strings.Repeat("p", 64), MaxRecords: -1, BackoffMin: 5, BackoffMax: 2,
		Tables: []Table{{"public", "events"}, {"public", "events"}, {"", "x"}},
	})
	if err == nil {
		t.Fatal("a config full of mistakes was taken")
	}
	for _, want := range []string{"DSN is missing", "slot name", "publication name", "listed twice", "want a schema", "MaxRecords", "BackoffMax"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}

func TestB39_ADSNThatCannotBeReadIsNotQuoted(t *testing.T) {
	for _, dsn := range []string{
		"postgres://u:s3cr:e/t%zz@host:port/db",
		"postgres://u:s3cr?e t@host/db?sslmode=nonsense",
		"password='s3cr host=x",
		"host=x sslmode=nonsense password=s3cr",
	} {
		_, err := New(Config{DSN: dsn, Tables: []Table{events}})
		if err == nil {
			t.Fatalf("%q was taken", dsn)
		}
		if strings.Contains(err.Error(), "s3cr") {
			t.Errorf("the error tells the password: %v", err)
		}
	}
}

func TestPublicationFix(t *testing.T) {
	c := Config{Publication: `p"x`, Tables: []Table{{"public", "events"}, {"Odd", `na"me`}}}
	whole := publicationState{exists: true, insert: true, viaRoot: true, tables: []tableState{
		{table: c.Tables[0], oid: 1, published: true}, {table: c.Tables[1], oid: 2, published: true},
	}}
	if statement, err := c.publicationFix(whole); statement != "" || err != nil {
		t.Errorf("a publication that fits: %q, %v", statement, err)
	}
	statement, _ := c.publicationFix(publicationState{})
	const create = `CREATE PUBLICATION "p""x" FOR TABLE "public"."events", "Odd"."na""me" WITH (publish = 'insert', publish_via_partition_root = true)`
	if statement != create {
		t.Errorf("got  %s\nwant %s", statement, create)
	}
	lacking := whole
	lacking.tables = []tableState{whole.tables[0], {table: c.Tables[1], oid: 2}}
	if statement, _ := c.publicationFix(lacking); statement != `ALTER PUBLICATION "p""x" ADD TABLE "Odd"."na""me"` {
		t.Errorf("got %s", statement)
	}
	whole.insert = false
	if statement, _ := c.publicationFix(whole); statement != `ALTER PUBLICATION "p""x" SET (publish = 'insert')` {
		t.Errorf("got %s", statement)
	}
}

func TestQuoteLiteral(t *testing.T) {
	for text, want := range map[string]string{
		"plain":  "'plain'",
		"it's":   "'it''s'",
		`a\'b`:   ` E'a\\''b'`,
		"":       "''",
		"naïve%": "'naïve%'",
	} {
		if got := quoteLiteral(text); got != want {
			t.Errorf("quoteLiteral(%q) = %s, want %s", text, got, want)
		}
	}
}
