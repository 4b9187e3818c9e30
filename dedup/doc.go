// Package dedup makes an effect happen once: it says which messages are the same message, and remembers which of them are done.
//
// # What an id is
//
// A message is delivered more than once by Kafka after a crash or a rebalance, and sent more than once by a producer that did not see its answer. What Kafka repeats
// has the same partition and offset; what a producer repeats does not. So the identity of a message is an id that its producer gives it: one for each thing that is to
// happen, the same however often it is sent. It is called id here and not key, because Kafka's record key and the order key are other things.
//
// An idempotency key is such an id by definition. An event's id is one. A correlation id is one only when there is one for each message: where a whole
// conversation shares it (a request, its answer and all that follows), every message after the first would be taken for a repeat or a conflict. A record key is
// one only when it names the message; where it names the entity that the message is about, the second event of an order is not a repeat of the first.
// `claimq keys try` reads a topic, writes nothing, and shows what a rule would do to it.
//
// Rules say where the id is. ID is a chain of sources, of which the first that finds a text that is not empty wins:
//
//	Header            a record header; the last of that name
//	JSON, XML         a path in the value
//	RecordKey         Kafka's record key, any bytes
//	CloudEvents       source and id of a CloudEvent, binary or structured
//	StandardWebhooks  the webhook-id header
//	Envelope          the idempotency_key of a command envelope
//	Join              several of them, told apart by their lengths
//	Func              a Go function: Avro, Protobuf, anything
//	Topic, Const      for scopes
//
// Each has a text, which configuration uses and ParseSource reads: header:correlation-id, join(json:$.order,json:$.line). White space and case are significant
// everywhere, and nothing is trimmed: what looks like an accident in one system tells two messages apart in another.
//
// A record that has no id is rejected, or identified by its offset (Rules.OnMissing). It is never given an empty id, which all such records would share.
// A record that cannot be read is an error and does not fall through to the next source, which would give a message two identities.
//
// # Scope
//
// An id is unique within a scope: the queue, a tenant, an operation. Two tenants may use one id, and so may two operations; each is processed, and sees its own
// result only. No tenant (null) is a scope of its own and differs from the tenant with an empty name; neither is a wildcard.
// A queue of several topics has to say whether an id is one for all of them or one in each; Operation with Topic() says the latter.
//
// # Fingerprint
//
// The same id with another request is no repeat: it is a conflict, made by a producer that used an id twice. A fingerprint tells the two apart. Raw, the default, is over
// the value's bytes: right for what is sent again as it was. Raw().Ignore and Fields are over a canonical form of JSON, for producers that build the message anew
// with another timestamp, or in another order. None switches it off, and with it the detection.
//
// Two payloads never share a fingerprint unless they are equal, and what that means is written down, because common decoders do not keep it (integers beyond 2^53,
// numbers too large for a float64, repeated members, bytes that are not UTF-8, halves of surrogate pairs). In canonical form:
//
//   - the order of members does not count, but that of members of one name does; the order of elements counts;
//   - strings are compared by their bytes once escapes are resolved, without any normalisation;
//   - numbers are compared exactly in decimal: 1, 1.0 and 1e0 are one, 0 and -0 are one, 9007199254740993 and 9007199254740992 are two, and so are 1 and "1";
//   - an absent member and null are two things, and so are a null value (a tombstone) and an empty one;
//   - what is not JSON, or nested more than 1000 levels deep, is compared byte for byte, and never equals what is JSON.
//
// DiffFields shows in which paths two payloads differ.
//
// # Identity
//
// Rules.Identify turns a record into an Identity. Its Digest, 128 bits over queue, tenant, operation and id, is what the claims table has for a key, so that the length
// of an id costs nothing; Shown is the id for people. A change of the rules gives old messages new digests, and a topic that is read again
// would look new. Rules.String tells whether two rules are the same.
//
// # Claim
//
// A claim is a row whose unique constraint says that an id's effect has been made. It is inserted in the transaction that makes the effect, so there is no moment at
// which one exists without the other, and no state between: a claim is there or it is not.
//
//	          INSERT … ON CONFLICT DO NOTHING
//	                │
//	   inserted ────┴──── not inserted (the INSERT has waited for whoever held the id)
//	      │                     │ lookup, in a statement and so a snapshot of its own
//	   Claimed            ┌─────┴───────┐
//	      │            Duplicate     Conflict (the fingerprints differ)
//	the effect, COMMIT
//
// No SELECT decides: one that finds nothing says nothing about a transaction which has the id and has not committed. That is also why only READ COMMITTED is taken:
// under a frozen snapshot the lookup could not see the winner that the INSERT has waited for.
//
// Claim takes any number of ids in one statement, sorted, so that two transactions with overlapping ids wait for each other in one order. A failed handler's claim goes
// with the rollback, or is taken back (Flight.Unclaim): a retry must never be taken for a duplicate.
//
// # Segments
//
// Claims lie in a ring of tables. New ones are inserted into the current one, and an id is also looked up in the older ones that are still remembered; to forget is to
// TRUNCATE the oldest, which costs nothing, where a DELETE would leave dead rows and bloated indexes to vacuum. Which tables those are at a time is a phase. A
// claimer holds a shared advisory lock on its phase, and checks in the next statement that the phase is still the newest; whoever moves the ring commits the next phase and
// then waits until nobody holds the one before. So nobody inserts where nobody looks, and no claimer ever waits for the ring to move.
//
//	insert g ──▶ insert g and g+1 ──▶ insert g+1, look up g ──▶ … ──▶ g out of force ──▶ TRUNCATE g
//
// Claimers of two neighbouring phases can be at it together. In the middle phase an id is therefore claimed by whoever gets it into both segments: against the phase
// before, g decides, and against the phase after, g+1. A Roller does this, one step a transaction, with all that it knows in the database. A segment goes when both
// clocks of all its claims, the database's and the records', are past their queue's retention of today; when a queue's stream stands further back, that counts. What an open
// delayed item or dead letter refers to is carried over. Results have slots of their own, which move with the phases and go when all in them have expired.
package dedup
