package keystry

import "time"

// A Report is what a rule would do. Every record counts as exactly one of
// Distinct, Repeats, Conflicts, Missing and Undecodable.
type Report struct {
	// Rule is the rule's canonical text.
	Rule string `json:"rule"`
	// Ranges are what was read.
	Ranges []Range `json:"read"`
	// Records is how many records were looked at.
	Records int `json:"records"`
	// Distinct are messages under an id of their own: each would be handled.
	Distinct int `json:"distinct"`
	// Repeats have the id and the fingerprint of an earlier one: dropped.
	Repeats int `json:"repeats"`
	// Conflicts have the id of an earlier one and another fingerprint: dead.
	Conflicts int `json:"conflicts"`
	// Missing have no id: dead.
	Missing int `json:"missing"`
	// Undecodable cannot be read by the rule: dead.
	Undecodable int `json:"undecodable"`
	// ByOffset, among Distinct, have no id and are known by their offset.
	ByOffset int `json:"by_offset"`
	// ConflictFields are the paths in which conflicts differ from the first copy, the
	// most frequent first.
	ConflictFields []FieldCount `json:"conflict_fields,omitempty"`
	// SharedIDs is how many ids look shared by a conversation; Shared shows the worst.
	SharedIDs int      `json:"shared_ids"`
	Shared    []Shared `json:"shared,omitempty"`
	// Samples show some places of each kind.
	Samples Samples `json:"samples"`
	// Unread are partitions that were not read to the end that they had.
	Unread []Place `json:"unread,omitempty"`
	// Warnings say what a person should look at before using the rule.
	Warnings []string `json:"warnings,omitempty"`
}

// A Range is what was read of a partition: from an offset up to another, which is
// not in it.
type Range struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`
	Records   int    `json:"records"`
}

// A Place is where a record stands.
type Place struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// A FieldCount is in how many conflicts a path differs.
type FieldCount struct {
	Path  string `json:"path"`
	Count int    `json:"count"`
}

// A Shared is an id under which many different payloads stand.
type Shared struct {
	ID       string    `json:"id"`
	First    Place     `json:"first"`
	Records  int       `json:"records"`
	Payloads int       `json:"payloads"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
}

// Samples are some places of each kind.
type Samples struct {
	Repeats     []Sample `json:"repeats,omitempty"`
	Conflicts   []Sample `json:"conflicts,omitempty"`
	Missing     []Sample `json:"missing,omitempty"`
	Undecodable []Sample `json:"undecodable,omitempty"`
}

// A Sample is a record that shows a kind. No payload is in it.
type Sample struct {
	Place
	// ID is the id, shortened; empty when there is none.
	ID string `json:"id,omitempty"`
	// First is where the first copy stands: of those that were read.
	First *Place `json:"first,omitempty"`
	// Fields are the paths in which a conflict differs from the first copy.
	Fields []string `json:"fields,omitempty"`
	// Reason says why a record cannot be read.
	Reason string `json:"reason,omitempty"`
}
