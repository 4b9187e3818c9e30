package dedup_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/pgtest"
)

// adminStore is a store on a schema of the test's own, with the queue "orders".
func adminStore(t *testing.T) (*pgtest.DB, *dedup.Store) {
	t.Helper()
	db := pgtest.New(t)
	adminExec(t, db, `insert into claimq.queues (name, group_name, rule) values ('orders', 'orders', 'id(key)')`)
	return db, dedup.New(dedup.Config{Schema: db.Schema})
}

func adminExec(t *testing.T, db *pgtest.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), pgschema.Schema(db.Schema).SQL(sql), args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func adminClaim(t *testing.T, db *pgtest.DB, store *dedup.Store, request dedup.Request, result []byte) dedup.Kind {
	t.Helper()
	var kind dedup.Kind
	err := pgx.BeginTxFunc(t.Context(), db.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		outcomes, err := store.Claim(t.Context(), tx, request)
		if err != nil {
			return err
		}
		kind = outcomes[0].Kind
		b := &pgx.Batch{}
		if result != nil {
			store.QueueResults(b, []dedup.Result{{Claim: request.Identity.Digest(), Value: result, Lifetime: time.Hour}})
		}
		return tx.SendBatch(t.Context(), b).Close()
	})
	if err != nil {
		t.Fatalf("claim %q: %v", request.Identity.ID, err)
	}
	return kind
}

func adminFind(t *testing.T, db *pgtest.DB, store *dedup.Store, identity dedup.Identity) *dedup.ClaimRecord {
	t.Helper()
	found, err := store.Find(t.Context(), db.Pool, identity)
	if err != nil {
		t.Fatalf("Find(%q): %v", identity.ID, err)
	}
	return found
}

var adminOrder = dedup.Order{Who: "ada", Why: "the business write was undone by hand"}

func TestFindTellsWhereAnIDWasFirstSeen(t *testing.T) {
	t.Parallel()
	db, store := adminStore(t)
	adminExec(t, db, `insert into claimq.topics (topic_id, name) values (gen_random_uuid(), 'orders.v1')`)
	tenant, recordAt := "acme", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	identity := dedup.Identity{Queue: "orders", Tenant: &tenant, ID: "o-1", Fingerprint: uuid.New(), FingerprintVersion: 1}
	adminClaim(t, db, store, dedup.Request{
		Identity: identity, RecordAt: recordAt, Seen: &dedup.Sighting{Topic: 1, Partition: 2, Offset: 42},
	}, []byte("result"))

	found := adminFind(t, db, store, identity)
	if found == nil || found.Result == nil {
		t.Fatalf("Find = %+v, want a claim with a result", found)
	}
	if found.ClaimedAt.IsZero() || !found.Result.ExpiresAt.After(found.Result.CreatedAt) {
		t.Errorf("the times are %v, %v to %v", found.ClaimedAt, found.Result.CreatedAt, found.Result.ExpiresAt)
	}
	found.ClaimedAt, found.Result, found.RecordAt = time.Time{}, nil, found.RecordAt.UTC()
	want := &dedup.ClaimRecord{
		Digest: identity.Digest(), Shown: "o-1", Segments: []int16{0}, Fingerprint: identity.Fingerprint, FingerprintVersion: 1,
		First: &dedup.Sighting{Topic: 1, Partition: 2, Offset: 42}, Topic: "orders.v1", RecordAt: recordAt,
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("Find (-want +got):\n%s", diff)
	}
	other := "other"
	for name, unknown := range map[string]dedup.Identity{
		"another id":       {Queue: "orders", Tenant: &tenant, ID: "o-2"},
		"another tenant":   {Queue: "orders", Tenant: &other, ID: "o-1"},
		"no tenant":        {Queue: "orders", ID: "o-1"},
		"another queue":    {Queue: "payments", Tenant: &tenant, ID: "o-1"},
		"another scope":    {Queue: "orders", Tenant: &tenant, Operation: &other, ID: "o-1"},
		"an id of no text": {Queue: "orders", Tenant: &tenant, ID: "o-1\x00\xff"},
	} {
		if found := adminFind(t, db, store, unknown); found != nil {
			t.Errorf("%s: Find = %+v, want nil", name, found)
		}
	}
}

func TestFindLooksIntoEverySegment(t *testing.T) {
	t.Parallel()
	db, store := adminStore(t)
	for segment := range 4 {
		identity := dedup.Identity{Queue: "orders", ID: string(rune('a' + segment))}
		adminExec(t, db, `insert into claimq.claims (record_at, queue, segment, fingerprint_version, id, fingerprint) values (now(), 1, $1, 0, $2, $2)`,
			segment, identity.Digest())
		if found := adminFind(t, db, store, identity); found == nil || len(found.Segments) != 1 || int(found.Segments[0]) != segment {
			t.Errorf("a claim in segment %d: Find = %+v", segment, found)
		}
	}
}

func TestFindDoesNotShowExpiredResults(t *testing.T) {
	t.Parallel()
	db, store := adminStore(t)
	identity := dedup.Identity{Queue: "orders", ID: "o-1"}
	adminClaim(t, db, store, dedup.Request{Identity: identity}, []byte("result"))
	adminExec(t, db, `update claimq.results set expires_at = now() - interval '1 second'`)
	if found := adminFind(t, db, store, identity); found == nil || found.Result != nil {
		t.Errorf("Find = %+v, want a claim without a result", found)
	}
}

func TestForgetMakesTheIDNew(t *testing.T) {
	t.Parallel()
	db, store := adminStore(t)
	operation := "ship"
	identity := dedup.Identity{Queue: "orders", Operation: &operation, ID: "o-1"}
	neighbour := dedup.Identity{Queue: "orders", ID: "o-1"}
	adminClaim(t, db, store, dedup.Request{Identity: identity}, []byte("result"))
	adminClaim(t, db, store, dedup.Request{Identity: neighbour}, nil)
	forgotten, err := store.Forget(t.Context(), db.Pool, identity, adminOrder)
	if err != nil || forgotten == nil || forgotten.Result == nil {
		t.Fatalf("Forget = %+v, %v, want what was known", forgotten, err)
	}
	if found := adminFind(t, db, store, identity); found != nil {
		t.Errorf("after Forget, Find = %+v", found)
	}
	var results int
	if err := db.Pool.QueryRow(t.Context(), "select count(*) from "+db.Schema+".results").Scan(&results); err != nil || results != 0 {
		t.Errorf("%d results are left, %v", results, err)
	}
	if kind := adminClaim(t, db, store, dedup.Request{Identity: identity}, nil); kind != dedup.Claimed {
		t.Errorf("the next message with the id is %s, want claimed", kind)
	}
	if kind := adminClaim(t, db, store, dedup.Request{Identity: neighbour}, nil); kind != dedup.Duplicate {
		t.Errorf("the same id in another scope is %s, want duplicate", kind)
	}
	var who, why, action, operationWas, claim string
	var queue int
	err = db.Pool.QueryRow(t.Context(), "select who, why, action, queue, detail->>'operation', detail->>'claim' from "+db.Schema+".audit").
		Scan(&who, &why, &action, &queue, &operationWas, &claim)
	if err != nil {
		t.Fatalf("the audit row: %v", err)
	}
	got := []any{who, why, action, queue, operationWas, claim}
	want := []any{adminOrder.Who, adminOrder.Why, "claims forget", 1, "ship", identity.Digest().String()}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the audit row (-want +got):\n%s", diff)
	}
}

func TestForgetOfAnUnknownIDWritesNothing(t *testing.T) {
	t.Parallel()
	db, store := adminStore(t)
	forgotten, err := store.Forget(t.Context(), db.Pool, dedup.Identity{Queue: "orders", ID: "o-1"}, adminOrder)
	if err != nil || forgotten != nil {
		t.Errorf("Forget = %+v, %v, want nothing", forgotten, err)
	}
	if _, err := store.Forget(t.Context(), db.Pool, dedup.Identity{Queue: "ordres", ID: "o-1"}, adminOrder); !errors.Is(err, dedup.ErrUnknownQueue) {
		t.Errorf("Forget in a queue that there is not: %v, want ErrUnknownQueue", err)
	}
	var audited int
	if err := db.Pool.QueryRow(t.Context(), "select count(*) from "+db.Schema+".audit").Scan(&audited); err != nil || audited != 0 {
		t.Errorf("%d audit rows, %v, want none", audited, err)
	}
}

func TestForgetNeedsWhoAndWhy(t *testing.T) {
	t.Parallel()
	db, store := adminStore(t)
	identity := dedup.Identity{Queue: "orders", ID: "o-1"}
	adminClaim(t, db, store, dedup.Request{Identity: identity}, nil)
	for _, order := range []dedup.Order{{}, {Who: "ada"}, {Why: "because"}} {
		if _, err := store.Forget(t.Context(), db.Pool, identity, order); !errors.Is(err, dedup.ErrNoReason) {
			t.Errorf("Forget with %+v: %v, want ErrNoReason", order, err)
		}
	}
	if adminFind(t, db, store, identity) == nil {
		t.Error("a refused Forget has forgotten")
	}
}

func TestForgetKeepsTheIDOutOfTheAuditWhereIDsAreHidden(t *testing.T) {
	t.Parallel()
	db, _ := adminStore(t)
	store := dedup.New(dedup.Config{Schema: db.Schema, HideIDs: true})
	identity := dedup.Identity{Queue: "orders", ID: "ada@example.org"}
	adminClaim(t, db, store, dedup.Request{Identity: identity}, nil)
	if _, err := store.Forget(t.Context(), db.Pool, identity, adminOrder); err != nil {
		t.Fatal(err)
	}
	var told bool
	if err := db.Pool.QueryRow(t.Context(), "select detail::text like '%ada@%' from "+db.Schema+".audit").Scan(&told); err != nil || told {
		t.Errorf("the audit row tells the id: %v, %v", told, err)
	}
}

// A claimer that met the claim before Forget committed copies it into the next
// segment, where Forget's DELETE has been already.
func TestForgetAlsoForgetsACopyMadeMeanwhile(t *testing.T) {
	t.Parallel()
	db, store := adminStore(t)
	identity := dedup.Identity{Queue: "orders", ID: "o-1"}
	adminClaim(t, db, store, dedup.Request{Identity: identity}, nil)
	// The audit's lock stops Forget between its DELETE and its COMMIT.
	holder, err := db.Conn().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), "lock table "+db.Schema+".audit in exclusive mode"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := store.Forget(t.Context(), db.Pool, identity, adminOrder)
		done <- err
	}()
	waitForBlocked(t, db)
	adminExec(t, db, `insert into claimq.claims select "offset", record_at, claimed_at, queue, topic, partition, 1, fingerprint_version, id, fingerprint, shown from claimq.claims_0`)
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatalf("Forget: %v", err)
	}
	if found := adminFind(t, db, store, identity); found != nil {
		t.Errorf("the copy in the next segment is left: %+v", found)
	}
}

// waitForBlocked waits until a session of the test waits for a lock.
func waitForBlocked(t *testing.T, db *pgtest.DB) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		var blocked bool
		err := db.Pool.QueryRow(t.Context(), "select exists (select from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock')", db.Name).Scan(&blocked)
		if err != nil {
			t.Fatal(err)
		}
		if blocked {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no session of the test came to wait for a lock within 10 s")
		}
	}
}
