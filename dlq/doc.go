// Package dlq keeps dead letters: messages for which no attempt is made until
// someone decides.
//
// # A letter is a row
//
// The row is the truth: the record byte for byte, why it died, what it took, and
// where it stands. It is written in the transaction that decides about the message,
// together with its position in the topic, so there is no instant at which a message
// is neither in the stream nor in a table. The record on the queue's dead-letter
// topic is a feed for other tools, made by Letter.Feed and sent by the outbox; when
// that topic is missing or refuses, nothing is lost and nothing waits.
//
//	            Put
//	             │
//	         ┌───▼───┐  a replay is ordered   ┌───────────┐
//	         │ dead  ├────────────────────────▶ replaying │
//	         │       ◀────────────────────────┤           │
//	         └─┬───┬─┘  Put: it died again,   └─────┬─────┘
//	           │   │    round+1                     │
//	discarded ◀┘   │ Resolve: a repeat of its id    │ Resolve: its processing
//	(restored)     │ has succeeded                  │ commits
//	    │          └────────────▶ resolved ◀────────┘
//	    ▼
//	 erased (the bytes are gone, the account stays)
//
// # Once
//
// A queue has one letter for a source (topic, partition, offset), however often the
// record is read; a second death is the same letter's next round. Put can therefore
// be run again after a COMMIT whose outcome is unknown. The fed record's effect id
// holds letter and round, so that a repeat is the same effect and a second death is
// another one.
//
// # Order
//
// A letter keeps its message's place in its order key. With HoldsKey (on_dead: block)
// what is stored behind it waits for as long as it is dead: the key's row in the
// delay queue is never ready. Put makes that so, Resolve ends it, and whoever changes
// a letter's state otherwise runs delayq.Store.Settle behind the change, in the same
// transaction. Without it (on_dead: continue, the default) later messages of the key
// go on, and a replay of the letter is stale.
//
// # Causes
//
// Letters of one failure have one Cause: the id over queue, reason, error class and
// the message with its numbers and ids masked. The masking has a version.
package dlq
