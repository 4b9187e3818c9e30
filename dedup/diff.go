package dedup

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/claimq/claimq/internal/pgtext"
)

const (
	maxDiffs    = 20
	maxDiffPath = 200 // bytes
	wholeValue  = "$"
)

// DiffFields returns the paths in which two payloads of one id differ, for showing a conflict: in the order of the canonical form, written as Fields and Ignore
// take them, so that what should not count can be copied into ignore. It is nil when the payloads are equal in the sense of Fields. The path $ says that the whole value
// differs, or is not JSON on one side at least.
//
// At most 20 paths are returned, and a last "…" when there are more; each is storable in Postgres and at most 200 bytes long. No values are shown.
func DiffFields(a, b []byte) []string {
	if bytes.Equal(a, b) && (a == nil) == (b == nil) {
		return nil
	}
	canonicalA, errA := canonicalJSON(nil, a, nil, nil)
	canonicalB, errB := canonicalJSON(nil, b, nil, nil)
	if errA != nil || errB != nil {
		return []string{wholeValue}
	}
	d := differ{}
	d.compare(gjson.ParseBytes(canonicalA), gjson.ParseBytes(canonicalB))
	if d.more {
		d.paths = append(d.paths, "…")
	}
	return d.paths
}

// A differ walks two canonical texts side by side, in which members are sorted.
type differ struct {
	steps []pathStep
	paths []string
	more  bool
}

func (d *differ) compare(a, b gjson.Result) {
	switch {
	case d.more || a.Raw == b.Raw:
	case a.IsObject() && b.IsObject():
		d.compareMembers(members(a), members(b))
	case a.IsArray() && b.IsArray():
		d.compareElements(a.Array(), b.Array())
	default:
		d.differs()
	}
}

type namedResult struct {
	name  string // canonical, without quotes
	value gjson.Result
}

func members(object gjson.Result) []namedResult {
	var all []namedResult
	object.ForEach(func(key, value gjson.Result) bool {
		all = append(all, namedResult{name: key.Raw[1 : len(key.Raw)-1], value: value})
		return true
	})
	return all
}

// compareMembers merges two sorted lists. Repeated members meet in their order.
func (d *differ) compareMembers(a, b []namedResult) {
	for (len(a) > 0 || len(b) > 0) && !d.more {
		var order int
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		default:
			// With their quotes, as the canonical form sorts them.
			order = strings.Compare(a[0].name+`"`, b[0].name+`"`)
		}
		if order <= 0 {
			d.steps = append(d.steps, pathStep{name: a[0].name})
		} else {
			d.steps = append(d.steps, pathStep{name: b[0].name})
		}
		switch {
		case order < 0:
			d.differs()
			a = a[1:]
		case order > 0:
			d.differs()
			b = b[1:]
		default:
			d.compare(a[0].value, b[0].value)
			a, b = a[1:], b[1:]
		}
		d.steps = d.steps[:len(d.steps)-1]
	}
}

func (d *differ) compareElements(a, b []gjson.Result) {
	for i := range max(len(a), len(b)) {
		d.steps = append(d.steps, pathStep{name: strconv.Itoa(i)})
		if i < len(a) && i < len(b) {
			d.compare(a[i], b[i])
		} else {
			d.differs()
		}
		d.steps = d.steps[:len(d.steps)-1]
	}
}

// differs notes the place where the walk is.
func (d *differ) differs() {
	path := wholeValue
	if len(d.steps) > 0 {
		path = pgtext.Storable(pathText(d.steps), maxDiffPath)
	}
	if path == "" { // the member with the empty name, which has no path
		path = `""`
	}
	switch {
	case slices.Contains(d.paths, path): // a repeated member, or a path that was shortened
	case len(d.paths) == maxDiffs:
		d.more = true
	default:
		d.paths = append(d.paths, path)
	}
}
