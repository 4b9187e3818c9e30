// Package delayq keeps messages that wait: for their next attempt, for one of
// the same order key, or for their time. It is storage and policy; whoever runs the
// handlers (package consumer) decides what becomes of a message and commits that
// together with everything else about it.
//
// # Why rows and not retry topics
//
// A retry topic for each delay multiplies topics, loses the order of a key (the
// message behind a failed one overtakes it), and pausing a partition for a backoff
// loses records in rebalances. A row waits for any time, keeps its place, can be
// seen, and moves in the transaction of its message's fate.
//
// # An item's life
//
//	       Put
//	        │
//	┌───────▼────────┐   Lease: starts+1, committed first   ┌────────────┐
//	│    waiting     ├──────────────────────────────────────▶ handed out │
//	│ due_at, place  │                                      │  (token)   │
//	└───────▲────────┘                                      └──┬──┬──┬───┘
//	        │   Retry: attempts+1, due later                   │  │  │
//	        ├──────────────────────────────────────────────────┘  │  │
//	        │   Interrupted: interrupted+1 · Untouched: starts−1  │  │
//	        ├─────────────────────────────────────────────────────┘  │
//	        │   the lease ends: crashes+1, by the next Lease         │
//	        └───────── (worker killed, frozen, cut off) ─────────────┤
//	                                                                 │
//	                   Done: removed ◀───────────────────────────────┤
//	                   Dead: removed, a letter in the same COMMIT ◀──┘
//
// A start is recorded before a handler can run, so that a crash is seen. An attempt
// is a start with a verdict: Done, Retry or Dead. So of an item that is stored
//
//	starts = attempts + crashes + interrupted (+ 1 while it is handed out)
//
// and the difference between starts and attempts is accounted for by its reasons.
// A shutdown, a lost partition, an outage and a crash use no attempt. Max attempts
// counts the first one, which was made before the item was stored.
//
// # Order
//
// Items of one order key have positions, given at their first storing and kept
// through death and replay. Only a key's head can be due; everything behind it is
// blocked, which is derived and never written. A replayed letter comes back with its
// old position and so stands before what has come since. A dead letter that holds
// its key (on_dead: block) is a head that is never due. A scheduled item is in no
// key's way until it is due; then it joins the end of its key.
//
// # Ready work is found by key
//
// Beside the items there is one row for each key that something waits under, with
// its head's due time, or, while it is leased, the lease's end, or 'infinity' while
// a letter holds it. A poll reads the low end of one index on these rows: a million
// items behind one head are one row, a million items due next month are beyond the
// range that is read. A key's row is made, locked and settled by SQL functions
// (keep_keys, settle_keys in the migrations), in statements separate from the
// locks, because under READ COMMITTED each statement sees what its predecessors
// have waited for.
//
// Rows are locked in the order of their keys everywhere, after the claims and the
// business writes, in the last flight before COMMIT.
//
// # Leases
//
// A lease is a random token on the key's row and on the items that were handed out,
// and an end. Nothing watches leases: a key whose lease has ended is ready, like one
// that is due, and who takes it counts the crash. Every write repeats the token, and
// a lost lease raises CQ003 before a COMMIT in the same flight can run, so a rescuer
// cannot hurt an item that is alive, and a worker that wakes late cannot hurt one
// that was rescued.
//
//	key row       ready_at             lease_token
//	waiting       head's due time      null
//	leased        lease's end          token
//	ended         lease's end (past)   token, until the next Lease replaces it
//	held          infinity             null
//
// # What a poller does
//
// Lease, handle, Finish in the transaction of the work; NextDue to know how long to
// sleep; wake early when this process has stored something. The example of Store
// shows one round.
package delayq
