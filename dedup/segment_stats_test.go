package dedup

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTheRingTellsRolesRowsAndTheNextRoll(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	read := func() (RingStats, []string) {
		t.Helper()
		ring, err := ReadRing(t.Context(), s.Pool, s.Schema)
		if err != nil {
			t.Fatal(err)
		}
		var roles []string
		for _, segment := range ring.Segments {
			roles = append(roles, segment.Role)
		}
		return ring, roles
	}
	ring, roles := read()
	if diff := cmp.Diff([]string{"current", "empty", "empty", "empty"}, roles); diff != "" || ring.NextRoll != nil {
		t.Errorf("at first, next roll %v (-want +got):\n%s", ring.NextRoll, diff)
	}
	s.claimed(rollRequest("q", "a"), rollRequest("q", "b"))
	at := oneOf[time.Time](s, `select max(claimed_at) from claimq.claims`)
	if ring, _ = read(); ring.NextRoll == nil || ring.NextRoll.Sub(*ring.Segments[0].Opened).Round(time.Second) != 4*day {
		t.Errorf("the next roll comes at %v, want half a retention after %v", ring.NextRoll, ring.Segments[0].Opened)
	}
	s.pass(5 * day)
	s.run(RollResult{Rolled: 1})
	ring, roles = read()
	if diff := cmp.Diff([]string{"older", "current", "empty", "empty"}, roles); diff != "" || ring.Phase != 2 {
		t.Errorf("after a roll, phase %d (-want +got):\n%s", ring.Phase, diff)
	}
	old := ring.Segments[0]
	if old.Rows != 2 || old.Estimated || old.Bytes == 0 || old.Opened == nil || !old.Expires.Round(time.Second).Equal(at.Add(3*day).Round(time.Second)) {
		t.Errorf("the older segment is %+v, want two rows that expire 3 days after now", old)
	}
	s.claimed(rollRequest("q", "c"))
	s.exec(`update claimq.claim_phases set lookups = '{}' where phase = 2`)
	if _, roles = read(); roles[1] != "leaving" {
		t.Errorf("a segment that is out of force and not empty is told as %q", roles[1])
	}
}
