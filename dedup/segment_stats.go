package dedup

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgschema"
)

// SegmentStats tells of one segment of the ring of claims.
type SegmentStats struct {
	Segment int16 `json:"segment"`
	// Role is "current" (inserted into), "next" (inserted into besides, while the
	// ring moves on), "older" (looked up), "leaving" (out of force, to be emptied) or
	// "empty".
	Role string `json:"role"`
	// Rows is counted when the segment is closed, and the server's estimate before.
	Rows      int64 `json:"rows"`
	Estimated bool  `json:"rows_estimated"`
	// Bytes are the table's and its index'.
	Bytes int64 `json:"bytes"`
	// Opened is since when every claim stands in this segment or a newer one; nil
	// when the segment is not in force.
	Opened *time.Time `json:"opened"`
	// Expires is when all claims of a closed segment have expired by both clocks; it
	// is forgotten then, unless a stream that stands still needs it. Nil before that
	// is known.
	Expires *time.Time `json:"expires"`
}

// RingStats tells how the ring of claims stands at one moment.
type RingStats struct {
	// At is the database's time.
	At       time.Time      `json:"at"`
	Phase    int64          `json:"phase"`
	Segments []SegmentStats `json:"segments"`
	// NextRoll is when the current segment is old enough, and the ring short enough,
	// for the next one to be begun. It can lie in the past: then a worker does it at its
	// next look, or none runs. Nil while the current segment is empty.
	NextRoll *time.Time `json:"next_roll"`
	// ResultBytes are the results', their index' and their large values'.
	ResultBytes int64 `json:"result_bytes"`
}

// Reads how the ring stands. It reads no claims: rows come from the clocks of closed
// segments and from the server's counters.
const sqlRingStats = `
with force as (
    select phase, inserts, lookups from claimq.claim_phases order by phase desc limit 1
), leaves (segment, leaf) as (
    values (0::int2, 'claimq.claims_0'::regclass), (1::int2, 'claimq.claims_1'::regclass),
           (2::int2, 'claimq.claims_2'::regclass), (3::int2, 'claimq.claims_3'::regclass)
), age as (
    select coalesce(max(retention), interval '8 days') as longest,
           coalesce(max(retention) filter (where config->>'claims' is distinct from 'none'), interval '8 days') as claiming
      from claimq.queues
), clocks as (
    select k.segment, sum(k.claims)::bigint as claims,
           max(greatest(k.newest_claim + r.retention, least(k.newest_record, k.newest_claim + r.retention) + r.retention)) as expires
      from claimq.claim_segment_clocks k
     cross join age
      left join claimq.queues q on q.id = k.queue
     cross join lateral (select coalesce(q.retention, age.longest) as retention) r
     group by k.segment
)
select now(), f.phase, s.segment,
       case when s.segment = f.inserts[1] then 'current'
            when s.segment = f.inserts[2] then 'next'
            when s.segment = any (f.lookups) then 'older'
            when pg_relation_size(l.leaf) > 0 then 'leaving'
            else 'empty' end as role,
       case when s.closed is null then coalesce(pg_stat_get_live_tuples(l.leaf), 0) else coalesce(c.claims, 0) end,
       s.closed is null, pg_total_relation_size(l.leaf),
       case when s.segment = any (f.inserts || f.lookups) then s.opened end, c.expires,
       case when s.segment = f.inserts[1] and pg_relation_size(l.leaf) > 0
            then greatest(s.current_since + age.claiming / 2,
                          case when cardinality(f.lookups) > 1 then (select o.expires from clocks o where o.segment = f.lookups[1]) end) end,
       (select sum(pg_total_relation_size(p.relid))::bigint from pg_partition_tree('claimq.results'::regclass) p where p.isleaf)
  from claimq.claim_segments s
  join leaves l on l.segment = s.segment
 cross join force f
 cross join age
  left join clocks c on c.segment = s.segment
 order by array_position(f.lookups || f.inserts, s.segment), s.segment`

// ReadRing tells how the ring of claims stands, the oldest segment in force first.
// It reads no claims, so it costs the same however many there are.
func ReadRing(ctx context.Context, db Querier, schema string) (RingStats, error) {
	rows, err := db.Query(ctx, pgschema.Schema(schema).SQL(sqlRingStats))
	if err != nil {
		return RingStats{}, fmt.Errorf("dedup: read the ring of claims: %w", err)
	}
	var ring RingStats
	var segment SegmentStats
	var next *time.Time
	_, err = pgx.ForEachRow(rows, []any{
		&ring.At, &ring.Phase, &segment.Segment, &segment.Role, &segment.Rows, &segment.Estimated, &segment.Bytes,
		&segment.Opened, &segment.Expires, &next, &ring.ResultBytes,
	}, func() error {
		if next != nil {
			ring.NextRoll = next
		}
		ring.Segments = append(ring.Segments, segment)
		return nil
	})
	if err != nil {
		return RingStats{}, fmt.Errorf("dedup: read the ring of claims: %w", err)
	}
	return ring, nil
}
