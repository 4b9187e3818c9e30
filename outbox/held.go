package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// heldEvery is the least time between two looks for rows that are due again.
	heldEvery = 200 * time.Millisecond
	// headsAtOnce and followersAtOnce bound what one round tries.
	headsAtOnce     = 100
	followersAtOnce = 500
)

// retryHeld tries rows that were set aside and are due, and returns how many are
// out now. It runs in the goroutine that publishes windows: so no row of a key is
// sent from its window while the rows before it are sent from here.
func (s *sliceRelay) retryHeld(ctx context.Context) (int, error) {
	if !s.holds || time.Since(s.heldLooked) < heldEvery {
		return 0, nil
	}
	s.heldLooked = time.Now()
	heads, err := s.heldRows(ctx, s.sql.heads, s.from(), s.to(), headsAtOnce)
	if err != nil {
		return 0, err
	}
	probes, err := s.heldRows(ctx, s.sql.topicHeads, s.from(), s.to(), nil, 1)
	if err != nil {
		return 0, err
	}
	out, _, err := s.tryHeads(ctx, append(heads, probes...))
	if err != nil {
		return out, err
	}
	// A topic whose probe is out takes records again: its other rows need not wait.
	for _, probe := range probes {
		if !s.publisher.known[probe.topic] {
			continue
		}
		for end := time.Now().Add(heldEvery); time.Now().Before(end); {
			more, err := s.heldRows(ctx, s.sql.topicHeads, s.from(), s.to(), probe.topic, headsAtOnce)
			if err != nil {
				return out, err
			}
			sent, refused, err := s.tryHeads(ctx, more)
			out += sent
			if err != nil {
				return out, err
			}
			if sent == 0 || refused > 0 {
				break
			}
			s.heldLooked = time.Time{} // go on in the next round, after a window
		}
	}
	return out, nil
}

func (s *sliceRelay) heldRows(ctx context.Context, sql string, args ...any) (list []outRow, err error) {
	err = s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, scanHeldRow)
		return err
	})
	return list, err
}

// tryHeads publishes rows that were set aside, each with the rows behind it, and
// writes what became of them. It returns how many are out and how many refused.
func (s *sliceRelay) tryHeads(ctx context.Context, heads []outRow) (out, refusedHeads int, err error) {
	if len(heads) == 0 {
		return 0, 0, nil
	}
	var rows []outRow
	var long []orderKey // more stands behind than one round takes
	for i := range heads {
		rows = append(rows, heads[i])
		key, ordered := heads[i].inOrder()
		if !ordered {
			continue
		}
		behind, err := s.heldRows(ctx, s.sql.followers, []byte(key.key), key.topic, heads[i].seq, followersAtOnce+1)
		if err != nil {
			return 0, 0, err
		}
		if len(behind) > followersAtOnce {
			long = append(long, key)
			behind = behind[:followersAtOnce]
		}
		rows = append(rows, behind...)
	}
	refused, err := s.publisher.publish(ctx, s.waiting(ctx), rows)
	if err != nil {
		return 0, 0, err
	}
	return s.settleHeld(ctx, rows, refused, long)
}

// settleHeld forgets rows that are out and notes the failure of those that were
// tried. A row behind a failed one stays as it was; of a key of which more rows
// stand behind than were tried, the next one becomes the first.
func (s *sliceRelay) settleHeld(ctx context.Context, rows []outRow, refused []refusal, long []orderKey) (out, tried int, err error) {
	stays := make(map[int64]bool, len(refused))
	stuck := make(map[orderKey]bool)
	var failures []refusal
	var delays []time.Duration
	for _, r := range refused {
		stays[r.row.seq] = true
		if key, ordered := r.row.inOrder(); ordered {
			stuck[key] = true
		}
		if r.tried {
			failures = append(failures, r)
			delays = append(delays, s.config.retryDelay(r.row.attempts+1))
		}
	}
	var sentIn []int16
	var sent []int64
	var topics []string
	var keys [][]byte
	for i := range rows {
		if !stays[rows[i].seq] {
			sentIn, sent = append(sentIn, rows[i].bucket), append(sent, rows[i].seq)
		}
	}
	for _, key := range long {
		if !stuck[key] {
			topics, keys = append(topics, key.topic), append(keys, []byte(key.key))
		}
	}
	in, seqs, scopes, reasons, attempts := columns(failures)
	err = s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlSettleLock, s.sql.schema); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql.sent, sentIn, sent); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql.refused, in, seqs, scopes, reasons, attempts, delays); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, s.sql.release, topics, keys)
		return err
	})
	return len(sent), len(failures), err
}
