package dlq

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgschema"
)

// Bounds of the diagnostics that are kept with a letter, in bytes.
const (
	maxClass   = 200
	maxMessage = 8 << 10
	maxStack   = 16 << 10
)

// Config says where the dead letters live. The zero Config is ready to use.
type Config struct {
	// Schema is the name of claimq's schema, unquoted. Empty means "claimq".
	Schema string
}

// Store keeps dead letters in Postgres. It has no state but its statements'
// texts, and may be used by many goroutines.
//
// Methods that take a *pgx.Batch only queue statements: they run when the batch
// is sent, in the caller's READ COMMITTED transaction, and what they report is
// set or called then. Methods that take a Querier run at once. No method sets a
// deadline of its own: pass a context that has one.
type Store struct {
	sql statements
}

// New returns a store. It does not talk to the database.
func New(config Config) (*Store, error) {
	return &Store{sql: render(pgschema.Schema(config.Schema))}, nil
}

// Querier is what reads are done with: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// statements are the texts of this package with the schema's name filled in.
type statements struct {
	again, put, hold      string
	resolve               string
	count, byReason, list string

	choose, causes                                                    string
	lockChosen, discard, restore, erase, audit, auditLetters          string
	note, overtaken, overtakenLetters                                 string
	newReplay, freeze, plan, planCauses, others                       string
	pace, nextItems, settledItems, feed, replaying, queuedItems, fed  string
	replays, replayItems, turn, cancelListed, reachableKeys, withdraw string
	cancelQueued, deadAgain, settleKeys                               string
	countChosen, export, importQueue, importTopic, importLetter       string
}

func render(schema pgschema.Schema) statements {
	return statements{
		again: schema.SQL(againSQL), put: schema.SQL(putSQL), hold: schema.SQL(holdSQL),
		resolve: schema.SQL(resolveSQL),
		count:   schema.SQL(countSQL), byReason: schema.SQL(byReasonSQL), list: schema.SQL(listSQL),
		countChosen:      schema.SQL(countChosenSQL),
		export:           schema.SQL(exportSQL),
		importQueue:      schema.SQL(importQueueSQL),
		importTopic:      schema.SQL(importTopicSQL),
		importLetter:     schema.SQL(importLetterSQL),
		choose:           schema.SQL(chooseSQL),
		causes:           schema.SQL(causesSQL),
		lockChosen:       schema.SQL(lockChosenSQL),
		discard:          schema.SQL(discardSQL),
		restore:          schema.SQL(restoreSQL),
		erase:            schema.SQL(eraseSQL),
		audit:            schema.SQL(auditSQL),
		auditLetters:     schema.SQL(auditLettersSQL),
		note:             schema.SQL(noteSQL),
		overtakenLetters: schema.SQL(overtakenLettersSQL), overtaken: schema.SQL(overtakenSQL),
		newReplay:     schema.SQL(newReplaySQL),
		freeze:        schema.SQL(freezeSQL),
		plan:          schema.SQL(planSQL),
		planCauses:    schema.SQL(planCausesSQL),
		others:        schema.SQL(othersSQL),
		pace:          schema.SQL(paceSQL),
		nextItems:     schema.SQL(nextItemsSQL),
		settledItems:  schema.SQL(settledItemsSQL),
		feed:          schema.SQL(feedSQL),
		replaying:     schema.SQL(replayingSQL),
		queuedItems:   schema.SQL(queuedItemsSQL),
		fed:           schema.SQL(fedSQL),
		replays:       schema.SQL(replaysSQL),
		replayItems:   schema.SQL(replayItemsSQL),
		turn:          schema.SQL(turnSQL),
		cancelListed:  schema.SQL(cancelListedSQL),
		reachableKeys: schema.SQL(reachableKeysSQL),
		withdraw:      schema.SQL(withdrawSQL),
		cancelQueued:  schema.SQL(cancelQueuedSQL),
		deadAgain:     schema.SQL(deadAgainSQL),
		settleKeys:    schema.SQL(settleKeysSQL),
	}
}

// protectPlans makes the statements behind it, in this transaction, be planned
// when they are run and look up by index what they are about. The table is empty
// most of the time, and a plan that is made on an empty table and kept reads all of
// it when it has filled; so does one that is made before it is analyzed, to hash
// it. Planning costs less than the round trip.
const protectPlans = `
select set_config('plan_cache_mode', 'force_custom_plan', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`
