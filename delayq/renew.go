package delayq

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// renewSQL moves the ends of leases that are still the caller's.
const renewSQL = `
update claimq.delayed_keys k
   set ready_at = clock_timestamp() + $4::interval
  from unnest($1::int[], $2::uuid[], $3::uuid[]) as u (queue, order_key, token)
 where k.queue = u.queue and k.order_key = u.order_key and k.lease_token = u.token
returning k.lease_token`

// Renew makes leases end in the time given from now on, by the database's clock,
// and returns the runs whose leases are lost: their handlers should be cancelled,
// because nothing that they write will commit. A lease that has ended and was not
// taken by anybody is renewed like any other.
//
// Renew a 45-second lease every 15 seconds: a pause of half a minute is survived,
// and a key's row has a new version four times a minute.
func (s *Store) Renew(ctx context.Context, db Querier, runs []*Run, by time.Duration) (lost []*Run, err error) {
	if len(runs) == 0 {
		return nil, nil
	}
	queues := make([]int32, len(runs))
	keys, tokens := make([]uuid.UUID, len(runs)), make([]uuid.UUID, len(runs))
	for i, run := range runs {
		queues[i], keys[i], tokens[i] = run.Queue, run.OrderKey, run.Token
	}
	if by <= 0 {
		by = DefaultLeaseFor
	}
	rows, err := db.Query(ctx, s.sql.renew, queues, keys, tokens, interval(by))
	if err != nil {
		return nil, fmt.Errorf("renew %d leases: %w", len(runs), err)
	}
	renewed := make(map[uuid.UUID]bool, len(runs))
	var token uuid.UUID
	if _, err := pgx.ForEachRow(rows, []any{&token}, func() error { renewed[token] = true; return nil }); err != nil {
		return nil, fmt.Errorf("renew %d leases: %w", len(runs), err)
	}
	for _, run := range runs {
		if !renewed[run.Token] {
			lost = append(lost, run)
		}
	}
	return lost, nil
}
