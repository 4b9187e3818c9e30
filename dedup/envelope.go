package dedup

import (
	"bytes"
	"errors"

	"github.com/tidwall/gjson"
	"github.com/twmb/franz-go/pkg/kgo"
)

// CommandEnvelope returns the rules for commands in the envelope
//
//	{"idempotency_key": …, "tool": …, "args": …, "session_id": …, "step_index": …, "tenant": …, "created_at": …}
//
// The id is idempotency_key alone, within the scope of tenant and tool; the fingerprint covers args. session_id and step_index are trace data and no identity:
// a session that is resumed sends the same command under another step, and must not have it carried out again. created_at changes when a producer
// tries again, and is left out for the same reason. A command without a tenant is in the scope of no tenant, which is another than that of the tenant "".
func CommandEnvelope() Rules {
	return Rules{
		ID:          []Source{Envelope()},
		Tenant:      []Source{JSON("tenant")},
		Operation:   []Source{JSON("tool")},
		Fingerprint: Fields("args"),
	}
}

// Envelope finds the idempotency_key of a command envelope (see CommandEnvelope, which is the whole rule). It must be a string: a record whose value is not
// a JSON object, or whose key is anything but a string or null, is undecodable.
func Envelope() Source { return envelopeSource{} }

type envelopeSource struct{}

func (s envelopeSource) Find(r *kgo.Record) (string, bool, error) {
	return s.findChecked(r, &jsonCheck{})
}

func (s envelopeSource) findChecked(r *kgo.Record, check *jsonCheck) (string, bool, error) {
	if r.Value == nil {
		return "", false, nil
	}
	if err := check.of(r.Value); err != nil {
		return "", false, undecodable(s, r, err)
	}
	if bytes.TrimLeft(r.Value, " \t\r\n")[0] != '{' {
		return "", false, undecodable(s, r, errors.New("the value is not a JSON object"))
	}
	result := gjson.GetBytes(r.Value, "idempotency_key")
	switch result.Type {
	case gjson.Null:
		return "", false, nil
	case gjson.String:
		key, err := unquoteJSON(result.Raw)
		if err != nil {
			return "", false, undecodable(s, r, err)
		}
		return key, true, nil
	default:
		return "", false, undecodable(s, r, errors.New("idempotency_key is not a string"))
	}
}

func (envelopeSource) String() string { return kindEnvelope }
func (envelopeSource) check() error   { return nil }
func (envelopeSource) constant() bool { return false }
