package outbox

import (
	"errors"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A CloudEvent makes an effect's record a CloudEvent 1.0 in Kafka's binary mode: the
// value stays as it is, and headers describe it. ce_id is the effect's id, the same
// on every copy, and ce_specversion is 1.0.
type CloudEvent struct {
	// Source is ce_source: what the event comes from, a URI reference. Required.
	Source string
	// Type is ce_type: what has happened. Required.
	Type string
	// Subject, DataSchema and DataContentType become ce_subject, ce_dataschema and
	// content-type; empty ones are left out.
	Subject, DataSchema, DataContentType string
	// Time is ce_time: when it happened. Zero: left out. It is the application's, so
	// that it is the same when the transaction is tried again.
	Time time.Time
	// Extensions become ce_ and the name. Names are lower-case letters and digits, at
	// most 20, and none of the attributes above. The order is that of the slice.
	Extensions []CloudEventExtension
}

// A CloudEventExtension is an attribute that the specification does not define.
type CloudEventExtension struct {
	Name, Value string
}

// ErrCloudEvent says that an effect's CloudEvent lacks what the specification
// requires, or has an extension that it does not allow.
var ErrCloudEvent = errors.New("the CloudEvent needs a Source and a Type, and every text valid UTF-8; an extension's name has lower-case letters and digits, at most 20, and is no attribute of the specification")

// attributes are the names that an extension may not take.
var attributes = map[string]bool{
	"id": true, "source": true, "specversion": true, "type": true, "subject": true, "time": true,
	"dataschema": true, "datacontenttype": true, "data": true,
}

// valid reports whether the event is one.
func (c *CloudEvent) valid() bool {
	for _, text := range []string{c.Source, c.Type, c.Subject, c.DataSchema, c.DataContentType} {
		if !utf8.ValidString(text) {
			return false
		}
	}
	seen := map[string]bool{}
	for _, e := range c.Extensions {
		if e.Name == "" || len(e.Name) > 20 || attributes[e.Name] || seen[e.Name] || !utf8.ValidString(e.Value) {
			return false
		}
		for _, b := range []byte(e.Name) {
			if (b < 'a' || b > 'z') && (b < '0' || b > '9') {
				return false
			}
		}
		seen[e.Name] = true
	}
	return c.Source != "" && c.Type != ""
}

// headers are those of the event, behind the effect's own. One that the effect sets
// itself stands in the event's place.
func (c *CloudEvent) headers(id uuid.UUID, own []kgo.RecordHeader) []kgo.RecordHeader {
	named := make(map[string]bool, len(own))
	for _, h := range own {
		named[h.Key] = true
	}
	list := append(make([]kgo.RecordHeader, 0, len(own)+8+len(c.Extensions)), own...)
	add := func(key, value string) {
		if value != "" && !named[key] {
			list = append(list, kgo.RecordHeader{Key: key, Value: []byte(value)})
		}
	}
	add("ce_specversion", "1.0")
	add("ce_id", id.String())
	add("ce_source", c.Source)
	add("ce_type", c.Type)
	add("ce_subject", c.Subject)
	if !c.Time.IsZero() {
		add("ce_time", c.Time.UTC().Format(time.RFC3339Nano))
	}
	add("ce_dataschema", c.DataSchema)
	add("content-type", c.DataContentType)
	for _, e := range c.Extensions {
		add("ce_"+e.Name, e.Value)
	}
	return list
}

// allHeaders are the headers that the effect's row stores.
func (e *Effect) allHeaders(id uuid.UUID) []kgo.RecordHeader {
	if e.CloudEvent == nil {
		return e.Headers
	}
	return e.CloudEvent.headers(id, e.Headers)
}
