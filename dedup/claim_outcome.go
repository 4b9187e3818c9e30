package dedup

import "time"

// Kind is what became of a claim.
type Kind uint8

const (
	// Claimed: the id was not known; the claim is made in this transaction, and the
	// effect is now the caller's to make in the same transaction.
	Claimed Kind = iota + 1
	// Duplicate: the id's effect has been made before, by a committed transaction
	// or earlier in this one. Not an error.
	Duplicate
	// Conflict: the id is known, and asked for something else then: the
	// fingerprints differ. Never a duplicate.
	Conflict
)

// String returns the word that logs and metrics use.
func (k Kind) String() string {
	switch k {
	case Claimed:
		return "claimed"
	case Duplicate:
		return "duplicate"
	case Conflict:
		return "conflict"
	}
	return "invalid"
}

// A Sighting is where in Kafka a message stood.
type Sighting struct {
	// Topic is the topic's number in claimq.topics, which stands for its topic id:
	// a topic that was deleted and created again has another.
	Topic     int32
	Partition int32
	Offset    int64
}

// An Outcome is the answer to one Request.
type Outcome struct {
	Kind Kind
	// First tells where the id was first seen; nil when it was claimed outside Kafka
	// or Kind is Claimed.
	First *Sighting
	// RecordAt is the first record's time, ClaimedAt the database's when its
	// transaction began. Zero when Kind is Claimed.
	RecordAt, ClaimedAt time.Time
	// Result is what the handler of the first copy left, nil when it left nothing
	// or it has expired. Only Claim and Store.Claim fill it in.
	Result []byte
}
