package delayq

import "github.com/claimq/claimq/internal/pgschema"

// statements are the texts of this package with the schema's name filled in.
type statements struct {
	put, keepKeys                                            string
	assertLeases, finish, retry, giveBack, interrupt, settle string
	lockReady, joinScheduled, handOut, dropIdle              string
	renew, depths, nextDue                                   string
}

func render(schema pgschema.Schema) statements {
	return statements{
		put: schema.SQL(putSQL), keepKeys: schema.SQL(keepKeysSQL),
		assertLeases: schema.SQL(assertLeasesSQL), finish: schema.SQL(finishSQL), retry: schema.SQL(retrySQL),
		giveBack: schema.SQL(giveBackSQL), interrupt: schema.SQL(interruptSQL), settle: schema.SQL(settleSQL),
		lockReady: schema.SQL(lockReadySQL), joinScheduled: schema.SQL(joinScheduledSQL),
		handOut: schema.SQL(handOutSQL), dropIdle: schema.SQL(dropIdleSQL),
		renew: schema.SQL(renewSQL), depths: schema.SQL(depthsSQL), nextDue: schema.SQL(nextDueSQL),
	}
}

// protectPlans keeps the statements behind it, in this transaction, off
// sequential scans. The tables are empty most of the time, and a plan that is made
// on an empty table and kept reads it whole when it has filled.
const protectPlans = `select set_config('enable_seqscan', 'off', true)`
