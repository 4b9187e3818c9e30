package consumer

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestTransactionControlIsSeenInText(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"commit", "COMMIT;", " end", "ROLLBACK", "abort", "begin", "start transaction", "savepoint a", "release a", "rollback to a",
		"set search_path = x", "SET SESSION lock_timeout = 1", "set role x", "reset all", "discard all", "listen a", "prepare transaction 'x'",
		"select 1; commit", "select ';'; commit", `select ";" from t; commit`, "-- a\ncommit", "/* /* a */ ; */ commit",
		"select $$;$$; commit", "select $a$ ; $b$ ; $a$; rollback", "select 1 /* ; */ ; /* c */ set x = 1", ";;commit", "select 'it''s'; commit",
		`select E'it\'s; '; commit`, `select e'\\'; commit`, "deallocate all",
	} {
		if !controlsTransaction(sql) {
			t.Errorf("not seen: %s", sql)
		}
	}
	for _, sql := range []string{
		"", "select 1", "set local lock_timeout = 1", "SET CONSTRAINTS all deferred", "select 'commit'; select 2", "insert into commit values (1)",
		"select ';commit'", "select $$; commit $$", "select $x$; commit; $x$", "-- commit", "/* ; commit */ select 1", `select "; commit"`,
		"update t set x = 1", "with a as (select 1) select * from a", "select $1, $2; select '$'", `select E'\'; commit'`, "endpoint",
		"prepare p as select 1", "select 1 as a$b; select 'commit'", "commits",
	} {
		if controlsTransaction(sql) {
			t.Errorf("seen in: %s", sql)
		}
	}
}

// It never runs over the end of a text, and always sees what stands as a statement
// of its own behind harmless ones.
func TestTransactionControlInAnyText(t *testing.T) {
	t.Parallel()
	piece := rapid.SampledFrom([]string{
		"select 1", "'a;b'", `"x;y"`, "$$;$$", "$t$ ; $t$", "-- c;\n", "/* ; */", " ", ";", "(", "insert into t values ($1, 'it''s')", `E'\';'`,
	})
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOf(piece).Draw(t, "pieces"), " ")
		if !controlsTransaction(text + " ; commit") {
			t.Errorf("not seen: %s ; commit", text)
		}
		if controlsTransaction(text) {
			t.Errorf("seen in: %s", text)
		}
		_ = controlsTransaction(rapid.String().Draw(t, "any")) // does not panic
		_ = controlsTransaction(text[:rapid.IntRange(0, len(text)).Draw(t, "cut")])
	})
}
