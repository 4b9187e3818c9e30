package delayq_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/internal/sqlstate"
)

// Random histories of storing, leasing by two workers, verdicts, crashes, leases
// that end early and stops, against a model that knows nothing of SQL. After each
// step every item is in exactly one place with the counters that its history asks
// for, a key's items leave in their order, and the key rows fit.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(w)
		rt.Repeat(map[string]func(*rapid.T){
			"put":      m.put,
			"lease":    m.lease,
			"finish":   m.finish,
			"release":  m.release,
			"renew":    m.renew,
			"crash":    m.crash,
			"expire":   m.expire,
			"make due": m.makeDue,
			"":         m.check,
		})
	})
}

// modelItem is what the model knows of an item.
type modelItem struct {
	counters
	item *delayq.Item
	due  bool
	open bool // handed out, without a verdict yet
}

// modelKey is one order key: its items in order and who has it.
type modelKey struct {
	items  []*modelItem
	holder *delayq.Run // the newest lease; nil when it was given back
	ended  bool        // that lease's time is over
}

// held is a run that a worker has and may yet finish, whatever became of its lease.
type held struct {
	run *delayq.Run
	key *modelKey
}

type model struct {
	w     *world
	queue int32
	keys  map[uuid.UUID]*modelKey
	runs  []held
	gone  map[uuid.UUID]bool // done or dead
	all   int
}

func newModel(w *world) *model {
	m := &model{w: w, keys: map[uuid.UUID]*modelKey{}, gone: map[uuid.UUID]bool{}}
	m.queue = get[int32](w, `insert into claimq.queues (name, group_name, rule) values ($1, 'g', 'r') returning id`, uuid.NewString())
	return m
}

func (m *model) put(rt *rapid.T) {
	var items []*delayq.Item
	for n := rapid.IntRange(1, 4).Draw(rt, "items"); n > 0; n-- {
		orderKey := uuid.Nil
		if name := rapid.IntRange(0, 3).Draw(rt, "key"); name > 0 {
			orderKey = key(fmt.Sprint(name))
		}
		it := m.w.item(rapid.SampledFrom([]delayq.Kind{delayq.Failed, delayq.Blocked}).Draw(rt, "kind"), orderKey)
		it.Queue = m.queue
		known := &modelItem{item: it, due: true, counters: counters{Starts: it.Starts, Attempts: it.Attempts}}
		if rapid.Bool().Draw(rt, "in future") {
			it.DueIn, known.due = time.Hour, false
		}
		items = append(items, it)
		if orderKey == uuid.Nil {
			it.ID = uuid.New()
			orderKey = it.ID
		}
		if m.keys[orderKey] == nil {
			m.keys[orderKey] = &modelKey{}
		}
		m.keys[orderKey].items = append(m.keys[orderKey].items, known)
	}
	m.all += len(items)
	m.want(rt, "", m.w.commit(func(b *pgx.Batch) { m.w.store.Put(b, items) }))
}

// run is what a lease must hand out of a key: nil when it is not ready.
func (k *modelKey) run() []*modelItem {
	if k.holder != nil && !k.ended {
		return nil
	}
	end := slices.IndexFunc(k.items, func(it *modelItem) bool { return !it.due })
	if end < 0 {
		end = len(k.items)
	}
	return k.items[:end]
}

func (m *model) lease(rt *rapid.T) {
	o := delayq.LeaseOptions{}
	if rapid.Bool().Draw(rt, "bounded") {
		o.Keys, o.Items = rapid.IntRange(1, 3).Draw(rt, "keys"), rapid.IntRange(1, 6).Draw(rt, "items")
	}
	runs, err := m.w.store.Lease(m.w.ctx(), m.w.db.Pool, m.queue, o)
	m.want(rt, "", err)
	ready := 0
	for _, k := range m.keys {
		if len(k.run()) > 0 {
			ready++
		}
	}
	if o.Keys == 0 && len(runs) != ready || o.Keys > 0 && len(runs) != min(ready, o.Keys, o.Items) {
		rt.Fatalf("%d runs with %+v, and %d keys are ready", len(runs), o, ready)
	}
	for _, run := range runs {
		k := m.keys[run.OrderKey]
		want := k.run()
		if o.Keys > 0 {
			want = want[:min(len(want), len(run.Items))]
		}
		if len(run.Items) == 0 || len(run.Items) != len(want) {
			rt.Fatalf("%d items of key %v, want %d", len(run.Items), run.OrderKey, len(want))
		}
		for i, it := range want {
			if run.Items[i].ID != it.item.ID {
				rt.Fatalf("item %d of key %v is another one than in the model", i, run.OrderKey)
			}
			it.Starts++
			if it.open {
				it.Crashes++
			}
			it.open = true
		}
		k.holder, k.ended = run, false
		m.runs = append(m.runs, held{run: run, key: k})
	}
}

// draw takes a run out of the hands of a worker, or gives up on this step.
func (m *model) draw(rt *rapid.T) held {
	if len(m.runs) == 0 {
		rt.Skip("nobody holds a run")
	}
	i := rapid.IntRange(0, len(m.runs)-1).Draw(rt, "run")
	h := m.runs[i]
	m.runs = slices.Delete(m.runs, i, i+1)
	return h
}

// code is what a write about the run must answer.
func (h held) code() string {
	if h.key.holder != h.run {
		return sqlstate.LeaseLost
	}
	return ""
}

func (m *model) want(rt *rapid.T, code string, err error) {
	if sqlstate.Code(err) != code || code == "" && err != nil {
		rt.Fatalf("error %v, want SQLSTATE %q", err, code)
	}
}

func (m *model) finish(rt *rapid.T) {
	h := m.draw(rt)
	verdicts := make([]delayq.Verdict, len(h.run.Items))
	outcomes := []delayq.Outcome{delayq.Done, delayq.Done, delayq.Dead, delayq.Retry, delayq.Interrupted, delayq.Untouched}
	for i := range verdicts {
		if i > 0 && verdicts[i-1].Outcome != delayq.Done && verdicts[i-1].Outcome != delayq.Dead {
			outcomes = []delayq.Outcome{delayq.Untouched, delayq.Interrupted}
		}
		verdicts[i] = delayq.Verdict{Outcome: rapid.SampledFrom(outcomes).Draw(rt, "outcome"), After: time.Hour, Message: "m"}
	}
	err := m.w.commit(func(b *pgx.Batch) {
		m.want(rt, "", m.w.store.Finish(b, m.queue, []delayq.Finished{{Run: h.run, Verdicts: verdicts}}))
	})
	m.want(rt, h.code(), err)
	if h.code() == "" {
		m.apply(h, verdicts)
	}
}

func (m *model) release(rt *rapid.T) {
	h := m.draw(rt)
	m.want(rt, h.code(), m.w.store.Release(m.w.ctx(), m.w.db.Pool, []*delayq.Run{h.run}, "shutdown"))
	if h.code() == "" {
		m.apply(h, slices.Repeat([]delayq.Verdict{{Outcome: delayq.Interrupted}}, len(h.run.Items)))
	}
}

func (m *model) apply(h held, verdicts []delayq.Verdict) {
	handed, behind := h.key.items[:len(verdicts)], h.key.items[len(verdicts):]
	var left []*modelItem
	for i, it := range handed {
		it.open = false
		switch verdicts[i].Outcome {
		case delayq.Done, delayq.Dead:
			m.gone[it.item.ID] = true
			continue
		case delayq.Retry:
			it.Attempts, it.due = it.Attempts+1, false
		case delayq.Interrupted:
			it.Interrupted++
		case delayq.Untouched:
			it.Starts--
		}
		left = append(left, it)
	}
	h.key.items, h.key.holder = slices.Concat(left, behind), nil
}

func (m *model) renew(rt *rapid.T) {
	if len(m.runs) == 0 {
		rt.Skip("nobody holds a run")
	}
	h := rapid.SampledFrom(m.runs).Draw(rt, "run")
	lost, err := m.w.store.Renew(m.w.ctx(), m.w.db.Pool, []*delayq.Run{h.run}, time.Hour)
	m.want(rt, "", err)
	if (len(lost) == 0) != (h.code() == "") {
		rt.Fatalf("%d leases lost, want SQLSTATE %q", len(lost), h.code())
	}
	if len(lost) == 0 {
		h.key.ended = false
	}
}

// crash forgets a run; its lease ends by itself, some time.
func (m *model) crash(rt *rapid.T) { m.draw(rt) }

func (m *model) expire(*rapid.T) {
	m.w.exec(`update claimq.delayed_keys set ready_at = clock_timestamp() - interval '1 second' where queue = $1 and lease_token is not null`, m.queue)
	for _, k := range m.keys {
		k.ended = true
	}
}

func (m *model) makeDue(*rapid.T) {
	m.w.exec(`update claimq.delayed set due_at = '2020-01-01' where queue = $1`, m.queue)
	m.w.exec(`update claimq.delayed_keys set ready_at = '2020-01-01' where queue = $1 and lease_token is null`, m.queue)
	for _, k := range m.keys {
		for _, it := range k.items {
			it.due = true
		}
	}
}

// check compares all that is stored with the model.
func (m *model) check(rt *rapid.T) {
	rows, err := m.w.db.Pool.Query(m.w.ctx(), m.w.sql(`
		select id, order_key, starts, attempts, crashes, interrupted, lease_token is not null
		  from claimq.delayed where queue = $1 order by order_key, order_pos`), m.queue)
	m.want(rt, "", err)
	type stored struct {
		ID, OrderKey                           uuid.UUID
		Starts, Attempts, Crashes, Interrupted int
		Open                                   bool
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stored])
	m.want(rt, "", err)
	want := []stored{}
	for id, k := range m.keys {
		for _, it := range k.items {
			want = append(want, stored{it.item.ID, id, it.Starts, it.Attempts, it.Crashes, it.Interrupted, it.open})
		}
	}
	slices.SortStableFunc(want, func(a, b stored) int { return slices.Compare(a.OrderKey[:], b.OrderKey[:]) })
	if diff := cmp.Diff(want, got); diff != "" {
		rt.Fatalf("what is stored is not what the model has (-model +stored):\n%s", diff)
	}
	if m.all != len(got)+len(m.gone) {
		rt.Fatalf("%d items were put, %d are stored and %d gone", m.all, len(got), len(m.gone))
	}
	if wrong := m.w.wrongKeys(); wrong != 0 {
		rt.Fatalf("%d key rows are not what the items ask for", wrong)
	}
}
