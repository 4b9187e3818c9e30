package outbox

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A wave that leaves in pieces can have a later one taken where an earlier one is
// refused. It once did, in two ways: the flush of the wave before was still going
// on, and the client sent what it was handed at once; and the first wave of a topic
// left record by record when the client had found its partitions.
func TestAWaveLeavesInOnePiece(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	var requests atomic.Int64
	s.kafka.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
		requests.Add(1)
		return nil, nil, false
	})
	const waves, each = 400, 20
	inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error {
		effects := make([]Effect, waves*each)
		for i := range effects {
			effects[i] = keyed("t", "k", fmt.Sprint(i))
		}
		return s.outbox.Add(ctx, tx, effects...)
	})
	r := s.relay(RelayConfig{})
	r.maxPage = each
	s.drain(r)
	// The topic's very first record goes alone.
	if n := requests.Load(); n != waves+1 {
		t.Fatalf("%d waves left in %d requests", waves+1, n)
	}
}
