// Package consumer runs a queue: it reads topics at least once and lets the writes
// of a handler take effect once for each id.
//
// # The promise
//
// For each queue and id, within the time that ids are remembered, the writes that a
// handler makes through the transaction it is given take effect exactly once,
// whatever is redelivered, crashed, rebalanced, fenced or failed over. Its
// conditions: the handler uses that transaction; the database is the writer
// endpoint; topics are produced with acks=all; ids are remembered longer than the
// longest outage plus the longest replay. Effects that are emitted reach their topic
// at least once, under an id that is the same on every copy. What fails is never
// skipped: it is delayed, blocked behind its order key, or dead, and each of those is
// a row.
//
// # How a message flows
//
//	Kafka ── poll ──▶ scheduler ── batch ──▶ one Postgres transaction ── COMMIT ──▶ Kafka's offset
//	                   strands                                                      (for lag tools)
//
//	begin     settings, which server this is, commits that were not answered,
//	          claims, what is known already                                one flight
//	judge     duplicate, conflict, known, folded, blocked: no handler sees these
//	execute   the handlers; who fails is found by name, else by halves
//	seal      unclaim failures, results, effects, delayed items, dead letters,
//	          constraints, position, fence, COMMIT                         one flight
//
// Everything that decides a message's fate commits in that transaction, and nothing
// is produced to Kafka on the way: effects and dead letters leave through the outbox.
// The outcomes:
//
//	processed   the handler ran and its writes are in
//	skipped     the handler said Skip, or no route takes the message
//	duplicate   its id was claimed before
//	known       its record is delayed or dead already: only the position moves
//	folded      its id waits in the delay queue; the item stands for both
//	blocked     stored behind an unfinished message of its order key
//	delayed     the attempt failed and there is another one
//	dead        no further attempt: exhausted, permanent, conflict, missing_id, …
//
// # The position
//
// Where a partition stands is a row in Postgres, written in the transaction of the
// work that it counts. The client starts from it, whatever Kafka's committed offset
// is: that one can be ahead after a failover that lost the newest transactions, and
// then everything between would never be read. Lanes finish out of order; a position
// passes an offset only when everything before it is done.
//
// # Ownership and the fence
//
// Kafka decides who has a partition and Postgres who may commit for it. Whoever is
// assigned a partition writes a random token for it, in a transaction that holds the
// queue's fence lock alone. Every batch takes that lock shared as its last step,
// compares the tokens in the next statement, and commits in the same flight:
//
//	old owner   … fence lock (shared), tokens are mine, COMMIT
//	new owner                          waits ───────────────── takes the tokens, reads the positions
//
//	old owner                                                  … fence lock, not mine: nothing is committed
//
// So a member that was frozen and wakes up late can do nothing, and the new owner
// sees all that the old one did. A worker that finds itself fenced asks Kafka's
// coordinator whether the partition is still its own, and takes it back if so:
// a frozen member may have taken it in error.
//
// # Memory is not trusted
//
// Each batch begins by asking which server this is (system identifier and timeline)
// and whether the newest row that was ever acknowledged is there. If either is not as
// remembered, the worker forgets what it knows of its partitions and reads their
// positions again. A COMMIT that was not answered is settled by inserting its row
// again on another connection: the INSERT waits for the old session and tells what
// became of it.
//
// # Lanes, strands, memory
//
// A partition is divided into strands by order key; a lane takes what is waiting in
// any strands that no other lane has, up to a count, a byte and a time limit, and
// commits once. Batches so grow with the load, a handler that hangs holds the strands
// of its batch and nothing else, and polling never waits for a handler. A partition
// that has more than its share of memory buffered is paused.
//
// # For whoever changes this package
//
// Locks: Consumer.mu guards which partitions there are, scheduler.mu what is in them;
// mu may be held when scheduler.mu is taken, never the other way round, and neither
// while Kafka, Postgres or a handler is called. An attempt and its work belong to one
// lane. A partition is one assignment: when it is gone, whatever still runs for it is
// void. Tasks go back to their strands in order; from then on another lane can have
// them.
package consumer
