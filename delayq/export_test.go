package delayq

// Statements are the texts whose plans the tests assert, by name.
var Statements = map[string]string{
	"lockReady": lockReadySQL, "joinScheduled": joinScheduledSQL, "handOut": handOutSQL, "dropIdle": dropIdleSQL,
	"assertLeases": assertLeasesSQL, "finish": finishSQL, "retry": retrySQL, "giveBack": giveBackSQL,
	"interrupt": interruptSQL, "settle": settleSQL, "keepKeys": keepKeysSQL, "renew": renewSQL, "nextDue": nextDueSQL,
}

// ProtectPlans is what stands before the statements in a transaction.
const ProtectPlans = protectPlans
