package cli

// QueueConfig is one queue: an entry of the section "queues".
type QueueConfig struct {
	// The Kafka topics that are read. Required.
	Topics Strings `koanf:"topics"`
	// The consumer group. A second group on the same queue is refused. Default: the
	// queue's name.
	Group string `koanf:"group"`
	// Who is responsible, shown with everything that is stuck.
	Owner OwnerConfig `koanf:"owner"`

	// Where a message's id is found: sources, of which the first that finds one wins.
	// header:NAME, key, json:PATH, xml:PATH, effect (a record of claimq's outbox),
	// join(SOURCE,SOURCE), cloudevents, standard-webhooks, envelope. Required unless claims is none.
	ID Sources `koanf:"id"`
	// What a message without an id is: reject (a dead letter) or offset (known by its
	// topic, partition and offset). Default: reject.
	OnMissing string `koanf:"on_missing"`
	// Where the tenant is found; two tenants may use one id. Default: no tenant.
	Tenant Sources `koanf:"tenant"`
	// Where the operation is found; two operations may use one id. Required when
	// several topics are read: topic keeps the ids of each topic apart, const:NAME makes
	// one id in two topics one message. Default: no operation.
	Operation Sources `koanf:"operation"`
	// What tells a repeat from a conflict: raw (the value's bytes), fields(PATH,…) or
	// none, each with ignore(PATH,…) behind it. Default: raw.
	Fingerprint string `koanf:"fingerprint"`
	// id: claim each message's id. none: claim nothing, for handlers that are idempotent
	// by themselves. Default: id.
	Claims string `koanf:"claims"`
	// What a duplicate leaves: count (a metric) or log (also a line). Default: count.
	Repeats string `koanf:"repeats"`
	// What a repeat gets: drop (nothing) or reply (every message that succeeds is
	// answered with its result, and every repeat with the same record again, under the
	// same id). Default: drop.
	OnDuplicate string `koanf:"on_duplicate"`
	// Where answers go; for on_duplicate: reply.
	Reply ReplyConfig `koanf:"reply"`
	// Keep the ids themselves out of the claims table.
	HideIDs bool `koanf:"hide_ids"`

	// What handles a message that no route takes. Without it, such messages are skipped.
	Handler *HandlerConfig `koanf:"handler"`
	// Handlers of their own for some messages; the first route that takes one wins.
	Routes []RouteConfig `koanf:"routes"`

	// What is kept in order when messages fail: key, partition or none. Default: key.
	Order string `koanf:"order"`
	// Where the order key is found, as for id. Default: the record key.
	OrderBy Sources `koanf:"order_by"`
	// What a dead letter does to later messages of its order key: continue (they go on)
	// or block (they wait until it is settled). Default: continue.
	OnDead string `koanf:"on_dead"`
	// How a failed message is tried again.
	Retry RetryConfig `koanf:"retry"`
	// A topic where dead letters are published for other tools; the rows in Postgres
	// rule. It must exist. Default: none.
	DeadLetterTopic string `koanf:"dead_letter_topic"`

	// Where a queue begins that has no position yet: committed (the group's offset in
	// Kafka, else the earliest), earliest, latest, or a time as 2026-01-31T00:00:00Z.
	// Default: committed.
	Start string `koanf:"start"`
	// What happens when Kafka no longer has the record at the position: halt (the
	// partition stops until `claimq position set`) or earliest (it goes on at the first
	// record that is left, and what was lost is logged). Default: halt.
	OutOfRange string `koanf:"out_of_range"`
	// Also handle records of open and aborted Kafka transactions.
	ReadUncommitted bool `koanf:"read_uncommitted"`

	// Lanes, each with a database connection and transactions of its own; messages are
	// spread over them by order key. Default: 2.
	Concurrency int `koanf:"concurrency"`
	// What one transaction takes.
	Batch BatchConfig `koanf:"batch"`
	// Bound of the records read from Kafka and not yet handled. The process keeps below
	// twice that for each queue, and 64MiB, unless GOMEMLIMIT says another. Default: 64MiB.
	MaxBuffered Size `koanf:"max_buffered"`

	// How long a handler may take. Default: 30s.
	HandlerTimeout Duration `koanf:"handler_timeout"`
	// How long items of the delay queue are lent to a worker, which renews the lease: a
	// worker that dies holds them for that long. It must be longer than handler_timeout.
	// Default: 45s, or handler_timeout and 15s where that is more.
	Lease Duration `koanf:"lease"`
	// How long to wait for a row lock or another transaction's claim before the batch
	// is tried again. Default: 5s.
	LockTimeout Duration `koanf:"lock_timeout"`
	// Kafka's: how long a silent member keeps its partitions. Default: 10s.
	SessionTimeout Duration `koanf:"session_timeout"`
	// Kafka's: how long members may take to give partitions up. It must be longer than
	// handler_timeout and revoke_budget together. Default: 1m.
	RebalanceTimeout Duration `koanf:"rebalance_timeout"`
	// How long running batches may go on when their partition is taken away. Default: 5s.
	RevokeBudget Duration `koanf:"revoke_budget"`
	// How long running batches may go on when the process stops. Default: 20s.
	StopBudget Duration `koanf:"stop_budget"`
	// How often the position is told to Kafka, for lag tools only. Default: 1s.
	CommitInterval Duration `koanf:"commit_interval"`

	// How long ids are remembered. Default: 8d.
	Retention Duration `koanf:"retention"`
	// How long results are kept, at most retention. Default: 8d, or retention.
	ResultLifetime Duration `koanf:"result_lifetime"`
	// How long producers may send the same id again. With the retries and replay_window
	// it must fit into retention.
	ResendHorizon Duration `koanf:"resend_horizon"`
	// How late a dead letter may be replayed from outside claimq.
	ReplayWindow Duration `koanf:"replay_window"`
}

// OwnerConfig is a section "owner".
type OwnerConfig struct {
	// The team.
	Team string `koanf:"team"`
	// How to reach it: a channel, an address, a rota.
	Contact string `koanf:"contact"`
}

// ReplyConfig is a queue's section "reply". The value of an answer is what the
// statement's column result holds, empty without one.
type ReplyConfig struct {
	// The topic of the answers. Their header claimq-status says result, or result_expired
	// (the message was handled, and its result is gone).
	Topic string `koanf:"topic"`
	// Where the key of the answer is found in the message, as for id. Default: its own key.
	Key string `koanf:"key"`
}

// RouteConfig is an entry of a queue's "routes". Topic and header both must fit
// where both are set.
type RouteConfig struct {
	// Tells routes apart in logs and metrics. Required.
	Name string `koanf:"name"`
	// Take messages of this topic only.
	Topic string `koanf:"topic"`
	// Take messages whose last header of this name has value.
	Header string `koanf:"header"`
	// The header's value.
	Value string `koanf:"value"`
	// What handles them. Required.
	Handler *HandlerConfig `koanf:"handler"`
}

// RetryConfig is a queue's section "retry".
type RetryConfig struct {
	// Attempts before a message is dead, the first included. Default: 3.
	MaxAttempts int `koanf:"max_attempts"`
	// The wait after the first failure. Default: 1m.
	InitialDelay Duration `koanf:"initial_delay"`
	// What each wait is longer than the one before. Default: 2.
	DelayFactor float64 `koanf:"delay_factor"`
	// The longest wait. Default: 1h.
	MaxDelay Duration `koanf:"max_delay"`
	// How much a wait is lengthened at random, as a part of it from 0 to 1: 0.2 is up to
	// a fifth. It never shortens. Default: 0.1.
	Jitter *float64 `koanf:"jitter"`
	// How long after its first failure a message is tried at all. Default: no limit but
	// max_attempts.
	Deadline Duration `koanf:"deadline"`
}

// BatchConfig is a queue's section "batch"; a batch is closed by whichever bound
// comes first.
type BatchConfig struct {
	// The most messages. Default: 500.
	Messages int `koanf:"messages"`
	// The most bytes of keys and values; a larger message goes alone. Default: 4MiB.
	Bytes Size `koanf:"bytes"`
	// How long a batch that is not full waits for more. Default: 0, it takes what is there.
	Wait Duration `koanf:"wait"`
}

// HandlerConfig is a section "handler".
type HandlerConfig struct {
	// The statement that makes the effect. What it takes of a message is named in it:
	// @id, @value, @key and others for one message, @ids, @values, @keys for a batch.
	SQL string `koanf:"sql"`
	// A file with the statement, instead of sql.
	SQLFile string `koanf:"sql_file"`
	// Run the statement for each message, with its values as parameters; otherwise once
	// for a batch, with arrays.
	Each bool `koanf:"each"`
	// Records that are published for each message whose statement has run, through the
	// outbox: they are out exactly when the write is there.
	Effects []EffectConfig `koanf:"effects"`
}

// EffectConfig is one of a handler's "effects".
type EffectConfig struct {
	// The effect's name, unique in its handler. It is a part of the record's id: do not
	// change it while messages are on their way.
	Name string `koanf:"name"`
	// The topic that the record goes to.
	Topic string `koanf:"topic"`
	// Where the record's key is found in the message, as for id. Default: its own key.
	Key string `koanf:"key"`
	// Where the record's value is found in the message, as for id. Default: its own
	// value, byte for byte.
	Value string `koanf:"value"`
	// Whether the record also gets the message's headers.
	CopyHeaders bool `koanf:"copy_headers"`
}
