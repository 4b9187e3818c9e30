package dlq

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// exportVersion is the version of the lines. A line holds every column of its letter
// under the column's name, bytes in hex as Postgres writes them, with the queue's and
// the topic's name and the topic's id for the numbers that stand for them here.
const exportVersion = 1

// maxLine bounds a line that is imported, in bytes: a record of the largest size
// that brokers are usually given, in hex.
const maxLine = 256 << 20

const exportSQL = `
select l.id, (to_jsonb(l) - 'replay'
       || jsonb_build_object('claimq_letter', $19::int, 'queue', q.name, 'topic', t.name, 'topic_id', t.topic_id))::text
  from claimq.letters_chosen($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) l
  join claimq.queues q on q.id = l.queue
  left join claimq.topics t on t.id = l.topic
 where ($17::uuid is null or l.id > $17)
 order by l.id
 limit $18`

// exportPage is how many letters are in memory at once.
const exportPage = 100

// Export writes the chosen letters as lines of JSON, with all that a row holds,
// payloads too, so that Import makes the same rows of them. Letters that change
// while it runs are written as they are met.
func (s *Store) Export(ctx context.Context, db Querier, selection Selection, out io.Writer) (written int64, err error) {
	var after *uuid.UUID
	for {
		rows, err := db.Query(ctx, s.sql.export, append(selection.args(), after, exportPage, exportVersion)...)
		if err != nil {
			return written, fmt.Errorf("export dead letters: %w", err)
		}
		var id uuid.UUID
		var line string
		page := 0
		_, err = pgx.ForEachRow(rows, []any{&id, &line}, func() error {
			page++
			_, err := io.WriteString(out, line+"\n")
			return err
		})
		written += int64(page)
		if err != nil {
			return written, fmt.Errorf("export dead letters: %w", err)
		}
		if page < exportPage {
			return written, nil
		}
		last := id
		after = &last
	}
}

const importQueueSQL = `select id from claimq.queues where name = $1`

const importTopicSQL = `
with added as (
     insert into claimq.topics (topic_id, name) values ($1, $2) on conflict (topic_id) do nothing returning id)
select id from added union all select id from claimq.topics where topic_id = $1 limit 1`

// importLetterSQL makes a row of a line. One that was on its way back is dead: what it was
// on its way in is not in this database.
const importLetterSQL = `
insert into claimq.dead_letters
select (jsonb_populate_record(null::claimq.dead_letters, $1::jsonb
       || jsonb_build_object('queue', $2::int, 'topic', $3::int, 'replay', null)
       || case $1::jsonb->>'state' when 'replaying' then '{"state": "dead"}'::jsonb else '{}'::jsonb end)).*
    on conflict do nothing
returning id, order_key, state = 'dead' and holds_key`

// Imported tells what became of lines.
type Imported struct {
	// Stored are new letters, Known were there already, by their id or their source.
	Stored, Known int64
}

// An ImportError says which line could not be taken; those before it are stored.
type ImportError struct {
	Line int
	Err  error
}

func (e *ImportError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *ImportError) Unwrap() error { return e.Err }

// Import stores letters that Export wrote, here or from another database, exactly;
// the queue must be known here by its name. It can be run again: what is there
// already, by its id or its source, is left alone and counted. Each line is a
// transaction with its audit row. The error is an *ImportError unless reading failed.
func (s *Store) Import(ctx context.Context, db DB, in io.Reader, operator Operator) (done Imported, err error) {
	if err := operator.check(); err != nil {
		return done, err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		stored, err := s.importLine(ctx, db, lines.Bytes(), operator)
		if err != nil {
			return done, &ImportError{Line: n, Err: err}
		}
		if stored {
			done.Stored++
		} else {
			done.Known++
		}
	}
	if err := lines.Err(); err != nil {
		return done, fmt.Errorf("read dead letters: %w", err)
	}
	return done, nil
}

func (s *Store) importLine(ctx context.Context, db DB, line []byte, operator Operator) (stored bool, err error) {
	var head struct {
		Version int        `json:"claimq_letter"`
		Queue   string     `json:"queue"`
		Topic   *string    `json:"topic"`
		TopicID *uuid.UUID `json:"topic_id"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return false, fmt.Errorf("it is not a line of `claimq dlq export`: %w", err)
	}
	if head.Version != exportVersion {
		return false, fmt.Errorf("claimq_letter is %d and this claimq reads %d: it is not a line of `claimq dlq export`, or one of another version", head.Version, exportVersion)
	}
	err = inTx(ctx, db, func(tx pgx.Tx) error {
		var queue int32
		err := tx.QueryRow(ctx, s.sql.importQueue, head.Queue).Scan(&queue)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("there is no queue %q here: start a worker for it once", head.Queue)
		}
		if err != nil {
			return err
		}
		var topic *int32
		if head.Topic != nil && head.TopicID != nil {
			topic = new(int32)
			if err := tx.QueryRow(ctx, s.sql.importTopic, *head.TopicID, *head.Topic).Scan(topic); err != nil {
				return err
			}
		}
		var id, key uuid.UUID
		var holds bool
		err = tx.QueryRow(ctx, s.sql.importLetter, string(line), queue, topic).Scan(&id, &key, &holds)
		if errors.Is(err, pgx.ErrNoRows) {
			stored = false
			return nil
		}
		if err != nil {
			return err
		}
		stored = true
		if holds {
			if _, err := tx.Exec(ctx, s.sql.hold, queue, []uuid.UUID{key}); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, s.sql.audit, operator.Who, operator.Why, "dlq import", queue, fmt.Sprintf(`{"letters": [%q]}`, id))
		return err
	})
	return stored, err
}
