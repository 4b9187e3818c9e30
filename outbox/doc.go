// Package outbox publishes records to Kafka exactly when the transaction that
// made them has committed.
//
// [Add] stores records ("effects") in a table, in the caller's transaction. A
// [Relay] reads what has committed and produces it. Each effect is published at
// least once, under an id (header "id") that is the same on every copy; the first
// copies of one key and topic are in the order in which their transactions added
// them. The package needs pgx and franz-go and no other part of claimq.
//
// # The table
//
//	       INSERT by anyone                        TRUNCATE when all of it is out
//	─────────────▶ slot n ──▶ slot n+1 ──▶ slot n+2 ─────────────▶ slot n
//	               two minutes each, three in turn
//
// Rows are inserted and never updated or deleted: a slot is emptied as a whole.
// There is no "sent" column to update, so no dead rows, nothing to vacuum, and a
// session that holds the xmin horizon for hours costs nothing. The writer draws a
// number (seq) and stores its transaction's id (xid); it takes no lock that another
// writer needs, and notifies nobody.
//
// # What is next
//
// "All rows with a number above the last" loses effects: a transaction can draw 4,
// stay open while 5 commits and is published, and commit then. Waiting for 4 would
// stall on every long transaction, and for ever on one that rolled back. The relay
// asks the server instead which transactions have become visible. Its place is a
// snapshot, done: all that is visible in it is out. It takes a second one, until,
// and publishes the rows that until sees and done does not, in the order of seq:
//
//	           done                      until
//	            │                          │
//	T1 ──add────┼────────────commit        │        in progress at done: T1 is in
//	            │                          │        pg_snapshot_xip(done)
//	       T2 ──┼──add──commit             │        began after it: xid >= xmax(done)
//	T3 ──add────┼──────────────────────────┼─▶      not visible in until: another time
//	T4 ──add──rollback                     │        never visible to anyone
//
// Both kinds are ranges of one index on xid. Of two transactions of which the
// second began to add after the first had committed, either the first is visible
// in a window before, or both are in this one and the first has the smaller
// numbers. Nothing is said of transactions that were open at the same time: who
// wants an order locks something first, as a claimq consumer does by itself.
//
// # A round
//
//	take the lease ──▶ open the window ──▶ list its rows ──▶ page ──▶ wave ──▶ acks ──▶ move the place
//	     ▲                   ▲                                 ▲                  │            │
//	     │                   └───────── nothing, or all out ───┴──────────────────┴────────────┘
//	     └── lease lost, another server, an outcome that is not known: the producer is thrown
//	         away, nothing remembered is used again, and all from the last place is sent again
//
// The 64 buckets of the keys' hash are split into slices; each slice is relayed by
// one process at a time, under a lease with a token. The lease does not keep a
// frozen process from sending: it can only send copies, of rows that the new holder
// sends too, and it cannot move the place, because relay_advance compares the row
// in force with the one that it went out from. The row also names the server's
// incarnation. After a failover or a restored dump the relay begins again at the
// oldest row, under the same ids: a snapshot means nothing in another history.
//
// # A record that cannot be sent
//
//	             refused for good, its topic missing or forbidden
//	outbox row ───────────────────────────────────────────────────▶ held: row | topic
//	    │                                                              │    ▲
//	    │ a later row of the same topic and key ─▶ held: key           │    │ refused again:
//	    │                                              │ first of      ▼    │ the delay doubles
//	    │                                              │ its key    tried when due
//	    ▼                                              └───▶ ... ──────┤
//	 published ◀───────────────────────────────────────────────────────┘
//
// Only a broker's definite refusal sets a row aside. Brokers that are away, slow or
// short of replicas do not: the relay waits. A refusal hits a whole batch; halving
// finds the row. Rows of other keys go on.
//
// # Locks
//
// Transaction-level advisory locks on (schema, n): -2 for leases (exclusive to take
// one, shared to move a place), -3 and -4 for the rotation of the two rings, -5 for
// moving effects that have become due. No
// transaction takes two of them. The rotation locks one leaf of the outbox, not the
// one that is being written, and waits for it no longer than 50 ms.
//
// # Other writers, other readers
//
// A program in another language inserts into claimq.outbox directly: bucket (by
// claimq.outbox_bucket(key, id)), id, topic, key and value; the rest has defaults.
// Debezium's outbox event router can replace the relay: it reads the same columns.
package outbox
