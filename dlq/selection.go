package dlq

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// A Selection chooses letters: for a list, a replay, or a decision. All fields that
// are set must hold; the zero Selection chooses everything, so whoever acts on one
// asks first (see Empty).
type Selection struct {
	Queue  int32       `json:"queue,omitempty"`
	States []State     `json:"states,omitempty"`
	Reason Reason      `json:"reason,omitempty"`
	Cause  uuid.UUID   `json:"cause,omitzero"`
	Class  string      `json:"class,omitempty"`
	Tenant *string     `json:"tenant,omitempty"`
	IDs    []uuid.UUID `json:"letters,omitempty"`
	// Shown are messages' ids as the rows show them: whole unless they are long, and
	// nothing in a queue that hides ids.
	Shown []string `json:"ids,omitempty"`
	// Key is the Kafka record key; nil chooses all, empty the empty key.
	Key []byte `json:"record_key,omitempty"`
	// DiedFrom and DiedBefore are a half-open interval.
	DiedFrom   time.Time `json:"died_from,omitzero"`
	DiedBefore time.Time `json:"died_before,omitzero"`
	// MinAttempts and MaxAttempts are inclusive; 0 is no bound.
	MinAttempts int `json:"min_attempts,omitempty"`
	MaxAttempts int `json:"max_attempts,omitempty"`
	// Header is a header that the record has, with HeaderValue unless that is nil.
	Header      string  `json:"header,omitempty"`
	HeaderValue *string `json:"header_value,omitempty"`
	// Text stands in the value, as UTF-8, byte for byte.
	Text string `json:"text,omitempty"`
}

// Empty reports whether nothing is asked for: the selection is all letters. States
// do not count, because each action has those that it can act on.
func (s *Selection) Empty() bool {
	return s.Queue == 0 && s.Reason == "" && s.Cause == uuid.Nil && s.Class == "" && s.Tenant == nil && s.IDs == nil && s.Shown == nil &&
		s.Key == nil && s.DiedFrom.IsZero() && s.DiedBefore.IsZero() && s.MinAttempts == 0 && s.MaxAttempts == 0 && s.Header == "" && s.Text == ""
}

// in returns the selection within some states: those it names, or all of these.
func (s *Selection) in(states ...State) Selection {
	within := *s
	if within.States == nil {
		within.States = states
	}
	return within
}

// words is the selection as JSON, for the audit and for people.
func (s *Selection) words() string {
	text, err := json.Marshal(s)
	if err != nil { // a selection holds nothing that JSON cannot
		return "{}"
	}
	return string(text)
}

// args are the sixteen of claimq.letters_chosen.
func (s *Selection) args() []any {
	var states []string
	for _, state := range s.States {
		states = append(states, string(state))
	}
	var header, headerValue, inValue []byte
	if s.Header != "" {
		header = []byte(s.Header)
	}
	if s.HeaderValue != nil {
		headerValue = append([]byte{}, *s.HeaderValue...)
	}
	if s.Text != "" {
		inValue = []byte(s.Text)
	}
	return []any{
		pgtype.Int4{Int32: s.Queue, Valid: s.Queue != 0},
		states, filled(string(s.Reason)),
		pgtype.UUID{Bytes: s.Cause, Valid: s.Cause != uuid.Nil},
		filled(s.Class), optional(s.Tenant), s.IDs, s.Shown, s.Key,
		pgtype.Timestamptz{Time: s.DiedFrom, Valid: !s.DiedFrom.IsZero()},
		pgtype.Timestamptz{Time: s.DiedBefore, Valid: !s.DiedBefore.IsZero()},
		pgtype.Int4{Int32: int32(min(s.MinAttempts, math.MaxInt32)), Valid: s.MinAttempts > 0}, //nolint:gosec // bounded
		pgtype.Int4{Int32: int32(min(s.MaxAttempts, math.MaxInt32)), Valid: s.MaxAttempts > 0}, //nolint:gosec // bounded
		header, headerValue, inValue,
	}
}

func filled(text string) pgtype.Text { return pgtype.Text{String: text, Valid: text != ""} }

const chooseSQL = `
select l.id, l.queue, q.name, l.state, l.round, l.reason, l.error_class, l.error_message, coalesce(l.stack, ''),
       l.cause, l.cause_version, l.starts, l.attempts, l.crashes, l.interrupted, coalesce(l.interrupted_why, ''),
       l.order_key, l.order_pos, l.holds_key, l.claim, l.fingerprint, l.fingerprint_version,
       l.tenant, l.operation, coalesce(l.shown, ''), l.topic, l.partition, l."offset", l.leader_epoch,
       l.record_topic, l.record_key, l.record_value, l.header_keys, l.header_values, l.record_at, l.record_attributes,
       l.first_seen, l.died_at, l.settled_at, l.replay_count
  from claimq.letters_chosen($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) l
  join claimq.queues q on q.id = l.queue
 where ($17::timestamptz is null or (l.died_at, l.id) > ($17, $18::uuid))
 order by l.died_at, l.id
 limit $19`

// Choose returns letters with their records, those that died first first: at most
// limit (0: 100), behind the letter after when that is not nil.
func (s *Store) Choose(ctx context.Context, db Querier, selection Selection, after *Letter, limit int) ([]*Letter, error) {
	afterAt, afterID := pgtype.Timestamptz{}, pgtype.UUID{}
	if after != nil {
		afterAt = pgtype.Timestamptz{Time: after.DiedAt, Valid: true}
		afterID = pgtype.UUID{Bytes: after.ID, Valid: true}
	}
	if limit <= 0 {
		limit = 100
	}
	rows, err := db.Query(ctx, s.sql.choose, append(selection.args(), afterAt, afterID, limit)...)
	if err != nil {
		return nil, fmt.Errorf("choose dead letters: %w", err)
	}
	letters, err := pgx.CollectRows(rows, scanLetter)
	if err != nil {
		return nil, fmt.Errorf("choose dead letters: %w", err)
	}
	return letters, nil
}

const causesSQL = `
select l.cause, q.name, l.reason, l.error_class, count(*), count(*) filter (where l.state = 'dead'),
       min(l.died_at), max(l.died_at), (array_agg(l.id order by l.died_at desc, l.id))[1:3],
       (array_agg(l.error_message order by l.died_at desc, l.id))[1],
       coalesce((select array_agg(n.who || ': ' || n.note order by n.id) from claimq.cause_notes n where n.cause = l.cause), '{}')
  from claimq.letters_chosen($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) l
  join claimq.queues q on q.id = l.queue
 group by l.cause, q.name, l.reason, l.error_class
 order by count(*) desc, l.cause
 limit $17`

// A CauseCount is what one cause has killed, of what was chosen.
type CauseCount struct {
	Cause  uuid.UUID
	Queue  string
	Reason Reason
	Class  string
	// Letters are all that were chosen, Dead those of them that wait for a decision.
	Letters, Dead int64
	First, Last   time.Time
	// Samples are up to three letters, the newest first, and Message is the first's.
	Samples []uuid.UUID
	Message string
	// Notes are what people wrote, oldest first, each as "who: note".
	Notes []string
}

// Causes groups chosen letters by what they died of, most letters first; limit 0
// means 100.
func (s *Store) Causes(ctx context.Context, db Querier, selection Selection, limit int) ([]CauseCount, error) {
	if limit <= 0 {
		limit = 100
	}
	rows, err := db.Query(ctx, s.sql.causes, append(selection.args(), limit)...)
	if err != nil {
		return nil, fmt.Errorf("group dead letters by cause: %w", err)
	}
	counts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[CauseCount])
	if err != nil {
		return nil, fmt.Errorf("group dead letters by cause: %w", err)
	}
	return counts, nil
}
