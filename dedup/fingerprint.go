package dedup

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/claimq/claimq/internal/nearest"
	"github.com/claimq/claimq/internal/pgtext"
)

// A Fingerprint is a rule that makes a digest of what a message asks for. The same id with the same fingerprint is a repeat, with another it is a conflict.
// The zero value is Raw. Fingerprints do not change and are safe for concurrent use.
type Fingerprint struct{ plan *fingerprintPlan }

// fingerprintPlan is a rule other than Raw.
type fingerprintPlan struct {
	kind     string
	fields   []string // canonical texts, sorted
	ignored  []string
	selected *pathNode // nil: all
	without  *pathNode // nil: nothing
	version  int16
	err      error // what is wrong with the paths
}

const (
	fingerprintRaw    = "raw"
	fingerprintFields = "fields"
	fingerprintNone   = "none"
	ignoreClause      = "ignore"
)

// Raw is the fingerprint of the value's bytes: the first half of their SHA-256. A payload that was written anew, with its members in another order, is
// another one; use Raw().Ignore or Fields where producers do that.
func Raw() Fingerprint { return Fingerprint{} }

// Fields is the fingerprint of the chosen parts of a JSON value, in canonical form. The order of members and white space do not count, the order of elements
// does; numbers are compared exactly, without regard to how they are written; what is absent differs from what is null. The package documentation has
// every rule. Values that are not JSON, or are nested more than 1000 levels deep, are compared byte for byte.
//
// A path is names with dots between them, an index for an element, * for every member or element, a backslash before a character that is meant as it is:
// order.lines.*.sku. At most 64 paths, of 1000 bytes each. All payloads that hold none of them have one fingerprint, so choose what each message has.
func Fields(paths ...string) Fingerprint { return newFingerprint(fingerprintFields, paths, nil) }

// None makes no fingerprint: the same id is always a repeat, whatever the message asks for.
func None() Fingerprint { return newFingerprint(fingerprintNone, nil, nil) }

// Ignore returns the fingerprint without these paths (written as those of Fields), on top of what it ignores already: trace ids, timestamps, retry counters.
// The value is then compared in canonical form, as Fields does it, also for Raw. A value that is not JSON is compared byte for byte.
// An element that is ignored is taken out, as if it had not been there.
func (f Fingerprint) Ignore(paths ...string) Fingerprint {
	if f.plan == nil {
		return newFingerprint(fingerprintRaw, nil, paths)
	}
	return newFingerprint(f.plan.kind, f.plan.fields, append(append([]string(nil), f.plan.ignored...), paths...))
}

func newFingerprint(kind string, fields, ignored []string) Fingerprint {
	plan := &fingerprintPlan{kind: kind, fields: fields, ignored: ignored}
	if kind == fingerprintFields && len(fields) == 0 {
		plan.err = errors.New("fields: no path is given")
	}
	if kind == fingerprintNone && len(ignored) > 0 {
		plan.err = errors.New("none: there is nothing to ignore")
	}
	if texts, node, err := parsePaths(fields); err != nil {
		plan.err = errors.Join(plan.err, fmt.Errorf("fields: %w", err))
	} else if len(fields) > 0 {
		plan.fields, plan.selected = texts, node
	}
	if texts, node, err := parsePaths(ignored); err != nil {
		plan.err = errors.Join(plan.err, fmt.Errorf("ignore: %w", err))
	} else if len(ignored) > 0 {
		plan.ignored, plan.without = texts, node
	}
	if kind == fingerprintRaw && len(ignored) == 0 {
		return Fingerprint{}
	}
	f := Fingerprint{plan: plan}
	plan.version = fingerprintVersion(kind, f.String())
	return f
}

// versionRaw is the version of Raw.
const versionRaw = 1

// fingerprintVersion makes the version of a rule out of its text: 0 for none, 1 for raw, and one of 32766 others, so that after a change of the rule old
// fingerprints are seen to be of another kind (but for one change in 32766) and are not taken for conflicts.
func fingerprintVersion(kind, text string) int16 {
	if kind == fingerprintNone {
		return 0
	}
	sum := sha256.Sum256([]byte("claimq fingerprint scheme 1: " + text))
	return int16(2 + binary.BigEndian.Uint64(sum[:8])%32766)
}

// What a fingerprint other than Raw is made of begins with one of these, so that bytes which are no JSON can never pass for a canonical text.
const (
	tagCanonical = 'J'
	tagBytes     = 'R'
)

var fingerprintBuffers = sync.Pool{New: func() any { return new([]byte) }}

// Sum returns the fingerprint of a record's value, the first 128 bits of a SHA-256, and its version. A null value, which is not an empty one, has the
// fingerprint of all zeros.
//
// Fingerprints are compared only when their versions are equal and not 0. Unequal versions say that the rule was changed in between, and nothing of the payloads.
func (f Fingerprint) Sum(value []byte) (sum uuid.UUID, version int16) {
	version = f.Version()
	if version == 0 || value == nil {
		return uuid.Nil, version
	}
	if f.plan == nil {
		digest := sha256.Sum256(value)
		return uuid.UUID(digest[:16]), version
	}
	buffer := fingerprintBuffers.Get().(*[]byte)
	text, err := canonicalJSON(append((*buffer)[:0], tagCanonical), value, f.plan.selected, f.plan.without)
	if err != nil {
		text = append(append(text[:0], tagBytes), value...)
	}
	digest := sha256.Sum256(text)
	if cap(text) <= maxPooled {
		*buffer = text
		fingerprintBuffers.Put(buffer)
	}
	return uuid.UUID(digest[:16]), version
}

// Version returns the version that Sum returns: 0 for None, 1 for Raw, another for each other rule.
func (f Fingerprint) Version() int16 {
	if f.plan == nil {
		return versionRaw
	}
	return f.plan.version
}

// String returns the rule's canonical text, which ParseFingerprint reads: raw, none, fields(a,b.c), raw ignore(trace_id).
func (f Fingerprint) String() string {
	if f.plan == nil {
		return fingerprintRaw
	}
	text := f.plan.kind
	if text == fingerprintFields {
		text += "(" + pathList(f.plan.fields) + ")"
	}
	if len(f.plan.ignored) > 0 {
		text += " " + ignoreClause + "(" + pathList(f.plan.ignored) + ")"
	}
	return text
}

func pathList(paths []string) string {
	quoted := make([]string, len(paths))
	for i, path := range paths {
		quoted[i] = ruleArgument(path)
	}
	return strings.Join(quoted, ",")
}

// check returns what is wrong with the rule's paths, or nil.
func (f Fingerprint) check() error {
	if f.plan == nil {
		return nil
	}
	return f.plan.err
}

// ParseFingerprint reads what String prints. The paths are checked.
func ParseFingerprint(text string) (Fingerprint, error) {
	p := sourceParser{text: text}
	f, err := p.fingerprint()
	if err == nil && p.pos < len(text) {
		err = fmt.Errorf("%q is left over", pgtext.Storable(text[p.pos:], 80))
	}
	if err == nil {
		err = f.check()
	}
	if err != nil {
		return Fingerprint{}, fmt.Errorf("fingerprint %q: %w", pgtext.Storable(text, 200), err)
	}
	return f, nil
}

func (p *sourceParser) fingerprint() (f Fingerprint, err error) {
	switch kind := p.keyword(); kind {
	case fingerprintRaw:
		f = Raw()
	case fingerprintNone:
		f = None()
	case fingerprintFields:
		paths, err := p.pathList(kind)
		if err != nil {
			return f, err
		}
		f = Fields(paths...)
	default:
		kinds := []string{fingerprintRaw, fingerprintFields, fingerprintNone}
		return f, fmt.Errorf("unknown kind %q; did you mean %q? the kinds are raw, none, fields(PATH,…), each with ignore(PATH,…) after it",
			pgtext.Storable(kind, 80), nearest.Of(strings.ToLower(kind), kinds))
	}
	p.skipSpace()
	if p.pos == len(p.text) {
		return f, nil
	}
	if word := p.keyword(); word != ignoreClause {
		return f, fmt.Errorf("%q follows the kind; only ignore(PATH,…) can", pgtext.Storable(word, 80))
	}
	ignored, err := p.pathList(ignoreClause)
	if err != nil {
		return f, err
	}
	return f.Ignore(ignored...), nil
}

// keyword reads up to a space or an opening parenthesis.
func (p *sourceParser) keyword() string {
	word := p.text[p.pos:]
	if end := strings.IndexAny(word, " ("); end >= 0 {
		word = word[:end]
	}
	p.pos += len(word)
	return word
}

func (p *sourceParser) pathList(of string) ([]string, error) {
	if !p.take('(') {
		return nil, fmt.Errorf("%s needs its paths in parentheses: %s(a,b.c)", of, of)
	}
	var paths []string
	for {
		p.skipSpace()
		path, err := p.argument(1)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", of, err)
		}
		paths = append(paths, path)
		p.skipSpace()
		if p.take(')') {
			return paths, nil
		}
		if !p.take(',') {
			return nil, fmt.Errorf("%s: a comma or a closing parenthesis is missing at byte %d", of, p.pos)
		}
	}
}
