package consumer

import (
	"log/slog"
	"time"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/delayq"
)

// Config defines a queue: a named processing definition. Queue, Topics and a
// handler are required; the zero value of every other field is a working default.
type Config struct {
	// Queue is the queue's name: explicit, immutable, the root of the dedup scope. A
	// queue under another name is another queue, to which every message is new.
	// Letters, digits and ._:/- , at most 200.
	Queue string
	// Topics are the Kafka topics that are read. A missing topic is an error at start.
	Topics []string
	// Group is the consumer group. Default: the queue's name. A second group on the
	// same queue is refused.
	Group string
	// Owner is who is responsible, shown with everything that is stuck.
	Owner Owner

	// Rules say what a message's id, scope and fingerprint are. Without an id rule
	// every message is rejected, so one is required unless Claims is ClaimNone.
	Rules dedup.Rules
	// Claims says whether ids are claimed. Default ClaimIDs.
	Claims Claims
	// AcceptRuleChange lets a queue start whose rules differ from the registered ones,
	// which makes its whole topic look new. Without it that is refused.
	AcceptRuleChange bool
	// Repeats says what a duplicate leaves besides its count. Default RepeatsCount.
	Repeats Repeats
	// OnDuplicate says what a repeat gets: nothing, or the answer that the first copy
	// got. Default Drop.
	OnDuplicate OnDuplicate
	// Reply says where answers go under SendReply.
	Reply Reply
	// HideIDs keeps the ids themselves out of the claims table.
	HideIDs bool

	// Handler handles what no route takes. When there are routes and no Handler,
	// such messages are skipped and write no claim.
	Handler Handler
	// Routes send messages by topic or header to handlers of their own.
	Routes []Route
	// Middleware wraps every handler; the first is the outermost.
	Middleware []Middleware

	// Order says what is kept in order. Default OrderKey.
	Order Order
	// OrderBy finds the order key under OrderKey. Default: the record key. A message
	// without one is not ordered.
	OrderBy []dedup.Source
	// OnDead says what a dead letter does to the messages behind it. Default Continue.
	OnDead OnDead
	// Retry is the delay queue's policy.
	Retry delayq.Policy
	// DeadLetterTopic is where dead letters are published for other tools; the row in
	// Postgres rules. Empty: no topic. It must not be one of Topics.
	DeadLetterTopic string

	// Start says where a queue begins that has no position yet. Default StartCommitted.
	Start Start
	// OutOfRange says what happens when Kafka no longer has the record at the position,
	// or not yet. Default Halt.
	OutOfRange OutOfRange
	// ReadUncommitted also handles records of open and aborted Kafka transactions.
	// Default: read_committed.
	ReadUncommitted bool

	// Concurrency is the number of lanes, each with a database connection and
	// transactions of its own; messages are spread over them by order key. Default 2.
	Concurrency int
	// Batch bounds what one transaction takes.
	Batch BatchLimits
	// MaxBufferedBytes bounds the records read from Kafka and not yet handled; over
	// its share a partition is paused. Default 64 MiB.
	MaxBufferedBytes int

	// HandlerTimeout is how long a handler may take for one message (One, Pipelined)
	// or one call (Batch). Past it the message fails with a *TimeoutError. Default 30 s.
	// It must be shorter than RebalanceTimeout by at least RevokeBudget.
	HandlerTimeout time.Duration
	// Lease is how long items of the delay queue are lent to a worker; it renews the
	// lease while it works on them. A worker that dies holds its items, and nothing
	// else, for that long. Longer than HandlerTimeout. Default 45 s, or
	// HandlerTimeout and 15 s where that is more.
	Lease time.Duration
	// LockTimeout bounds the wait for a row lock or for another transaction's claim;
	// then the batch is tried again. Default 5 s.
	LockTimeout time.Duration
	// SessionTimeout is Kafka's: how long a silent member keeps its partitions.
	// Default 10 s.
	SessionTimeout time.Duration
	// RebalanceTimeout is Kafka's: how long members may take to give partitions up.
	// Default 60 s.
	RebalanceTimeout time.Duration
	// RevokeBudget is how long running batches may go on when their partition is
	// taken away; then they are rolled back. Default 5 s.
	RevokeBudget time.Duration
	// StopBudget is how long running batches may go on after Stop. Default 20 s.
	StopBudget time.Duration
	// CommitInterval is how often the position is told to Kafka, for lag tools only.
	// Default 1 s.
	CommitInterval time.Duration

	// Retention is how long ids are remembered. Default 8 days.
	Retention time.Duration
	// ResultLifetime is how long results are kept. Default 8 days, at most Retention.
	ResultLifetime time.Duration
	// ResendHorizon is how long producers may send the same id again. It must fit into
	// Retention. Default 0: not told.
	ResendHorizon time.Duration
	// ReplayWindow is how late a dead letter may be replayed from outside claimq. It
	// must fit into Retention. Default 0: not told.
	ReplayWindow time.Duration

	// Schema is the schema of claimq's tables. Default "claimq".
	Schema string
	// Logger gets what an operator should know; ids and positions, never payloads.
	// Default: slog.Default.
	Logger *slog.Logger
	// Relay, when it runs in this process, is woken after commits that leave effects,
	// so that they do not wait for its next poll. Starting and stopping it is the
	// caller's. Default: none.
	Relay Waker
	// Committed, when set, is called after each commit with the number of messages that
	// got their outcome in it: for progress, and for tests that wait. It must be quick
	// and safe for concurrent use.
	Committed func(messages int)
	// Metrics collects figures; one value serves any number of queues. Default: none.
	Metrics *Metrics
}

// A Waker is told that there may be work: *outbox.Relay is one.
type Waker interface{ Wake() }

// Owner is a team and how to reach it.
type Owner struct {
	Team, Contact string
}

// Claims says whether a queue claims ids.
type Claims uint8

const (
	// ClaimIDs claims each message's id: a repeat is dropped wherever it stands.
	ClaimIDs Claims = iota
	// ClaimNone claims nothing, for handlers that are idempotent by themselves. The
	// position alone makes each offset's effect once. Lanes are then spread by
	// partition, since an offset out of order would be handled again.
	ClaimNone
)

// Repeats says what a duplicate leaves besides its count.
type Repeats uint8

const (
	// RepeatsCount counts duplicates in metrics.
	RepeatsCount Repeats = iota
	// RepeatsLog also writes a log line for each.
	RepeatsLog
)

// Order says what is kept in order across failures.
type Order uint8

const (
	// OrderKey keeps messages of one order key in order.
	OrderKey Order = iota
	// OrderPartition keeps a whole partition in order: one failed message holds it.
	OrderPartition
	// OrderNone keeps nothing in order.
	OrderNone
)

// OnDead says what a dead letter does to later messages of its order key.
type OnDead uint8

const (
	// Continue lets later messages go on when one is dead.
	Continue OnDead = iota
	// Block holds later messages of the order key until the dead letter is settled.
	Block
)

// OutOfRange says what happens to a partition whose position lies outside of what
// Kafka has: records were deleted before they were handled, or the topic lost its
// end. Nothing ever goes to the end by itself.
type OutOfRange uint8

const (
	// Halt stops the partition, says so, and waits for `claimq position set`.
	Halt OutOfRange = iota
	// Earliest goes on at the first record that is left when the position lies before
	// it, and says what was lost; a position past the end halts all the same.
	Earliest
)

// BatchLimits bound what one transaction takes; a batch is closed by whichever
// comes first.
type BatchLimits struct {
	// Messages is the most messages of a batch. Default 500.
	Messages int
	// Bytes is the most bytes of keys and values; a larger message goes alone.
	// Default 4 MiB.
	Bytes int
	// Wait is how long a batch that is not full waits for more. Default 0: it takes
	// what is there, so that batches grow with the load and an idle queue is quick.
	Wait time.Duration
}

// Start says where a queue begins that has no position yet. A new partition of a
// topic that is known already always begins at its beginning, and a queue that has
// claims and no positions does not start at all unless the start is given with
// Anew. The zero value is StartCommitted.
type Start struct {
	kind startKind
	at   time.Time
	anew bool
}

type startKind uint8

const (
	startCommitted startKind = iota
	startEarliest
	startLatest
	startAt
)

// StartCommitted begins at the group's committed offset in Kafka, or at the
// earliest record where there is none: the start for a consumer that takes over
// from an older one.
func StartCommitted() Start { return Start{} }

// StartEarliest begins at the first record.
func StartEarliest() Start { return Start{kind: startEarliest} }

// StartLatest begins after the last record, as it is at the first assignment.
func StartLatest() Start { return Start{kind: startLatest} }

// StartAt begins at the first record that is not older than at.
func StartAt(at time.Time) Start { return Start{kind: startAt, at: at} }

// Anew lets a queue start that has claims and no positions: somebody has deleted
// the positions on purpose. What is still remembered is dropped as duplicate.
func (s Start) Anew() Start { s.anew = true; return s }

// String returns the configuration's word.
func (s Start) String() string {
	switch s.kind {
	case startEarliest:
		return "earliest"
	case startLatest:
		return "latest"
	case startAt:
		return s.at.Format(time.RFC3339)
	default:
		return "committed"
	}
}

// String returns the configuration's word.
func (c Claims) String() string { return [...]string{"id", "none"}[c] }

// String returns the configuration's word.
func (o Order) String() string { return [...]string{"key", "partition", "none"}[o] }

// String returns the configuration's word.
func (o OnDead) String() string { return [...]string{"continue", "block"}[o] }

// String returns the configuration's word.
func (o OutOfRange) String() string { return [...]string{"halt", "earliest"}[o] }

// String returns the configuration's word.
func (r Repeats) String() string { return [...]string{"count", "log"}[r] }
