package consumer

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/outbox"
)

func TestSQLEffectsAreEmittedForEachMessage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	headers := []kgo.RecordHeader{{Key: "trace", Value: []byte("t")}}
	effects := []SQLEffect{
		{Name: "copy", Topic: "copies"},
		{Name: "event", Topic: "events", Key: dedup.JSON("customer"), Value: dedup.JSON("total"), CopyHeaders: true},
	}
	for _, s := range []SQLStatement{
		{Statement: "select unnest(@ids)", Effects: effects},
		{Statement: "select @id", Each: true, Effects: effects},
	} {
		full, bare := sqlMessage(`{"customer":"c-1","total":"12"}`), sqlMessage(`{"other":1}`)
		full.Record.Key, full.Record.Headers = []byte("k"), headers
		if err := handleSQL(t, db, s, full, bare); err != nil {
			t.Fatalf("Each %v: the handler: %v", s.Each, err)
		}
		want := []outbox.Effect{
			{Name: "copy", Topic: "copies", Key: []byte("k"), Value: full.Record.Value},
			{Name: "event", Topic: "events", Key: []byte("c-1"), Value: []byte("12"), Headers: headers},
		}
		if diff := cmp.Diff(want, full.effects); diff != "" {
			t.Errorf("Each %v: the effects (-want +got):\n%s", s.Each, diff)
		}
		want = []outbox.Effect{
			{Name: "copy", Topic: "copies", Value: bare.Record.Value},
			{Name: "event", Topic: "events"}, // nothing is found: null key, null value
		}
		if diff := cmp.Diff(want, bare.effects); diff != "" {
			t.Errorf("Each %v: the effects of a message without the fields (-want +got):\n%s", s.Each, diff)
		}
	}
}

func TestSQLEffectThatCannotBeReadFailsItsMessageForGood(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	broken := sqlMessage("no json")
	for _, effect := range []SQLEffect{
		{Name: "e", Topic: "t", Key: dedup.JSON("id")},
		{Name: "e", Topic: "t", Value: dedup.JSON("id")},
	} {
		err := handleSQL(t, db, SQLStatement{Statement: "select unnest(@ids)", Effects: []SQLEffect{effect}}, sqlMessage("{}"), broken)
		var at *failedAtError
		if !errors.As(err, &at) || at.index != 1 {
			t.Errorf("the batch form: %v, want message 1 to be named", err)
		}
		each := handleSQL(t, db, SQLStatement{Statement: "select @id", Each: true, Effects: []SQLEffect{effect}}, broken)
		for _, err := range []error{err, each} {
			var verdict *verdictError
			if !errors.As(err, &verdict) || !verdict.permanent || !strings.Contains(err.Error(), `effect "e"`) {
				t.Errorf("%v, want a permanent error that names the effect", err)
			}
		}
		broken.reset()
	}
}

func TestSQLRefusesEffectsWithoutNameOrTopic(t *testing.T) {
	t.Parallel()
	for problem, effects := range map[string][]SQLEffect{
		"effect 0 has no name":         {{Topic: "t"}},
		`effect "e" names no topic`:    {{Name: "e"}},
		`two effects are named "e"`:    {{Name: "e", Topic: "t"}, {Name: "e", Topic: "u"}},
		"effect 1 has no name: its id": {{Name: "e", Topic: "t"}, {Topic: "t"}},
	} {
		_, err := SQL(SQLStatement{Statement: "select @id", Each: true, Effects: effects})
		var refused *SQLError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), problem) {
			t.Errorf("SQL = %v, want %q", err, problem)
		}
	}
}

// The list of effects is the statement's own once it is made.
func TestSQLEffectsAreCopied(t *testing.T) {
	t.Parallel()
	effects := []SQLEffect{{Name: "e", Topic: "t"}}
	h, err := SQL(SQLStatement{Statement: "select @id", Each: true, Effects: effects})
	if err != nil {
		t.Fatal(err)
	}
	effects[0].Topic = "other"
	m := sqlMessage("1")
	if err := h.pipelined(t.Context(), &pgx.Batch{}, m); err != nil {
		t.Fatal(err)
	}
	if m.effects[0].Topic != "t" {
		t.Errorf("the effect goes to %q, want t", m.effects[0].Topic)
	}
}
