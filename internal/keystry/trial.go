package keystry

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/pgtext"
)

const (
	// maxSamples is how many places of each kind are shown.
	maxSamples = 5
	// maxKept bounds the first copies' values that are kept to compare later ones
	// with, in bytes.
	maxKept = 128 << 20
	// sharedPayloads is from how many different payloads on an id looks shared. A
	// producer that sends again sends the same bytes, or two versions of them; a
	// conversation sends a new payload each time.
	sharedPayloads = 3
	// maxPayloads bounds how many different payloads of one id are told apart.
	maxPayloads = 1000
	// maxReason is how much of an error is shown, in bytes.
	maxReason = 300
)

// A trial applies a rule to records. It is not safe for concurrent use.
type trial struct {
	rules  dedup.Rules
	queue  string
	report Report
	seen   map[uuid.UUID]*first
	seed   maphash.Seed
	kept   int
	fields map[string]int
}

// A first is the first copy of an id, and what came after it.
type first struct {
	place       Place
	shown       string
	fingerprint uuid.UUID
	version     int16
	value       []byte // nil when hasValue is false
	hasValue    bool
	payloads    map[uint64]struct{} // nil while there is one only
	payload     uint64
	records     int
	from, to    time.Time
}

func newTrial(queue string, rules dedup.Rules) *trial {
	return &trial{
		rules: rules, queue: queue, seen: map[uuid.UUID]*first{}, seed: maphash.MakeSeed(), fields: map[string]int{},
		report: Report{Rule: rules.String()},
	}
}

func (t *trial) add(record *kgo.Record, topicID [16]byte) {
	t.report.Records++
	place := Place{Topic: record.Topic, Partition: record.Partition, Offset: record.Offset}
	identity, err := t.rules.Identify(t.queue, record, topicID)
	var missing *dedup.MissingIDError
	switch {
	case errors.As(err, &missing):
		t.report.Missing++
		t.report.Samples.Missing = sampled(t.report.Samples.Missing, Sample{Place: place})
		return
	case err != nil:
		t.report.Undecodable++
		t.report.Samples.Undecodable = sampled(t.report.Samples.Undecodable, Sample{Place: place, Reason: pgtext.Storable(err.Error(), maxReason)})
		return
	}
	if identity.FromOffset {
		t.report.ByOffset++
	}
	digest := identity.Digest()
	known, ok := t.seen[digest]
	if !ok {
		t.report.Distinct++
		t.seen[digest] = t.keep(place, &identity, record)
		return
	}
	t.compare(known, place, &identity, record)
}

// keep makes the first copy of an id. The value is copied: the record's own bytes
// are a part of everything that was fetched with them.
func (t *trial) keep(place Place, identity *dedup.Identity, record *kgo.Record) *first {
	f := &first{
		place: place, shown: identity.Shown(), fingerprint: identity.Fingerprint, version: identity.FingerprintVersion,
		payload: maphash.Bytes(t.seed, record.Value), records: 1, from: record.Timestamp, to: record.Timestamp,
	}
	if size := len(record.Value); t.kept+size <= maxKept {
		f.value, f.hasValue = bytes.Clone(record.Value), true
		t.kept += size
	}
	return f
}

func (t *trial) compare(known *first, place Place, identity *dedup.Identity, record *kgo.Record) {
	known.add(maphash.Bytes(t.seed, record.Value), record.Timestamp)
	sample := Sample{Place: place, ID: known.shown, First: &known.place}
	if identity.FingerprintVersion == 0 || identity.Fingerprint == known.fingerprint {
		t.report.Repeats++
		t.report.Samples.Repeats = sampled(t.report.Samples.Repeats, sample)
		return
	}
	t.report.Conflicts++
	if known.hasValue {
		sample.Fields = dedup.DiffFields(known.value, record.Value)
	}
	for _, path := range sample.Fields {
		t.fields[path]++
	}
	t.report.Samples.Conflicts = sampled(t.report.Samples.Conflicts, sample)
}

func (f *first) add(payload uint64, at time.Time) {
	f.records++
	if at.Before(f.from) {
		f.from = at
	}
	if at.After(f.to) {
		f.to = at
	}
	if f.payloads == nil {
		if payload == f.payload {
			return
		}
		f.payloads = map[uint64]struct{}{f.payload: {}}
	}
	if len(f.payloads) < maxPayloads {
		f.payloads[payload] = struct{}{}
	}
}

func sampled(samples []Sample, s Sample) []Sample {
	if len(samples) < maxSamples {
		samples = append(samples, s)
	}
	return samples
}

// finish works out what is told of all records together.
func (t *trial) finish() Report {
	r := t.report
	for path, count := range t.fields {
		r.ConflictFields = append(r.ConflictFields, FieldCount{Path: path, Count: count})
	}
	slices.SortFunc(r.ConflictFields, func(a, b FieldCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Path, b.Path))
	})
	for _, f := range t.seen {
		if len(f.payloads) < sharedPayloads {
			continue
		}
		r.SharedIDs++
		r.Shared = append(r.Shared, Shared{ID: f.shown, First: f.place, Records: f.records, Payloads: len(f.payloads), From: f.from.UTC(), To: f.to.UTC()})
	}
	slices.SortFunc(r.Shared, func(a, b Shared) int {
		return cmp.Or(cmp.Compare(b.Payloads, a.Payloads), cmp.Compare(a.ID, b.ID))
	})
	r.Shared = r.Shared[:min(len(r.Shared), maxSamples)]
	r.Warnings = warnings(&r, t.rules)
	return r
}

func warnings(r *Report, rules dedup.Rules) (list []string) {
	if r.Records == 0 {
		return []string{"there is nothing to try the rule on: the topic holds no records"}
	}
	if r.SharedIDs > 0 {
		worst := r.Shared[0]
		list = append(list, fmt.Sprintf(
			"%s on %d or more different payloads. The id %q has %d, on %d messages within %s: it looks like a correlation id that a whole conversation shares. An id must be one per message: of these messages only the first would be handled",
			counted(r.SharedIDs, "id stands", "ids stand"), sharedPayloads, worst.ID, worst.Payloads, worst.Records, worst.To.Sub(worst.From).Round(time.Second)))
	}
	if r.Conflicts > 0 {
		advice := "is the id one per message?"
		if r.SharedIDs == 0 && len(r.ConflictFields) > 0 {
			advice = fmt.Sprintf("if %q and the like do not make another message, leave them out of the fingerprint with ignore(…)", r.ConflictFields[0].Path)
		}
		list = append(list, counted(r.Conflicts, "message has", "messages have")+" the id of an earlier one and another content, and would be dead at once, as a conflict; "+advice)
	}
	if r.Missing > 0 {
		list = append(list, counted(r.Missing, "message has", "messages have")+" no id and would be dead at once (on_missing: offset would handle them, and what the producer sends twice twice)")
	}
	if r.ByOffset > 0 {
		list = append(list, counted(r.ByOffset, "message has", "messages have")+" no id, known by the offset: what the producer sends twice is handled twice")
	}
	if r.Undecodable > 0 {
		list = append(list, counted(r.Undecodable, "message", "messages")+" cannot be read by the rule and would be dead at once")
	}
	if r.Repeats > r.Records/2 && rules.Fingerprint.Version() == 0 {
		list = append(list, "most messages are repeats and the fingerprint is none, so nothing tells a repeat from another message under the same id: try again with the fingerprint raw")
	}
	if len(r.Unread) > 0 {
		list = append(list, counted(len(r.Unread), "partition was", "partitions were")+" not read to the end: the broker sent nothing more")
	}
	return list
}

// counted writes a number and the word that goes with it.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
