package claimsimport

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/nearest"
)

// A LineError says which line of a list cannot be read, and why. It does not quote
// the line.
type LineError struct {
	Line int
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns why.
func (e *LineError) Unwrap() error { return e.Err }

// A Format is how the lines of a list are written.
type Format string

const (
	// Auto takes a list whose first line begins with { for JSON, any other for ids.
	Auto Format = ""
	// IDs: a line is an id, white space and all.
	IDs Format = "ids"
	// JSON: a line is an object with the members id, and as wanted tenant, operation,
	// fingerprint with fingerprint_version, and at.
	JSON Format = "json"
)

// maxAhead is how far in the future a time may lie: clocks differ, units of time
// differ more.
const maxAhead = 24 * time.Hour

// members are those of a line in JSON.
type members struct {
	ID                 *string    `json:"id"`
	Tenant             *string    `json:"tenant"`
	Operation          *string    `json:"operation"`
	Fingerprint        *uuid.UUID `json:"fingerprint"`
	FingerprintVersion int16      `json:"fingerprint_version"`
	At                 *time.Time `json:"at"`
}

var memberNames = []string{"at", "fingerprint", "fingerprint_version", "id", "operation", "tenant"}

// request makes a claim of a line, which is not empty.
func (o *Options) request(format Format, line []byte) (dedup.Request, error) {
	r := dedup.Request{Identity: dedup.Identity{Queue: o.Queue, Tenant: o.Tenant, Operation: o.Operation}}
	if format == IDs {
		r.Identity.ID = string(line)
		return r, nil
	}
	m, err := parseMembers(line)
	if err != nil {
		return r, err
	}
	r.Identity.ID = *m.ID
	if m.Tenant != nil {
		r.Identity.Tenant = m.Tenant
	}
	if m.Operation != nil {
		r.Identity.Operation = m.Operation
	}
	if m.Fingerprint != nil {
		r.Identity.Fingerprint, r.Identity.FingerprintVersion = *m.Fingerprint, m.FingerprintVersion
	}
	if m.At != nil {
		r.RecordAt = *m.At
	}
	return r, nil
}

func parseMembers(line []byte) (m members, err error) {
	var names map[string]json.RawMessage
	if err := json.Unmarshal(line, &names); err != nil {
		return m, fmt.Errorf("it is no JSON object: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !slices.Contains(memberNames, name) {
			return m, fmt.Errorf("there is no member %q; did you mean %q?", name, nearest.Of(name, memberNames))
		}
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, wrongMember(err)
	}
	switch {
	case m.ID == nil || *m.ID == "":
		return m, errors.New(`the member "id" is missing or empty`)
	case (m.Fingerprint == nil) != (m.FingerprintVersion == 0):
		return m, errors.New(`"fingerprint" and "fingerprint_version" belong together: one says nothing without the other`)
	case m.At != nil && time.Until(*m.At) > maxAhead:
		return m, fmt.Errorf(`"at" is %s, which is yet to come`, m.At.Format(time.RFC3339))
	}
	return m, nil
}

func wrongMember(err error) error {
	if wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("the member %q is a %s, which it cannot be", wrongType.Field, wrongType.Value)
	}
	return fmt.Errorf("a member cannot be read: %w", err)
}

// formatOf decides for Auto by the first line that is not empty.
func formatOf(line []byte) Format {
	if bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("{")) {
		return JSON
	}
	return IDs
}
