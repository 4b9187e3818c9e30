package dedup

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// older fills the current segment with claims and rolls it out of the way.
func (s *rollStage) older(n int) {
	s.t.Helper()
	s.exec(`
insert into claimq.claims_0 (record_at, queue, segment, fingerprint_version, id, fingerprint)
select now(), 1, 0, 1, gen_random_uuid(), gen_random_uuid() from generate_series(1, $1)`, n)
	s.exec(`update claimq.claim_segments set current_since = current_since - interval '5 days'`)
	if result, err := s.roller.runOnce(s.t.Context()); err != nil || result.Rolled != 1 {
		s.t.Fatalf("%+v, %v", result, err)
	}
	s.exec(`analyze claimq.claims_0`)
}

// BenchmarkClaimsBesideOlderOnes claims new ids, 100 in a transaction, with none and
// with a million that are remembered in an older segment.
func BenchmarkClaimsBesideOlderOnes(b *testing.B) {
	for _, older := range []int{0, 1_000_000} {
		b.Run(fmt.Sprint("older=", older), func(b *testing.B) {
			s := newRollStage(b, RollerConfig{})
			if older > 0 {
				s.older(older)
			}
			const each = 100
			requests := make([]Request, each)
			next := 0
			b.ResetTimer()
			for b.Loop() {
				for i := range requests {
					requests[i] = rollRequest("q", fmt.Sprint("new-", next))
					requests[i].Queue = 1
					next++
				}
				err := pgx.BeginTxFunc(b.Context(), s.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
					_, err := s.store.Claim(b.Context(), tx, requests...)
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(next)/b.Elapsed().Seconds(), "claims/s")
		})
	}
}

// BenchmarkForgettingAMillionClaims is what expiry costs: the phase without the
// segment, the drain, the TRUNCATE. Its setting up is slow: -benchtime 3x.
func BenchmarkForgettingAMillionClaims(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		s := newRollStage(b, RollerConfig{})
		s.older(1_000_000)
		s.exec(`update claimq.claim_segment_clocks set newest_record = newest_record - interval '9 days', newest_claim = newest_claim - interval '9 days'`)
		b.StartTimer()
		began := time.Now()
		result, err := s.roller.runOnce(b.Context())
		if err != nil || result.Forgotten != 1 {
			b.Fatalf("%+v, %v", result, err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/forgetting")
	}
}
