package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

func ident(name string) string { return pgx.Identifier{name}.Sanitize() }

func literal(text string) string {
	quoted := "'" + strings.ReplaceAll(text, "'", "''") + "'"
	if strings.Contains(text, `\`) {
		return "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// settingFix returns the statements that set a server setting, where it is set now: a
// value in the wrong place would be overruled.
func (s *session) settingFix(ctx context.Context, name, value string) (fix []string, hint string, err error) {
	var source, context string
	var pending bool
	if err := s.row(ctx, "SELECT source, context, pending_restart FROM pg_settings WHERE name = $1", []any{name},
		&source, &context, &pending); err != nil {
		return nil, "", err
	}
	if s.provider != "" && (context == "postmaster" || context == "sighup") {
		return nil, s.providerHint(name, value), nil
	}
	set := fmt.Sprintf("SET %s = %s", name, literal(value))
	switch source {
	case "database":
		return []string{fmt.Sprintf("ALTER DATABASE %s %s", ident(s.database), set)}, "then connect again", nil
	case "user":
		return []string{fmt.Sprintf("ALTER ROLE %s %s", ident(s.user), set)}, "then connect again", nil
	case "database user":
		return []string{fmt.Sprintf("ALTER ROLE %s IN DATABASE %s %s", ident(s.user), ident(s.database), set)}, "then connect again", nil
	case "client":
		return nil, fmt.Sprintf("the DSN sets %s: remove it there", name), nil
	case "command line", "environment variable":
		return nil, fmt.Sprintf("the server's %s sets %s: change it there to %s and restart the server", source, name, value), nil
	}
	fix = []string{"ALTER SYSTEM " + set}
	if context != "postmaster" {
		return append(fix, "SELECT pg_reload_conf()"), "", nil
	}
	return fix, "then restart the server", nil
}

func (s *session) providerHint(name, value string) string {
	switch {
	case s.provider == "Amazon RDS" && name == "wal_level":
		return "set rds.logical_replication = 1 in the parameter group, then reboot the instance"
	case s.provider == "Cloud SQL" && name == "wal_level":
		return "set the flag cloudsql.logical_decoding = on; the instance restarts"
	case s.provider == "Neon" && name == "wal_level":
		return "enable logical replication in the project's settings"
	}
	return fmt.Sprintf("set %s = %s among the server parameters of %s", name, value, s.provider)
}

func checkWALLevel(ctx context.Context, s *session) (Finding, error) {
	var level string
	var pending bool
	if err := s.row(ctx, "SELECT setting, pending_restart FROM pg_settings WHERE name = 'wal_level'", nil, &level, &pending); err != nil {
		return Finding{}, err
	}
	switch {
	case level == "logical":
		return Finding{Status: OK, Message: "the log can be decoded", Value: level}, nil
	case pending:
		return Finding{Status: Fail, Message: "wal_level is changed but not in force", Value: level, Hint: "restart the server"}, nil
	}
	fix, hint, err := s.settingFix(ctx, "wal_level", "logical")
	return Finding{Status: Fail, Message: "the log does not carry what logical replication needs", Value: level, Fix: fix, Hint: hint}, err
}

func checkReplicationRight(ctx context.Context, s *session) (Finding, error) {
	var attribute, rds, member bool
	if err := s.row(ctx, `SELECT rolsuper OR rolreplication,
		       EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication'),
		       EXISTS (SELECT FROM pg_roles g WHERE g.rolname = 'rds_replication' AND pg_has_role(r.oid, g.oid, 'MEMBER'))
		FROM pg_roles r WHERE rolname = current_user`, nil, &attribute, &rds, &member); err != nil {
		return Finding{}, err
	}
	switch {
	case attribute:
		return Finding{Status: OK, Message: "the role may replicate"}, nil
	case member:
		return Finding{Status: OK, Message: "the role may replicate as a member of rds_replication"}, nil
	}
	f := Finding{Status: Fail, Message: fmt.Sprintf("role %s may not replicate", s.user), Fix: []string{fmt.Sprintf("ALTER ROLE %s REPLICATION", ident(s.user))}}
	if rds {
		f.Fix = []string{"GRANT rds_replication TO " + ident(s.user)}
	}
	return f, nil
}

func checkSlotsFree(ctx context.Context, s *session) (Finding, error) {
	var limit, used int
	var ours bool
	var idle []string
	if err := s.row(ctx, `SELECT current_setting('max_replication_slots')::int, count(*), coalesce(bool_or(slot_name = $1), false),
		coalesce(array_agg(slot_name::text ORDER BY slot_name) FILTER (WHERE NOT active AND slot_name <> $1), '{}')
		FROM pg_replication_slots`, []any{s.cfg.Slot}, &limit, &used, &ours, &idle); err != nil {
		return Finding{}, err
	}
	f := Finding{Status: OK, Message: "there is a slot for us", Value: fmt.Sprintf("%d of %d in use", used, limit)}
	if ours || used < limit {
		return f, nil
	}
	f.Status, f.Message = Fail, "all replication slots are in use"
	var err error
	if f.Fix, f.Hint, err = s.settingFix(ctx, "max_replication_slots", fmt.Sprint(2*limit+2)); err != nil {
		return Finding{}, err
	}
	if len(idle) > 0 {
		f.Hint += fmt.Sprintf("; or drop one that nobody needs, with pg_drop_replication_slot: inactive are %s", strings.Join(idle, ", "))
	}
	return f, nil
}

func checkSendersFree(ctx context.Context, s *session) (Finding, error) {
	var limit, used int
	var streaming bool
	if err := s.row(ctx, `SELECT current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication),
		EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active)`, []any{s.cfg.Slot}, &limit, &used, &streaming); err != nil {
		return Finding{}, err
	}
	f := Finding{Status: OK, Message: "a sender is free", Value: fmt.Sprintf("%d of %d in use", used, limit)}
	if used < limit {
		return f, nil
	}
	fix, hint, err := s.settingFix(ctx, "max_wal_senders", fmt.Sprint(2*limit+2))
	f = Finding{Status: Fail, Message: "all senders are in use", Value: f.Value, Fix: fix, Hint: hint}
	if streaming {
		f.Status, f.Message = Warn, "all senders are in use, one of them by us: a standby could not take over"
	}
	return f, err
}

const (
	smallKeep = int64(1) << 30
	goodKeep  = "10GB"
)

func checkKeepSize(ctx context.Context, s *session) (Finding, error) {
	var text string
	var bytes int64
	if err := s.row(ctx, `SELECT current_setting('max_slot_wal_keep_size'),
		(SELECT CASE WHEN setting = '-1' THEN -1 ELSE setting::bigint * 1024 * 1024 END FROM pg_settings WHERE name = 'max_slot_wal_keep_size')`,
		nil, &text, &bytes); err != nil {
		return Finding{}, err
	}
	f := Finding{Status: Warn, Value: "max_slot_wal_keep_size = " + text}
	switch {
	case bytes < 0:
		f.Message = "nothing bounds the WAL that a slot retains: while nobody reads it, the disk fills up"
	case bytes < smallKeep:
		f.Message = "a slot is lost after little WAL: a short stop then ends in a gap and a sweep of the table"
	default:
		f.Status, f.Message = OK, "retained WAL is bounded"
		return f, nil
	}
	var err error
	f.Fix, f.Hint, err = s.settingFix(ctx, "max_slot_wal_keep_size", goodKeep)
	return f, err
}

// seconds reads a setting that is a length of time.
func (s *session) seconds(ctx context.Context, name string) (time.Duration, string, error) {
	var text string
	var milliseconds int64
	err := s.row(ctx, `SELECT current_setting(name), (extract(epoch FROM (setting || unit)::interval) * 1000)::bigint
		FROM pg_settings WHERE name = $1`, []any{name}, &text, &milliseconds)
	return time.Duration(milliseconds) * time.Millisecond, name + " = " + text, err
}

func checkIdleSlot(ctx context.Context, s *session) (Finding, error) {
	if s.version < 180000 {
		return Finding{Status: OK, Message: "this version does not invalidate idle slots"}, nil
	}
	limit, value, err := s.seconds(ctx, "idle_replication_slot_timeout")
	if err != nil {
		return Finding{}, err
	}
	if limit == 0 || limit >= 24*time.Hour {
		return Finding{Status: OK, Message: "an idle slot is kept", Value: value}, nil
	}
	f := Finding{Status: Warn, Message: "a slot is lost after a short stop of the dispatcher, which then ends in a gap and a sweep of the table", Value: value}
	f.Fix, f.Hint, err = s.settingFix(ctx, "idle_replication_slot_timeout", "7d")
	return f, err
}

func checkSenderTimeout(ctx context.Context, s *session) (Finding, error) {
	limit, value, err := s.seconds(ctx, "wal_sender_timeout")
	if err != nil {
		return Finding{}, err
	}
	f := Finding{Status: Warn, Value: value}
	switch {
	case limit == 0:
		f.Message = "the server never notices that a reader has vanished, so no standby could take over its slot"
	case limit < 5*time.Second:
		f.Message = "the server gives up on a reader after a pause that a busy network can make"
	default:
		f.Status, f.Message = OK, "a vanished reader is noticed"
		return f, nil
	}
	f.Fix, f.Hint, err = s.settingFix(ctx, "wal_sender_timeout", "60s")
	return f, err
}
