package dedup

import (
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// CloudEvents finds the identity of a CloudEvent, which is its source and its id together: producers must make that pair unique for each event (CloudEvents
// 1.0, "id"). The two are joined as Join does it, source first, so that an event has the same identity in both modes of the Kafka binding:
//
//   - structured, when the content-type header begins with application/cloudevents: id and source are members of the JSON value. Formats other than JSON, and
//     batches, which the binding does not allow, are undecodable; Func reads them with your decoder.
//   - binary, otherwise: the headers ce_id and ce_source.
//
// A record that has neither is not found, and neither is a null value in structured mode. One that has only one of the two, or an empty one, is undecodable: the
// specification requires both, and half of it would be shared.
func CloudEvents() Source { return cloudEventsSource{} }

type cloudEventsSource struct{}

var (
	cloudEventID     = &jsonSource{path: "$.id", steps: []string{"id"}}
	cloudEventSource = &jsonSource{path: "$.source", steps: []string{"source"}}
)

func (s cloudEventsSource) Find(r *kgo.Record) (string, bool, error) {
	contentType, _ := lastHeader(r, "content-type")
	if media, structured := cloudEventsMedia(string(contentType)); structured {
		return s.findStructured(r, media)
	}
	id, hasID := lastHeader(r, "ce_id")
	source, hasSource := lastHeader(r, "ce_source")
	if !hasID && !hasSource {
		return "", false, nil
	}
	return s.identity(r, string(source), string(id))
}

func (s cloudEventsSource) findStructured(r *kgo.Record, media string) (string, bool, error) {
	if media != "application/cloudevents+json" && media != "application/cloudevents" {
		return "", false, undecodable(s, r, fmt.Errorf("content-type %q is no single CloudEvent in JSON; read it with a Go function", media))
	}
	if r.Value == nil {
		return "", false, nil
	}
	if err := checkJSON(r.Value); err != nil {
		return "", false, undecodable(s, r, err)
	}
	id, _, err := cloudEventID.findValid(r)
	if err != nil {
		return "", false, undecodable(s, r, fmt.Errorf("id: %w", errors.Unwrap(err)))
	}
	source, _, err := cloudEventSource.findValid(r)
	if err != nil {
		return "", false, undecodable(s, r, fmt.Errorf("source: %w", errors.Unwrap(err)))
	}
	return s.identity(r, source, id)
}

func (s cloudEventsSource) identity(r *kgo.Record, source, id string) (string, bool, error) {
	if source == "" || id == "" {
		return "", false, undecodable(s, r, errors.New("a CloudEvent needs a source and an id, and this one lacks one of them"))
	}
	return string(appendPart(appendPart(nil, source), id)), true, nil
}

func (cloudEventsSource) String() string { return kindCloudEvents }
func (cloudEventsSource) check() error   { return nil }
func (cloudEventsSource) constant() bool { return false }

// cloudEventsMedia returns the media type without its parameters, in lower case, and whether it makes the record a structured CloudEvent. Media types are
// compared without regard to case (RFC 9110, 8.3.1).
func cloudEventsMedia(contentType string) (media string, structured bool) {
	media, _, _ = strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return media, strings.HasPrefix(media, "application/cloudevents")
}
