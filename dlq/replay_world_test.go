package dlq_test

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/dlq"
)

var ada = dlq.Operator{Who: "ada", Why: "a test"}

// dead puts n letters and returns them as they are stored.
func (w *world) dead(n int, change func(int, *dlq.Letter)) []*dlq.Letter {
	w.Helper()
	letters := make([]*dlq.Letter, n)
	for i := range letters {
		letters[i] = w.letter()
		if change != nil {
			change(i, letters[i])
		}
	}
	w.put(letters...)
	return letters
}

// order is a replay of everything of the queue.
func (w *world) order() dlq.ReplayOrder {
	return dlq.ReplayOrder{Selection: dlq.Selection{Queue: w.queue}, Operator: ada}
}

func (w *world) startReplay(order dlq.ReplayOrder) uuid.UUID {
	w.Helper()
	plan, err := w.store.StartReplay(w.ctx(), w.db.Pool, order)
	w.must(err)
	return plan.Replay
}

// stepAll steps until nothing more is fed.
func (w *world) stepAll(replay uuid.UUID) (fed int) {
	w.Helper()
	for {
		n, more, err := w.store.StepReplay(w.ctx(), w.db.Pool, replay)
		w.must(err)
		fed += n
		if !more {
			return fed
		}
	}
}

func (w *world) replay(id uuid.UUID) *dlq.Replay {
	w.Helper()
	r, err := w.store.FindReplay(w.ctx(), w.db.Pool, id)
	w.must(err)
	if r == nil {
		w.Fatalf("replay %s is not there", id)
	}
	return r
}

// lease hands out what is ready, as a worker does.
func (w *world) lease() []*delayq.Run {
	w.Helper()
	q, err := delayq.New(delayq.Config{Schema: w.db.Schema})
	w.must(err)
	runs, err := q.Lease(w.ctx(), w.db.Pool, w.queue, delayq.LeaseOptions{})
	w.must(err)
	return runs
}

// work does what a worker does with leased runs: what dies becomes a letter again,
// everything else is resolved, in one transaction.
func (w *world) work(runs []*delayq.Run, dies func(*delayq.Item) bool) (handled int, err error) {
	q, err := delayq.New(delayq.Config{Schema: w.db.Schema})
	w.must(err)
	return handled, pgx.BeginTxFunc(w.ctx(), w.db.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		handled = 0
		var b pgx.Batch
		var letters []*dlq.Letter
		var resolved []uuid.UUID
		finished := make([]delayq.Finished, len(runs))
		for i, run := range runs {
			finished[i].Run = run
			for _, item := range run.Items {
				handled++
				if dies != nil && dies(item) {
					letters = append(letters, &dlq.Letter{
						ID: item.ID, Queue: w.queue, QueueName: "orders", Reason: dlq.Permanent, ErrorMessage: "still wrong",
						OrderPos: item.OrderPos, Record: item.Record, ReplayCount: item.ReplayCount,
						Source: &dlq.Source{Topic: item.Source.Topic, Partition: item.Source.Partition, Offset: item.Source.Offset},
					})
					finished[i].Verdicts = append(finished[i].Verdicts, delayq.Verdict{Outcome: delayq.Dead})
					continue
				}
				resolved = append(resolved, item.ID)
				finished[i].Verdicts = append(finished[i].Verdicts, delayq.Verdict{Outcome: delayq.Done})
			}
		}
		w.store.Put(&b, letters)
		w.store.Resolve(&b, resolved)
		if err := q.Finish(&b, w.queue, finished); err != nil {
			return err
		}
		return tx.SendBatch(w.ctx(), &b).Close()
	})
}

// consistent checks what must hold at every moment: a letter is replaying exactly
// when its item is in the delay queue and an open replay has it queued.
func (w *world) consistent() {
	w.Helper()
	if n := get[int](w, `
		select count(*) from claimq.dead_letters l
		 where (l.state = 'replaying') is distinct from exists (select from claimq.delayed d where d.id = l.id)
		    or (l.state = 'replaying') is distinct from exists (select from claimq.replay_items i where i.letter = l.id and i.state = 'queued')`); n > 0 {
		w.Errorf("%d letters are in two states", n)
	}
}
